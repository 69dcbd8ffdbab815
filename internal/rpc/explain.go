package rpc

import (
	"google.golang.org/protobuf/types/known/durationpb"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/quota"
)

func fromExplanation(e *quota.Explanation) *weirv1.ExplainResponse {
	out := &weirv1.ExplainResponse{
		Allowed:  &e.Allowed,
		Revision: e.Revision,
		Policies: make([]*weirv1.PolicyExplanation, len(e.Policies)),
	}
	for i := range e.Policies {
		out.Policies[i] = fromPolicyExplanation(&e.Policies[i])
	}
	return out
}

func fromPolicyExplanation(p *quota.PolicyExplanation) *weirv1.PolicyExplanation {
	out := &weirv1.PolicyExplanation{
		PolicyId: p.PolicyID,
		Matched:  &p.Matched,
		WhyNot:   p.WhyNot,
		Scope:    p.Scope.String(),
	}
	if !takesPart(p) {
		return out
	}
	var block decisionBlock
	block.fill(&p.Decision)
	out.Decision = &block.message
	out.Suggestion = p.Suggestion
	if p.Bucket != "" {
		stripe := int32(p.Stripe)
		out.BucketKey, out.Stripe = p.Bucket, &stripe
	}
	if p.Version != 0 {
		out.Share = fromShare(p.Share)
		out.ShareVersion = p.Version
		out.ShareAge = optionalDuration(p.ShareAge)
		if p.Leased {
			out.Permanent, out.LeaseLeft = fromShare(p.Permanent), durationpb.New(p.LeaseLeft)
		}
	}
	return out
}

// takesPart is false for a policy that was looked at and left out.
func takesPart(p *quota.PolicyExplanation) bool { return p.Matched && p.WhyNot == "" }

func toExplanation(m *weirv1.ExplainResponse) quota.Explanation {
	out := quota.Explanation{Allowed: m.GetAllowed(), Revision: m.GetRevision()}
	for _, p := range m.GetPolicies() {
		e := quota.PolicyExplanation{
			PolicyID:   p.GetPolicyId(),
			Matched:    p.GetMatched(),
			WhyNot:     p.GetWhyNot(),
			Scope:      quota.Global,
			Bucket:     p.GetBucketKey(),
			Stripe:     int(p.GetStripe()),
			Share:      toShare(p.GetShare()),
			Version:    p.GetShareVersion(),
			ShareAge:   p.GetShareAge().AsDuration(),
			Suggestion: p.GetSuggestion(),
			Leased:     p.GetPermanent() != nil,
			Permanent:  toShare(p.GetPermanent()),
			LeaseLeft:  p.GetLeaseLeft().AsDuration(),
		}
		if p.GetScope() == quota.Regional.String() {
			e.Scope = quota.Regional
		}
		if p.GetDecision() != nil {
			e.Decision = toDecision(p.GetDecision())
		}
		out.Policies = append(out.Policies, e)
	}
	return out
}
