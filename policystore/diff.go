package policystore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirhq/weir/quota"
)

// Diff is the difference of two policy sets, each list sorted by id. Its
// policies are shared with the sets that were compared.
type Diff struct {
	Added   []*quota.Policy
	Removed []*quota.Policy
	Changed []PolicyChange
}

// PolicyChange is one policy that is in both sets and not the same.
type PolicyChange struct {
	ID       string
	Old, New *quota.Policy
	// Fields is what differs, in the order of the document.
	Fields []FieldChange
}

// FieldChange is one field of a policy before and after. An absent field is an
// empty text.
type FieldChange struct {
	Path     string
	Old, New string
}

// Summary is a Diff without the policies: ids only.
type Summary struct {
	Added, Changed, Removed []string
}

// Compare returns what turns the old set into the new one. The order of the
// sets does not matter.
func Compare(before, after []*quota.Policy) Diff {
	olds, news := byID(before), byID(after)
	var d Diff
	for id, n := range news {
		o, ok := olds[id]
		switch {
		case !ok:
			d.Added = append(d.Added, n)
		case !equal(o, n):
			d.Changed = append(d.Changed, PolicyChange{ID: id, Old: o, New: n, Fields: changedFields(o, n)})
		}
	}
	for id, o := range olds {
		if _, ok := news[id]; !ok {
			d.Removed = append(d.Removed, o)
		}
	}
	slices.SortFunc(d.Added, comparePolicies)
	slices.SortFunc(d.Removed, comparePolicies)
	slices.SortFunc(d.Changed, func(a, b PolicyChange) int { return cmp.Compare(a.ID, b.ID) })
	return d
}

// Empty reports whether the sets are the same.
func (d Diff) Empty() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

// Clone returns a deep copy.
func (d Diff) Clone() Diff {
	c := Diff{Added: ClonePolicies(d.Added), Removed: ClonePolicies(d.Removed)}
	for _, ch := range d.Changed {
		c.Changed = append(c.Changed, PolicyChange{
			ID: ch.ID, Old: ClonePolicy(ch.Old), New: ClonePolicy(ch.New), Fields: slices.Clone(ch.Fields),
		})
	}
	return c
}

// Summary returns the ids.
func (d Diff) Summary() Summary {
	var s Summary
	for _, p := range d.Added {
		s.Added = append(s.Added, p.ID)
	}
	for _, c := range d.Changed {
		s.Changed = append(s.Changed, c.ID)
	}
	for _, p := range d.Removed {
		s.Removed = append(s.Removed, p.ID)
	}
	return s
}

// String renders the diff for people, the same text for the same diff: one
// block for each policy in the order of ids, marked + (added), - (removed) or
// ~ (changed), and below it one line for each field. An empty diff is "no changes\n".
func (d Diff) String() string {
	if d.Empty() {
		return "no changes\n"
	}
	blocks := make(map[string]string, len(d.Added)+len(d.Removed)+len(d.Changed))
	for _, p := range d.Added {
		blocks[p.ID] = wholePolicy("+", p)
	}
	for _, p := range d.Removed {
		blocks[p.ID] = wholePolicy("-", p)
	}
	for _, c := range d.Changed {
		blocks[c.ID] = c.String()
	}
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(blocks)) {
		b.WriteString(blocks[id])
	}
	return b.String()
}

// String renders the change of one policy.
func (c PolicyChange) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "~ %s\n", c.ID)
	for _, f := range c.Fields {
		fmt.Fprintf(&b, "    %s: %s -> %s\n", f.Path, orNone(f.Old), orNone(f.New))
	}
	return b.String()
}

func wholePolicy(mark string, p *quota.Policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", mark, p.ID)
	for _, f := range fields(p) {
		if !f.isDefault {
			fmt.Fprintf(&b, "    %s: %s\n", f.path, f.value)
		}
	}
	return b.String()
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// String renders the summary in one line of bounded length, for example
// "added login; changed api-free, api-pro; removed 1204 policies".
func (s Summary) String() string {
	var parts []string
	for _, l := range []struct {
		verb string
		ids  []string
	}{{"added", s.Added}, {"changed", s.Changed}, {"removed", s.Removed}} {
		switch n := len(l.ids); {
		case n == 0:
		case n > maxNamed:
			parts = append(parts, fmt.Sprintf("%s %d policies", l.verb, n))
		default:
			parts = append(parts, l.verb+" "+strings.Join(l.ids, ", "))
		}
	}
	if len(parts) == 0 {
		return "no policy changed"
	}
	return strings.Join(parts, "; ")
}

// maxNamed is how many ids a summary lists before it only counts them.
const maxNamed = 8

func comparePolicies(a, b *quota.Policy) int { return cmp.Compare(a.ID, b.ID) }

func byID(set []*quota.Policy) map[string]*quota.Policy {
	m := make(map[string]*quota.Policy, len(set))
	for _, p := range set {
		m[p.ID] = p
	}
	return m
}
