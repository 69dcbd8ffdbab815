package regional

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// Explain says how a request would be decided now, by which policies, and what
// would let it through. It charges nothing. Its errors are those of Check.
func (e *Engine) Explain(ctx context.Context, req quota.Request) (quota.Explanation, error) {
	req.RequestID = ""
	p, err := e.plan(req, true)
	if err != nil {
		return quota.Explanation{}, err
	}
	defer e.release(p)
	if err := e.decide(ctx, p, time.Now()); err != nil {
		return quota.Explanation{}, err
	}
	attrs, err := p.attrs.Attributes()
	if err != nil {
		return quota.Explanation{}, err
	}
	ex := quota.Explanation{Allowed: p.allowed, Revision: p.view.index.Revision()}
	for _, t := range p.view.index.ExplainMatch(attrs, req.Policies...) {
		pe := quota.PolicyExplanation{PolicyID: t.Policy.ID, Matched: t.Matched, Scope: t.Policy.Scope}
		if s := p.stepOf(t.Policy.ID); s != nil {
			s.explain(e, &pe, req.Cost)
		}
		if !t.Matched || t.Missing != "" {
			pe.WhyNot = t.Reason
		}
		ex.Policies = append(ex.Policies, pe)
	}
	return ex, nil
}

func (p *plan) stepOf(policy string) *step {
	for i := range p.steps {
		if p.steps[i].match.Policy.ID == policy {
			return &p.steps[i]
		}
	}
	return nil
}

func (s *step) explain(e *Engine, pe *quota.PolicyExplanation, cost quota.Tokens) {
	pe.Decision, pe.Bucket, pe.Stripe = s.decision, s.bucket, s.stripe
	if s.state.demand != nil {
		s.explainShare(e, pe)
	}
	if !s.decision.Allowed {
		pe.Suggestion = s.suggestion(cost)
	}
}

// explainShare says what the region may use of the quota, by the store where it has
// answered, else as this node knows it.
func (s *step) explainShare(e *Engine, pe *quota.PolicyExplanation) {
	pe.Share, pe.Version = s.verdict.Share, s.verdict.Version
	held := s.state.share.Load()
	if s.decision.Source != quota.SourceStore {
		var own bool
		if pe.Share, own = e.withoutStore(s); own {
			held, pe.Version = nil, 0 // nobody here knows which version that is
		} else if held != nil {
			pe.Version = held.version
		}
	}
	if held != nil && held.version == pe.Version && !s.verdict.Tracked {
		pe.ShareAge = time.Since(held.since)
		s.explainLease(pe, held)
	}
}

// explainLease says what of a share depends on the region's lease, and for how long it
// lasts. Once it is over, only the permanent part is shown as the region's share.
func (s *step) explainLease(pe *quota.PolicyExplanation, held *heldShare) {
	if held.perm == held.share {
		return
	}
	pe.Leased, pe.Permanent, pe.LeaseLeft = true, held.perm, s.state.lease.left()
	if pe.LeaseLeft == 0 {
		pe.Share = held.share.Min(held.perm)
	}
}

// suggestion says what would have let the request through.
func (s *step) suggestion(cost quota.Tokens) string {
	d := &s.decision
	switch d.Reason {
	case quota.ReasonMissingKey:
		return fmt.Sprintf("send the attribute %s, which the policy counts by", s.match.Missing)
	case quota.ReasonNeverFits:
		if s.match.Limit.Capacity == 0 {
			return "nothing: the limit is 0, which denies always"
		}
		return fmt.Sprintf("a cost of at most %v: the limit never holds more", s.match.Limit.Capacity)
	case quota.ReasonStoreUnavailable:
		return fmt.Sprintf("the region's store: it did not answer, and the policy then decides by %s", s.match.Policy.OnStoreFailure)
	}
	var ways []string
	if d.RetryAfter > 0 {
		ways = append(ways, fmt.Sprintf("waiting %v", roundUp(d.RetryAfter)))
	}
	if d.Remaining > 0 {
		ways = append(ways, fmt.Sprintf("a cost of at most %d", d.Remaining))
	}
	if s.state.demand != nil && s.verdict.Share.Capacity < cost {
		ways = append(ways, fmt.Sprintf("a larger share for this region, which has %v of %v", s.verdict.Share.Capacity, s.match.Policy.Limit.Capacity))
	}
	if len(ways) == 0 {
		return "a larger limit"
	}
	return strings.Join(ways, ", or ")
}

// roundUp is a wait in whole milliseconds, not shorter than d.
func roundUp(d time.Duration) time.Duration {
	r := d.Truncate(time.Millisecond)
	if r < d {
		r += time.Millisecond
	}
	return r
}
