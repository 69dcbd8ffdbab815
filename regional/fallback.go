package regional

import (
	"math/bits"

	"github.com/weirhq/weir/quota"
)

// fallback decides a step whose group did not answer, as far as that needs no
// bucket: localFallback decides the rest. A denial that was certain before the
// store was asked stays what it is.
func fallback(s *step) {
	d := &s.decision
	d.Source = quota.SourceFallback
	if d.Reason != quota.ReasonNone {
		return
	}
	switch s.match.Policy.OnStoreFailure {
	case quota.FailLocal:
		s.local = true
	case quota.FailOpen:
		d.Allowed, d.Remaining = true, d.Limit
	default:
		d.Reason = quota.ReasonStoreUnavailable
	}
}

// localFallback decides the steps that fail to a bucket in memory. They are
// charged one by one; when one denies, those before it get back what they gave.
func (e *Engine) localFallback(p *plan) {
	now := int64(0)
	charge := !p.peek && p.req.Cost > 0
	for i := range p.steps {
		s := &p.steps[i]
		if !s.local {
			continue
		}
		if now == 0 {
			now = e.local.now()
		}
		entry := quota.Entry{
			Bucket: s.bucket, Algorithm: s.match.Policy.Algorithm, Limit: e.localLimit(s), Shadow: s.decision.Shadow,
		}
		entry.Base = entry.Limit
		s.verdict, s.localEntry = e.local.decide(now, s.decision.PolicyID, entry, p.req.Cost, !charge || !p.allowed)
		s.decidedLocally()
		s.localCharged = charge && p.allowed && s.verdict.Allowed
		if !s.decision.Allowed && !s.decision.Shadow {
			p.allowed = false
		}
	}
	if p.allowed {
		return
	}
	for i := range p.steps {
		s := &p.steps[i]
		if s.localCharged {
			e.local.refund(now, s.decision.PolicyID, s.localEntry, p.req.Cost)
			s.decision.Remaining = min((s.verdict.Level + p.req.Cost).Whole(), s.decision.Limit)
		}
	}
}

// decidedLocally fills the decision from the local bucket's verdict.
func (s *step) decidedLocally() {
	d, v := &s.decision, &s.verdict
	d.Remaining = min(max(v.Level.Whole(), 0), d.Limit)
	d.ResetAfter = v.ResetAfter
	switch {
	case v.Allowed:
		d.Allowed = true
	case v.NeverFits:
		// It fits the limit and not this node's part of it, so it is the store's
		// absence that denies, and no wait for the bucket helps.
		d.Reason = quota.ReasonStoreUnavailable
	default:
		d.Reason, d.RetryAfter = quota.ReasonLimit, v.RetryAfter
	}
}

// localLimit is this node's part of what the region may use of a quota: the
// region's share (the whole limit of a regional policy) divided by the number of
// live nodes. A part is at least one token where the region has one to give, or
// small limits would deny everything; so the nodes together stay within
// max(share, one token per node).
func (e *Engine) localLimit(s *step) quota.Limit {
	limit := s.match.Limit
	share := limit.Share()
	if s.state.demand != nil {
		share, _ = e.withoutStore(s)
		share = scaleShare(share, s.match.Limit, s.match.Policy.Limit)
	}
	nodes := quota.Tokens(max(1, e.cfg.Nodes()))
	part := share.Capacity / nodes
	if share.Capacity >= quota.Token {
		part = max(part, quota.Token)
	}
	if s.match.Policy.Algorithm == quota.SlidingLog {
		part -= part % quota.Token
	}
	limit.Capacity = min(part, limit.Capacity)
	limit.Refill = share.Refill / nodes
	if share.Refill > 0 {
		limit.Refill = max(limit.Refill, 1)
	}
	return limit
}

// scaleShare turns a share of the policy's limit into one of an override of it.
// The result's refill counts by the override's period.
func scaleShare(share quota.Share, limit, base quota.Limit) quota.Share {
	if limit == base {
		return share
	}
	return quota.Share{
		Capacity: mulDiv(share.Capacity, limit.Capacity, base.Capacity),
		Refill:   mulDiv(share.Refill, limit.Refill, base.Refill),
	}
}

// mulDiv returns a*b/c rounded down, exact for any non-negative a, b and c; zero
// when c is zero, and the largest amount when the result is above it.
func mulDiv(a, b, c quota.Tokens) quota.Tokens {
	if a <= 0 || b <= 0 || c <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return quota.MaxTokens
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return quota.Tokens(min(q, uint64(quota.MaxTokens)))
}
