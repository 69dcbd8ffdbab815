package document

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/weirhq/weir/quota"
)

// Marshal writes the canonical document of policies: the order of the fields is
// fixed, defaults are left out, and Policies reads equal policies back.
func Marshal(policies []*quota.Policy) []byte {
	if len(policies) == 0 {
		return []byte("policies: []\n")
	}
	var w writer
	w.WriteString("policies:\n")
	for _, p := range policies {
		w.policy(p)
	}
	return []byte(w.String())
}

type writer struct{ strings.Builder }

// field writes one field of a policy, with its value as it stands.
func (w *writer) field(name, value string) {
	fmt.Fprintf(w, "    %s: %s\n", name, value)
}

func (w *writer) policy(p *quota.Policy) {
	fmt.Fprintf(w, "  - id: %s\n", quote(p.ID))
	if len(p.Match) > 0 {
		parts := make([]string, len(p.Match))
		for i, c := range p.Match {
			parts[i] = quote(c.Attribute) + ": " + quote(c.Pattern)
		}
		w.field("match", "{ "+strings.Join(parts, ", ")+" }")
	}
	if len(p.Key) > 0 {
		parts := make([]string, len(p.Key))
		for i, k := range p.Key {
			parts[i] = quote(k)
		}
		w.field("key", "["+strings.Join(parts, ", ")+"]")
	}
	w.field("algorithm", p.Algorithm.String())
	w.numbers(p)
	w.field("onStoreFailure", p.OnStoreFailure.String())
	w.options(p)
}

func (w *writer) numbers(p *quota.Policy) {
	switch {
	case p.Unlimited:
		w.field("unlimited", "true")
	case p.Algorithm == quota.TokenBucket:
		w.field("capacity", p.Limit.Capacity.String())
		w.field("refill", p.Limit.Refill.String()+"/"+quota.FormatDuration(p.Limit.Period))
	case p.Algorithm == quota.SlidingLog:
		w.field("limit", p.Limit.Capacity.String())
		w.field("window", quota.FormatDuration(p.Limit.Period))
	case p.Algorithm == quota.Concurrency:
		w.field("limit", p.Limit.Capacity.String())
		w.field("leaseTTL", quota.FormatDuration(p.LeaseTTL))
	}
}

func (w *writer) options(p *quota.Policy) {
	if p.StoreDeadline != 0 {
		w.field("storeDeadline", quota.FormatDuration(p.StoreDeadline))
	}
	if p.MissingKey != quota.MissingSkip {
		w.field("missingKey", p.MissingKey.String())
	}
	if p.Scope != quota.Global {
		w.field("scope", p.Scope.String())
	}
	if split := splitFields(p.Split); len(split) > 0 {
		w.field("split", "{ "+strings.Join(split, ", ")+" }")
	}
	if p.Enforcement != quota.Exact {
		w.field("enforcement", p.Enforcement.String())
	}
	if p.SubBuckets > 1 {
		w.field("subBuckets", strconv.Itoa(p.SubBuckets))
	}
	if p.Priority != 0 {
		w.field("priority", strconv.Itoa(p.Priority))
	}
	if p.Shadow {
		w.field("shadow", "true")
	}
}

func splitFields(s quota.Split) []string {
	var out []string
	if s.Strategy != quota.SplitByDemand {
		out = append(out, "strategy: "+s.Strategy.String())
	}
	if s.FloorPercent != nil {
		out = append(out, "floor: "+decimal(*s.FloorPercent))
	}
	if s.OnPartition != quota.Hold {
		out = append(out, "onPartition: "+s.OnPartition.String())
	}
	if len(s.Weights) > 0 {
		var weights []string
		for _, region := range slices.Sorted(maps.Keys(s.Weights)) {
			weights = append(weights, quote(string(region))+": "+decimal(s.Weights[region]))
		}
		out = append(out, "weights: { "+strings.Join(weights, ", ")+" }")
	}
	return out
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// quote writes a text so that it reads back as that text: bare when nothing
// could take it for anything else, else in double quotes.
func quote(s string) string {
	if bare(s) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// bare reports whether s begins with a letter and holds nothing but letters,
// digits, - and _, and is no word that YAML or its older versions read otherwise.
func bare(s string) bool {
	switch strings.ToLower(s) {
	case "", "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf":
		return false
	}
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r != '-' && r != '_' && (r < '0' || r > '9')) {
			return false
		}
	}
	return true
}
