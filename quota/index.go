package quota

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
)

// Index finds the policies of one revision that apply to a request. It is
// immutable and safe for concurrent use; a new revision is a new index.
type Index struct {
	revision  int64
	overrides *Overrides
	// policies is sorted by precedence; everything else speaks of positions in it.
	policies []compiled
	byID     map[string]int32
	// Each policy is filed once, under the condition that fewest policies share.
	attributes map[string]*attributeIndex
	always     []int32
}

type compiled struct {
	policy *Policy
	// rest are the conditions other than the one that the policy is filed under.
	rest      []Condition
	overrides overrideTable
}

// attributeIndex holds the policies that are filed under one attribute.
type attributeIndex struct {
	exact    map[string][]int32
	prefixes []prefixEntry
	anyValue []int32
}

// prefixEntry is one prefix and the policies filed under it. Entries are
// sorted; parent is the longest other prefix that this one begins with, or -1.
type prefixEntry struct {
	text     string
	parent   int32
	policies []int32
}

// Compile builds the index of a revision. The policies must not be changed
// afterwards. Overrides may be nil; those of policies that are not there are
// left aside. The error is an ErrInvalid: a repeated id, or an override that
// does not fit its policy.
func Compile(revision int64, policies []*Policy, overrides *Overrides) (*Index, error) {
	x := &Index{
		revision:   revision,
		overrides:  overrides,
		policies:   make([]compiled, len(policies)),
		byID:       make(map[string]int32, len(policies)),
		attributes: map[string]*attributeIndex{},
	}
	ordered := slices.Clone(policies)
	slices.SortFunc(ordered, Compare)
	shared := map[Condition]int{}
	for i, p := range ordered {
		if _, repeated := x.byID[p.ID]; repeated {
			return nil, fmt.Errorf("%w: policy %s: two policies have this id; give each its own", ErrInvalid, quoteShort(p.ID))
		}
		x.byID[p.ID] = int32(i)
		x.policies[i].policy = p
		for _, c := range p.Match {
			shared[c]++
		}
		if err := x.attach(&x.policies[i]); err != nil {
			return nil, err
		}
	}
	for i := range x.policies {
		x.file(int32(i), shared)
	}
	for _, a := range x.attributes {
		a.link()
	}
	return x, nil
}

// attach gives a policy its overrides.
func (x *Index) attach(c *compiled) error {
	if x.overrides == nil {
		return nil
	}
	c.overrides = x.overrides.policies[c.policy.ID]
	for _, e := range c.overrides {
		for ; e != nil; e = e.next {
			if err := CheckOverride(c.policy, e.override); err != nil {
				return err
			}
		}
	}
	return nil
}

// file puts a policy under its rarest condition; of equally rare ones an exact
// one is best, since a prefix or "*" is satisfied by more requests.
func (x *Index) file(i int32, shared map[Condition]int) {
	c := &x.policies[i]
	conditions := c.policy.Match
	if len(conditions) == 0 {
		x.always = append(x.always, i)
		return
	}
	width := func(c Condition) int {
		text, prefix := c.pattern()
		if !prefix {
			return 0
		}
		return 1 + MaxAttributeValue - len(text)
	}
	best := slices.MinFunc(conditions, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(shared[a], shared[b]), cmp.Compare(width(a), width(b)))
	})
	for _, other := range conditions {
		if other != best {
			c.rest = append(c.rest, other)
		}
	}
	a := x.attributes[best.Attribute]
	if a == nil {
		a = &attributeIndex{exact: map[string][]int32{}}
		x.attributes[best.Attribute] = a
	}
	switch text, prefix := best.pattern(); {
	case !prefix:
		a.exact[text] = append(a.exact[text], i)
	case text == "":
		a.anyValue = append(a.anyValue, i)
	default:
		a.prefixes = append(a.prefixes, prefixEntry{text: text, policies: []int32{i}})
	}
}

