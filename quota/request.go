package quota

import "time"

// Request is one check as the caller states it, before any policy is resolved.
type Request struct {
	// Attributes describe the request: route, plan, apiKey, tenant, or any other
	// the policies name. The map is read only during the call and not kept.
	Attributes map[string]string
	// Cost is what the request spends; zero asks without spending.
	Cost Tokens
	// RequestID, when set, makes a repeat within IdempotencyTTL return the
	// first answer and charge nothing.
	RequestID string
	// Policies, when not empty, leaves every other policy out of the decision.
	Policies []string
}

// RefundRequest gives back what an earlier check took. It is not idempotent.
type RefundRequest struct {
	Attributes map[string]string
	// Amount is at least one milli-token. What does not fit under the capacity is dropped.
	Amount Tokens
	// Policies, when not empty, refunds only these.
	Policies []string
}

// Explanation says how a request would be decided now. Nothing is charged.
type Explanation struct {
	// Allowed is what a check with the same request would answer.
	Allowed  bool
	Revision int64
	// Policies has one element per policy of the revision that was considered:
	// those that match first, then the nearest that do not.
	Policies []PolicyExplanation
}

// PolicyExplanation is one policy's part of an explanation.
type PolicyExplanation struct {
	PolicyID string
	Matched  bool
	// WhyNot names the first condition that does not hold, or the attribute of
	// the key that is missing; empty when the policy takes part in the decision.
	WhyNot string
	// Decision is valid only when Matched; likewise all that follows.
	Decision Decision
	Scope    Scope
	// Bucket is the store key of the quota and Stripe where it lives.
	Bucket string
	Stripe int
	// Share is what this region may use now, from version Version of the share
	// record, applied ShareAge ago. All zero for regional numbers.
	Share    Share
	Version  int64
	ShareAge time.Duration
	// Leased is true when Share depends on the region's lease, which lasts for
	// LeaseLeft; when that is zero, Share is only what is Permanent of it.
	Leased    bool
	Permanent Share
	LeaseLeft time.Duration
	// Suggestion says what would have let the request through; empty when it is allowed.
	Suggestion string
}
