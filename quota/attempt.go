package quota

import "time"

// Attempt is one atomic decision over quotas that share a stripe: all of them
// are charged, or none.
type Attempt struct {
	Stripe int
	// Cost is in tokens, at least one whole token's worth is usual; zero asks without charging.
	Cost    Tokens
	Entries []Entry
	// Peek decides without charging.
	Peek bool
	// RequestID, when set, makes the attempt idempotent for IdempotencyTTL: a
	// repeat returns the first outcome and charges nothing.
	RequestID string
}

// IdempotencyTTL is how long a request id is remembered.
const IdempotencyTTL = 60 * time.Second

// Entry is one quota of an attempt.
type Entry struct {
	// Bucket is the store key of the quota, ShareKey that of the policy's share
	// record on the same stripe; an empty ShareKey means regional numbers.
	Bucket   string
	ShareKey string

	Algorithm Algorithm
	// Limit is the quota's global limit after any override. For regional
	// numbers it is enforced as it stands.
	Limit Limit
	// Base is the policy's own limit, which share records are parts of. It
	// differs from Limit only for an overridden key, whose share is scaled by
	// Limit over Base.
	Base Limit
	// Floor is this region's floor of Base: what it may use when the stripe has
	// no share record of the policy yet.
	Floor Share
	// Shadow entries are decided and charged on their own; they stop nobody.
	Shadow bool
}

// Outcome answers an attempt.
type Outcome struct {
	// Allowed is true when every entry that is not a shadow allows.
	Allowed bool
	// Verdicts has one element per entry, in order.
	Verdicts []Verdict
	// At is the store's clock in microseconds since the Unix epoch. A refund
	// hands it back so that a log drops exactly the entries of this attempt.
	At int64
	// Replayed is true when the outcome was remembered from an earlier attempt with the same request id.
	Replayed bool
}

// Verdict is what one quota says.
type Verdict struct {
	Allowed bool
	// NeverFits is true when the cost is above the limit's capacity.
	NeverFits bool
	// Level is what could be spent at once after this attempt.
	Level Tokens
	// RetryAfter is the wait until Cost fits; zero when allowed or never.
	RetryAfter time.Duration
	// ResetAfter is the wait until the quota is full again.
	ResetAfter time.Duration
	// Version is that of the share record in force, zero for regional numbers and
	// for a floor that no grant has replaced yet. Share is what the record says;
	// only a Peek fills it in.
	Version int64
	Share   Share
	// Tracked is whether that record is the key's own: it is tracked.
	Tracked bool
}

// Refund gives back tokens of one quota. At, when not zero, is the Outcome.At of
// the attempt that took them; a log then drops exactly those entries, else its oldest.
type Refund struct {
	Entry  Entry
	Amount Tokens
	At     int64
	// RequestID, when set, is the Attempt.RequestID whose remembered outcome is
	// forgotten together with the refund: a repeat is decided anew instead of
	// being told of a charge that no longer exists.
	RequestID string
}