// link sorts the prefixes, joins equal ones and finds each one's parent.
func (a *attributeIndex) link() {
	slices.SortStableFunc(a.prefixes, func(x, y prefixEntry) int { return strings.Compare(x.text, y.text) })
	joined := a.prefixes[:0]
	for _, e := range a.prefixes {
		if last := len(joined) - 1; last >= 0 && joined[last].text == e.text {
			joined[last].policies = append(joined[last].policies, e.policies...)
			continue
		}
		e.parent = int32(len(joined)) - 1
		for e.parent >= 0 && !strings.HasPrefix(e.text, joined[e.parent].text) {
			e.parent = joined[e.parent].parent
		}
		joined = append(joined, e)
	}
	a.prefixes = slices.Clip(joined)
}

// Revision returns the revision that the index was compiled from.
func (x *Index) Revision() int64 { return x.revision }

// Len returns the number of policies.
func (x *Index) Len() int { return len(x.policies) }

// Policy returns a policy by its id.
func (x *Index) Policy(id string) (*Policy, bool) {
	i, ok := x.byID[id]
	if !ok {
		return nil, false
	}
	return x.policies[i].policy, true
}

// Policies yields all policies in order of precedence.
func (x *Index) Policies() iter.Seq[*Policy] {
	return func(yield func(*Policy) bool) {
		for i := range x.policies {
			if !yield(x.policies[i].policy) {
				return
			}
		}
	}
}

// Resolve appends every policy that applies to the request, in order of
// precedence (see Compare). All of them apply: adding a policy never loosens
// another. It allocates only to grow dst.
func (x *Index) Resolve(attrs Attributes, dst []Match) []Match {
	start := len(dst)
	dst = x.collect(x.always, attrs, dst)
	for i := range attrs {
		a := x.attributes[attrs[i].Name]
		if a == nil {
			continue
		}
		value := attrs[i].Value
		if len(a.exact) > 0 {
			dst = x.collect(a.exact[value], attrs, dst)
		}
		dst = x.collect(a.anyValue, attrs, dst)
		if len(a.prefixes) > 0 {
			dst = x.collectPrefixes(a, value, attrs, dst)
		}
	}
	if found := dst[start:]; len(found) > 1 {
		slices.SortFunc(found, func(a, b Match) int { return cmp.Compare(a.rank, b.rank) })
	}
	return dst
}

// collectPrefixes adds the policies of every prefix that value begins with. The
// last prefix not after value begins with all of them: they are it or its ancestors.
func (x *Index) collectPrefixes(a *attributeIndex, value string, attrs Attributes, dst []Match) []Match {
	last := sort.Search(len(a.prefixes), func(i int) bool { return a.prefixes[i].text > value }) - 1
	if last < 0 {
		return dst
	}
	common := commonLength(a.prefixes[last].text, value)
	for at := int32(last); at >= 0; at = a.prefixes[at].parent {
		if len(a.prefixes[at].text) <= common {
			dst = x.collect(a.prefixes[at].policies, attrs, dst)
		}
	}
	return dst
}

func commonLength(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// collect adds those of the candidates whose other conditions hold.
func (x *Index) collect(candidates []int32, attrs Attributes, dst []Match) []Match {
next:
	for _, i := range candidates {
		c := &x.policies[i]
		for _, condition := range c.rest {
			if !attrs.holds(condition) {
				continue next
			}
		}
		dst = append(dst, x.match(i, attrs))
	}
	return dst
}

func (x *Index) match(i int32, attrs Attributes) Match {
	c := &x.policies[i]
	m := Match{
		Policy:    c.policy,
		Limit:     c.policy.Limit,
		Unlimited: c.policy.Unlimited,
		Missing:   attrs.firstMissing(c.policy.Key),
		rank:      i,
	}
	if c.overrides != nil {
		if o := x.overrides.find(c.overrides, c.policy.Key, attrs); o != nil {
			m.Override, m.Limit, m.Unlimited = o, o.Limit, o.Unlimited
		}
	}
	return m
}
