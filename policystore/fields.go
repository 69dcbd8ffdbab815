package policystore

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// field is one field of a policy as people read it.
type field struct {
	path, value string
	// isDefault fields are left out where a whole policy is shown.
	isDefault bool
}

// fields lists a policy in the order of the document. Two policies are equal
// exactly when their ids and fields are.
func fields(p *quota.Policy) []field {
	var fs []field
	add := func(path, value string, isDefault bool) {
		fs = append(fs, field{path: path, value: value, isDefault: isDefault})
	}
	for _, c := range p.Match {
		add("match."+name(c.Attribute), strconv.Quote(c.Pattern), false)
	}
	add("key", list(p.Key), len(p.Key) == 0)
	add("algorithm", p.Algorithm.String(), p.Algorithm == 0)
	fs = append(fs, limitFields(p)...)
	add("scope", p.Scope.String(), p.Scope == quota.Global)
	add("split.strategy", p.Split.Strategy.String(), p.Split.Strategy == quota.SplitByDemand)
	add("split.floor", floorText(p.Split), p.Split.FloorPercent == nil)
	add("split.onPartition", p.Split.OnPartition.String(), p.Split.OnPartition == quota.Hold)
	for _, r := range slices.Sorted(maps.Keys(p.Split.Weights)) {
		add("split.weights."+name(string(r)), number(p.Split.Weights[r]), false)
	}
	add("onStoreFailure", p.OnStoreFailure.String(), p.OnStoreFailure == 0)
	add("storeDeadline", deadlineText(p.StoreDeadline), p.StoreDeadline == 0)
	add("enforcement", p.Enforcement.String(), p.Enforcement == quota.Exact)
	add("missingKey", p.MissingKey.String(), p.MissingKey == quota.MissingSkip)
	add("subBuckets", strconv.Itoa(p.SubBuckets), p.SubBuckets == 0)
	add("leaseTTL", duration(p.LeaseTTL), p.LeaseTTL == 0)
	add("priority", strconv.Itoa(p.Priority), p.Priority == 0)
	add("shadow", strconv.FormatBool(p.Shadow), !p.Shadow)
	add("unlimited", strconv.FormatBool(p.Unlimited), !p.Unlimited)
	return fs
}

// limitFields names the numbers as the document of that algorithm does. Numbers
// that the algorithm has no use for are shown only when they are there.
func limitFields(p *quota.Policy) []field {
	l := p.Limit
	if p.Algorithm == quota.TokenBucket {
		return []field{
			{path: "capacity", value: l.Capacity.String()},
			{path: "refill", value: l.Refill.String() + "/" + duration(l.Period)},
		}
	}
	fs := []field{{path: "limit", value: l.Capacity.String()}}
	if l.Period != 0 {
		fs = append(fs, field{path: "window", value: duration(l.Period)})
	}
	if l.Refill != 0 {
		fs = append(fs, field{path: "refill", value: l.Refill.String()})
	}
	return fs
}

// changedFields lists the fields that differ: those of the new policy in its
// order, then those that only the old one has.
func changedFields(before, after *quota.Policy) []FieldChange {
	olds := make(map[string]string)
	for _, f := range fields(before) {
		olds[f.path] = f.value
	}
	var out []FieldChange
	for _, f := range fields(after) {
		if old := olds[f.path]; old != f.value {
			out = append(out, FieldChange{Path: f.path, Old: old, New: f.value})
		}
		delete(olds, f.path)
	}
	for _, f := range fields(before) {
		if _, gone := olds[f.path]; gone {
			out = append(out, FieldChange{Path: f.path, Old: f.value})
		}
	}
	return out
}

// equal is what Compare calls unchanged. It says the same as comparing fields,
// without the texts.
func equal(a, b *quota.Policy) bool {
	return a.ID == b.ID &&
		slices.Equal(a.Match, b.Match) &&
		slices.Equal(a.Key, b.Key) &&
		a.Algorithm == b.Algorithm &&
		a.Limit == b.Limit &&
		a.Scope == b.Scope &&
		equalSplits(a.Split, b.Split) &&
		a.OnStoreFailure == b.OnStoreFailure &&
		a.StoreDeadline == b.StoreDeadline &&
		a.Enforcement == b.Enforcement &&
		a.MissingKey == b.MissingKey &&
		a.SubBuckets == b.SubBuckets &&
		a.LeaseTTL == b.LeaseTTL &&
		a.Priority == b.Priority &&
		a.Shadow == b.Shadow &&
		a.Unlimited == b.Unlimited
}

func equalSplits(a, b quota.Split) bool {
	if (a.FloorPercent == nil) != (b.FloorPercent == nil) {
		return false
	}
	return a.Strategy == b.Strategy &&
		(a.FloorPercent == nil || *a.FloorPercent == *b.FloorPercent) &&
		a.OnPartition == b.OnPartition &&
		maps.Equal(a.Weights, b.Weights)
}

func floorText(s quota.Split) string {
	if s.FloorPercent == nil {
		return number(quota.DefaultFloorPercent) + "% (default)"
	}
	return number(*s.FloorPercent) + "%"
}

func deadlineText(d time.Duration) string {
	if d == 0 {
		return duration(quota.DefaultStoreDeadline) + " (default)"
	}
	return duration(d)
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// duration prints as documents do. What is finer than they can say, which no
// document holds, is still shown.
func duration(d time.Duration) string {
	if d%time.Microsecond != 0 {
		return d.String()
	}
	return quota.FormatDuration(d)
}

// name quotes what would be ambiguous in a path.
func name(s string) string {
	for _, r := range s {
		plain := r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !plain {
			return strconv.Quote(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}

func list(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = name(n)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
