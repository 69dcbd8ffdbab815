package policystore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// Bounds of overrides.
const (
	// MaxOverrideBatch is how many overrides one call sets or deletes.
	MaxOverrideBatch = 10_000
	// MaxOverrideKey bounds the values of one key, together, in bytes; it is
	// what an index of Postgres has room for.
	MaxOverrideKey = 2048
	// OverrideRetention is how long a deleted or expired override is still
	// listed among the changes, for those who fell behind.
	OverrideRetention = time.Hour
)

// OverrideID names an override: the policy and the values of its key attributes,
// in the order of Policy.Key. Values may hold any bytes.
type OverrideID struct {
	Policy string
	Key    []string
}

// IDOf returns the id of an override.
func IDOf(o quota.Override) OverrideID {
	return OverrideID{Policy: o.Policy, Key: slices.Clone(o.Key)}
}

// String renders the id for people, for example api-free["ak_1"].
func (id OverrideID) String() string {
	var b strings.Builder
	b.WriteString(id.Policy)
	for _, k := range id.Key {
		fmt.Fprintf(&b, "[%q]", k)
	}
	return b.String()
}

// Compare orders ids by policy, then key, byte by byte.
func (id OverrideID) Compare(o OverrideID) int {
	if c := strings.Compare(id.Policy, o.Policy); c != 0 {
		return c
	}
	return slices.Compare(id.Key, o.Key)
}

// MapKey returns a text that no other id has, whatever the values hold.
func (id OverrideID) MapKey() string {
	b := binary.AppendUvarint(nil, uint64(len(id.Policy)))
	b = append(b, id.Policy...)
	for _, k := range id.Key {
		b = binary.AppendUvarint(b, uint64(len(k)))
		b = append(b, k...)
	}
	return string(b)
}

// OverrideQuery selects overrides. All texts are taken literally.
type OverrideQuery struct {
	// Policy, when set, is matched exactly.
	Policy string
	// Search, when set, must occur in one of the key's values, in this case.
	Search string
	// After lists only what follows this id; the id of the last override of a
	// page asks for the next page.
	After *OverrideID
	// Limit is the size of the page; zero means DefaultPage.
	Limit int
}

// Matches reports whether the query selects an override, its page aside.
func (q OverrideQuery) Matches(id OverrideID) bool {
	if q.Policy != "" && q.Policy != id.Policy {
		return false
	}
	return q.Search == "" || slices.ContainsFunc(id.Key, func(k string) bool { return strings.Contains(k, q.Search) })
}

// OverrideChange is the newest change of one key.
type OverrideChange struct {
	// Position orders all changes of overrides.
	Position int64
	ID       OverrideID
	// Override is the new state; nil when it was deleted. It may have expired
	// meanwhile.
	Override *quota.Override
}

// Expired reports whether an override has ended.
func Expired(o quota.Override, now time.Time) bool {
	return !o.Expires.IsZero() && !now.Before(o.Expires)
}

// CheckOverrides validates overrides against the policies they are for and
// returns copies to keep, with expiries in UTC and whole microseconds. lookup
// returns a policy of the newest revision, or nil. It is pure.
func CheckOverrides(by Edit, set []quota.Override, lookup func(id string) *quota.Policy, now time.Time) ([]quota.Override, error) {
	if err := checkBatch(by, len(set)); err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(set))
	out := make([]quota.Override, 0, len(set))
	for _, o := range set {
		id := IDOf(o)
		if seen[id.MapKey()] {
			return nil, invalidf("override %s is in the batch twice", id)
		}
		seen[id.MapKey()] = true
		p := lookup(o.Policy)
		if p == nil {
			return nil, notFoundf("override %s: there is no policy %q", id, o.Policy)
		}
		if err := checkOverride(o, id, p, now); err != nil {
			return nil, err
		}
		o.Key = id.Key
		if !o.Expires.IsZero() {
			o.Expires = o.Expires.UTC().Truncate(time.Microsecond)
		}
		out = append(out, o)
	}
	return out, nil
}

// CheckOverrideIDs validates a batch of ids to delete.
func CheckOverrideIDs(by Edit, ids []OverrideID) error {
	if err := checkBatch(by, len(ids)); err != nil {
		return err
	}
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if seen[id.MapKey()] {
			return invalidf("override %s is in the batch twice", id)
		}
		seen[id.MapKey()] = true
	}
	return nil
}

// NoOverride is the error for an override that does not exist.
func NoOverride(id OverrideID) error { return notFoundf("there is no override %s", id) }

// NoRevision is the error for a revision that does not exist.
func NoRevision(number int64) error { return notFoundf("there is no revision %d", number) }

// DescribeOverrides is the audit detail of a batch.
func DescribeOverrides(verb string, ids []OverrideID) string {
	if len(ids) > maxNamed {
		return fmt.Sprintf("%s %d overrides", verb, len(ids))
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = id.String()
	}
	return verb + " " + strings.Join(names, ", ")
}

func checkBatch(by Edit, n int) error {
	if err := by.check(); err != nil {
		return err
	}
	if n == 0 || n > MaxOverrideBatch {
		return invalidf("a batch holds 1 to %d overrides, not %d", MaxOverrideBatch, n)
	}
	return nil
}

func checkOverride(o quota.Override, id OverrideID, p *quota.Policy, now time.Time) error {
	size := 0
	for _, k := range o.Key {
		size += len(k)
	}
	switch {
	case size > MaxOverrideKey:
		return invalidf("override of policy %s: the values of the key have %d bytes together, at most %d are allowed", o.Policy, size, MaxOverrideKey)
	case Expired(o, now):
		return invalidf("override %s: it expired at %s already", id, o.Expires.UTC().Format(time.RFC3339))
	}
	return quota.CheckOverride(p, &o)
}
