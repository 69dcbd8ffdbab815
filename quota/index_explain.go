package quota

import (
	"cmp"
	"fmt"
	"slices"
)

// MaxTraces bounds the answer of ExplainMatch.
const MaxTraces = 64

// MatchTrace says why a policy does or does not apply to a request.
type MatchTrace struct {
	Policy  *Policy
	Matched bool
	// Missing is the attribute of the key that a matching request lacks, or "".
	Missing string
	// Failed is the first condition that does not hold, in order of attribute;
	// zero when Matched.
	Failed Condition
	// Reason says the same to people. It repeats values of the request, so it
	// is for whoever sent them.
	Reason string

	failures int
}

// ExplainMatch returns the policies that apply to the request in order of
// precedence, then those near a match: the fewer conditions fail the earlier.
// Policies of which nothing holds are left out, unless ids names them; then only
// the named ones are considered. At most MaxTraces are returned.
func (x *Index) ExplainMatch(attrs Attributes, ids ...string) []MatchTrace {
	var traces []MatchTrace
	for i := range x.policies {
		p := x.policies[i].policy
		named := slices.Contains(ids, p.ID)
		if len(ids) > 0 && !named {
			continue
		}
		t := traceOf(p, attrs)
		if t.Matched || named || t.failures < len(p.Match) {
			traces = append(traces, t)
		}
	}
	slices.SortStableFunc(traces, func(a, b MatchTrace) int { return cmp.Compare(a.failures, b.failures) })
	traces = slices.Clip(traces[:min(len(traces), MaxTraces)])
	for i := range traces {
		traces[i].Reason = traces[i].reason(attrs)
	}
	return traces
}

func traceOf(p *Policy, attrs Attributes) MatchTrace {
	t := MatchTrace{Policy: p}
	for _, c := range p.Match {
		if attrs.holds(c) {
			continue
		}
		if t.failures == 0 {
			t.Failed = c
		}
		t.failures++
	}
	if t.failures == 0 {
		t.Matched = true
		t.Missing = attrs.firstMissing(p.Key)
	}
	return t
}

func (t *MatchTrace) reason(attrs Attributes) string {
	switch {
	case !t.Matched:
		return whyNot(t.Failed, attrs.Get(t.Failed.Attribute))
	case t.Missing != "":
		return fmt.Sprintf("the request has no %s to count by; missingKey: %s", t.Missing, t.Policy.MissingKey)
	case len(t.Policy.Match) == 0:
		return "the policy matches every request"
	}
	return "every condition holds"
}

func whyNot(c Condition, value string) string {
	text, prefix := c.pattern()
	switch {
	case value == "":
		return fmt.Sprintf("the request has no %s, the policy wants %s", c.Attribute, quoteShort(c.Pattern))
	case prefix:
		return fmt.Sprintf("%s is %s, which does not begin with %s", c.Attribute, quoteShort(value), quoteShort(text))
	default:
		return fmt.Sprintf("%s is %s, the policy wants %s", c.Attribute, quoteShort(value), quoteShort(c.Pattern))
	}
}
