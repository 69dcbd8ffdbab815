package quota

import "time"

// Source is where a decision was made.
type Source uint8

// The sources of a decision.
const (
	// SourceNone: no store was asked (unlimited, or a key is missing).
	SourceNone Source = iota
	// SourceStore: the region's store decided.
	SourceStore
	// SourceLease: tokens taken in advance decided.
	SourceLease
	// SourceFallback: the store could not answer; the policy's failure mode decided.
	SourceFallback
)

func (s Source) String() string {
	switch s {
	case SourceStore:
		return "store"
	case SourceLease:
		return "lease"
	case SourceFallback:
		return "fallback"
	}
	return "none"
}

// Reason is why a decision denied. The zero value means it did not.
type Reason uint8

// The reasons of a denial.
const (
	ReasonNone Reason = iota
	// ReasonLimit: the quota has too little left for the cost.
	ReasonLimit
	// ReasonNeverFits: the cost is above the capacity, so no wait helps.
	ReasonNeverFits
	// ReasonStoreUnavailable: the store did not answer and the policy fails closed.
	ReasonStoreUnavailable
	// ReasonMissingKey: the request lacks an attribute of the key and the policy denies that.
	ReasonMissingKey
)

func (r Reason) String() string {
	switch r {
	case ReasonLimit:
		return "LIMIT_EXCEEDED"
	case ReasonNeverFits:
		return "COST_EXCEEDS_CAPACITY"
	case ReasonStoreUnavailable:
		return "STORE_UNAVAILABLE"
	case ReasonMissingKey:
		return "MISSING_KEY"
	}
	return ""
}

// Decision is what one policy says of one request.
type Decision struct {
	PolicyID string
	Allowed  bool
	Reason   Reason
	Source   Source
	// Limit is the global capacity (or log limit) in whole tokens, after any override.
	Limit int64
	// Limits are the numbers in force, after any override.
	Limits Limit
	// Remaining is what the region could still admit at once, in whole tokens, 0..Limit.
	Remaining int64
	// RetryAfter is the true wait until the same cost fits, if nobody else
	// spends meanwhile. Zero when allowed or when it can never fit.
	RetryAfter time.Duration
	// ResetAfter is the wait until the quota is untouched again.
	ResetAfter time.Duration
	// Shadow marks a decision that is reported and not enforced.
	Shadow bool
	// Unlimited marks a decision of an unlimited policy or override.
	Unlimited bool
}

// Result is the answer to one check.
type Result struct {
	// Allowed is true when every enforced decision allows.
	Allowed   bool
	Decisions []Decision
	// Revision is the policy revision that decided.
	Revision int64
	// Replayed marks the stored answer of an earlier check with the same request id.
	Replayed bool
}
