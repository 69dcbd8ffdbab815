package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/quota"
)

// asking is what Check, Peek and Explain have in common on the wire.
type asking interface {
	GetAttributes() map[string]string
	GetPolicies() []string
}

// toRequest validates and converts. The message's map and slice are shared, not
// copied: a handler owns its message.
func toRequest(m asking, cost *int64, requestID string) (quota.Request, error) {
	var p problems
	req := quota.Request{
		Attributes: m.GetAttributes(),
		Cost:       p.cost("cost", cost),
		RequestID:  requestID,
		Policies:   m.GetPolicies(),
	}
	p.attributes(req.Attributes)
	p.requestID("request_id", requestID)
	p.policies(req.Policies)
	if err := p.err(); err != nil {
		return quota.Request{}, err
	}
	return req, nil
}

func toRefund(m *weirv1.RefundRequest) (quota.RefundRequest, error) {
	var p problems
	req := quota.RefundRequest{
		Attributes: m.GetAttributes(),
		Amount:     p.amount(m.GetAmount()),
		Policies:   m.GetPolicies(),
	}
	p.attributes(req.Attributes)
	p.policies(req.Policies)
	if err := p.err(); err != nil {
		return quota.RefundRequest{}, err
	}
	return req, nil
}

// decisionBlock holds a decision and what its optional fields point to, so that
// one allocation serves a whole answer.
type decisionBlock struct {
	message          weirv1.Decision
	limit, remaining int64
	allowed          bool
}

func fromDecisions(ds []quota.Decision) []*weirv1.Decision {
	if len(ds) == 0 {
		return nil
	}
	blocks := make([]decisionBlock, len(ds))
	out := make([]*weirv1.Decision, len(ds))
	for i := range ds {
		blocks[i].fill(&ds[i])
		out[i] = &blocks[i].message
	}
	return out
}

func (b *decisionBlock) fill(d *quota.Decision) {
	b.allowed = d.Allowed || d.Shadow
	m := &b.message
	m.PolicyId = d.PolicyID
	m.Allowed = &b.allowed
	m.RetryAfter = optionalDuration(d.RetryAfter)
	m.ResetAfter = optionalDuration(d.ResetAfter)
	m.Source = fromSource(d.Source)
	m.Reason = fromReason(d.Reason)
	m.Shadow = d.Shadow
	m.ShadowDenied = d.Shadow && !d.Allowed
	m.NeverFits = d.Reason == quota.ReasonNeverFits
	m.Unlimited = d.Unlimited
	if !d.Unlimited {
		b.limit, b.remaining = d.Limit, d.Remaining
		m.Limit, m.Remaining = &b.limit, &b.remaining
	}
}

// optionalDuration leaves out a duration of zero.
func optionalDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// retryAfter is the wait until every policy that denies would admit: the
// longest of theirs, and none when one of them never will.
func retryAfter(r *quota.Result) time.Duration {
	var wait time.Duration
	if r.Allowed {
		return 0
	}
	for i := range r.Decisions {
		d := &r.Decisions[i]
		switch {
		case d.Allowed || d.Shadow:
		case noWaitHelps(d):
			return 0
		default:
			wait = max(wait, d.RetryAfter)
		}
	}
	return wait
}

// noWaitHelps is true of a denial that the same request will always meet.
func noWaitHelps(d *quota.Decision) bool {
	return d.Reason == quota.ReasonNeverFits || d.Reason == quota.ReasonMissingKey
}

func fromSource(s quota.Source) weirv1.Decision_Source {
	switch s {
	case quota.SourceStore:
		return weirv1.Decision_STORE
	case quota.SourceLease:
		return weirv1.Decision_LEASE
	case quota.SourceFallback:
		return weirv1.Decision_FALLBACK
	case quota.SourceNone:
	}
	return weirv1.Decision_NONE
}

func toSource(s weirv1.Decision_Source) quota.Source {
	switch s {
	case weirv1.Decision_STORE:
		return quota.SourceStore
	case weirv1.Decision_LEASE:
		return quota.SourceLease
	case weirv1.Decision_FALLBACK:
		return quota.SourceFallback
	case weirv1.Decision_NONE, weirv1.Decision_SOURCE_UNSPECIFIED:
	}
	return quota.SourceNone
}

func fromReason(r quota.Reason) weirv1.Decision_Reason {
	switch r {
	case quota.ReasonLimit:
		return weirv1.Decision_LIMIT_EXCEEDED
	case quota.ReasonNeverFits:
		return weirv1.Decision_COST_EXCEEDS_CAPACITY
	case quota.ReasonStoreUnavailable:
		return weirv1.Decision_STORE_UNAVAILABLE
	case quota.ReasonMissingKey:
		return weirv1.Decision_MISSING_KEY
	case quota.ReasonNone:
	}
	return weirv1.Decision_REASON_UNSPECIFIED
}

func toReason(r weirv1.Decision_Reason) quota.Reason {
	switch r {
	case weirv1.Decision_LIMIT_EXCEEDED:
		return quota.ReasonLimit
	case weirv1.Decision_COST_EXCEEDS_CAPACITY:
		return quota.ReasonNeverFits
	case weirv1.Decision_STORE_UNAVAILABLE:
		return quota.ReasonStoreUnavailable
	case weirv1.Decision_MISSING_KEY:
		return quota.ReasonMissingKey
	case weirv1.Decision_REASON_UNSPECIFIED:
	}
	return quota.ReasonNone
}

// toDecision is the client's side of fill. Limits do not travel.
func toDecision(m *weirv1.Decision) quota.Decision {
	return quota.Decision{
		PolicyID:   m.GetPolicyId(),
		Allowed:    m.GetAllowed() && !m.GetShadowDenied(),
		Reason:     toReason(m.GetReason()),
		Source:     toSource(m.GetSource()),
		Limit:      m.GetLimit(),
		Remaining:  m.GetRemaining(),
		RetryAfter: m.GetRetryAfter().AsDuration(),
		ResetAfter: m.GetResetAfter().AsDuration(),
		Shadow:     m.GetShadow(),
		Unlimited:  m.GetUnlimited(),
	}
}

func toDecisions(ms []*weirv1.Decision) []quota.Decision {
	if len(ms) == 0 {
		return nil
	}
	out := make([]quota.Decision, len(ms))
	for i, m := range ms {
		out[i] = toDecision(m)
	}
	return out
}
