package quota

import "time"

// Region names one region of the deployment, for example "us-east".
type Region string

// Algorithm is how a policy counts.
type Algorithm uint8

// The algorithms a policy can name.
const (
	// TokenBucket allows a burst of Capacity and a sustained Refill per Period:
	// at most Capacity + Refill*T/Period tokens in any interval of length T.
	TokenBucket Algorithm = iota + 1
	// SlidingLog allows exactly Capacity tokens in any interval of length Period.
	SlidingLog
	// Concurrency allows Capacity holders at a time.
	Concurrency
)

func (a Algorithm) String() string {
	switch a {
	case TokenBucket:
		return "token-bucket"
	case SlidingLog:
		return "sliding-log"
	case Concurrency:
		return "concurrency"
	}
	return "unknown"
}

// Scope says whose limit the numbers of a policy are.
type Scope uint8

const (
	// Global limits are split between the regions; it is the default.
	Global Scope = iota
	// Regional limits hold in full in each region.
	Regional
)

func (s Scope) String() string {
	if s == Regional {
		return "regional"
	}
	return "global"
}

// FailureMode is what a policy decides when its store cannot answer in time.
type FailureMode uint8

// The failure modes. There is no default: every policy states its own.
const (
	// FailLocal decides by an in-memory bucket that holds this node's part of
	// the region's share.
	FailLocal FailureMode = iota + 1
	// FailOpen admits.
	FailOpen
	// FailClosed denies with reason StoreUnavailable.
	FailClosed
)

func (m FailureMode) String() string {
	switch m {
	case FailLocal:
		return "local"
	case FailOpen:
		return "open"
	case FailClosed:
		return "closed"
	}
	return "unset"
}

// MissingKey is what happens when a request matches a policy but lacks one of
// the attributes that the policy counts by.
type MissingKey uint8

const (
	// MissingSkip leaves the policy out of the decision; it is the default.
	MissingSkip MissingKey = iota
	// MissingDeny denies the request, so that leaving out an attribute is no way around a limit.
	MissingDeny
	// MissingShared counts all such requests on one quota, with the absent part empty.
	MissingShared
)

func (m MissingKey) String() string {
	switch m {
	case MissingDeny:
		return "deny"
	case MissingShared:
		return "shared"
	}
	return "skip"
}

// Enforcement is where a policy is decided.
type Enforcement uint8

const (
	// Exact decides every check in the region's store; it is the default.
	Exact Enforcement = iota
	// Leased decides from tokens that a node took in advance.
	Leased
)

func (e Enforcement) String() string {
	if e == Leased {
		return "leased"
	}
	return "exact"
}

// PartitionMode is what a region does with its share when it cannot reach the
// coordinator.
type PartitionMode uint8

const (
	// Hold keeps the whole share for as long as the partition lasts; nothing of
	// it is given to others meanwhile. It is the default.
	Hold PartitionMode = iota
	// Strict falls back to the floor when the region's lease ends, so that the
	// rest can be given to others. With the coordinator away all regions fall back.
	Strict
)

func (m PartitionMode) String() string {
	if m == Strict {
		return "strict"
	}
	return "hold"
}

// SplitStrategy says where the weights of a split come from.
type SplitStrategy uint8

const (
	// SplitByDemand weighs the regions by the traffic they admitted; it is the default.
	SplitByDemand SplitStrategy = iota
	// SplitEqual gives every region the same weight.
	SplitEqual
	// SplitExplicit takes the weights that the policy states.
	SplitExplicit
)

func (s SplitStrategy) String() string {
	switch s {
	case SplitEqual:
		return "equal"
	case SplitExplicit:
		return "explicit"
	}
	return "demand"
}

// Split is how a global limit is divided between the regions.
type Split struct {
	Strategy SplitStrategy
	// FloorPercent is the part of the limit that the floors of all regions sum
	// to, in percent of the limit (0 to 100). Nil means DefaultFloorPercent.
	FloorPercent *float64
	OnPartition  PartitionMode
	// Weights are relative; they need not sum to anything. Only with SplitExplicit.
	Weights map[Region]float64
}

// DefaultFloorPercent is the part of a limit that is reserved as floors when
// the policy does not say.
const DefaultFloorPercent = 20

// Floor returns the percentage in force.
func (s Split) Floor() float64 {
	if s.FloorPercent != nil {
		return *s.FloorPercent
	}
	return DefaultFloorPercent
}

// Condition is one attribute that must hold for a policy to match. Pattern is
// an exact value, a prefix followed by "*", or "*" alone, which any value that
// is present satisfies.
type Condition struct {
	Attribute string
	Pattern   string
}

// Policy is one rule, as validated. A *Policy that has been handed to an index
// or a store is shared and must not be changed.
type Policy struct {
	ID string
	// Match holds the conditions, sorted by attribute; all must hold. None
	// matches every request.
	Match []Condition
	// Key holds the attributes to count by, in the order of the document. None
	// makes one quota of the whole policy.
	Key       []string
	Algorithm Algorithm
	Limit     Limit
	Scope     Scope
	Split     Split

	OnStoreFailure FailureMode
	// StoreDeadline bounds the wait for the store in one check; zero means
	// DefaultStoreDeadline.
	StoreDeadline time.Duration
	Enforcement   Enforcement
	MissingKey    MissingKey
	// SubBuckets spreads one key over this many slots; zero and one do not.
	SubBuckets int
	// LeaseTTL is how long the holder of a concurrency slot keeps it without renewing.
	LeaseTTL time.Duration
	// Priority orders the shedding of load; higher is shed later.
	Priority int
	// Shadow policies are decided and reported but never enforced.
	Shadow bool
	// Unlimited policies admit without asking any store.
	Unlimited bool
}

// DefaultStoreDeadline is how long a check waits for the store.
const DefaultStoreDeadline = 5 * time.Millisecond

// Override replaces the numbers of a policy for one key. Overrides are kept in
// the policy store beside the document, never in it.
type Override struct {
	Policy string
	// Key holds the values of the policy's key attributes, in the order of Policy.Key.
	Key []string
	// Limit replaces the policy's limit. The window of a sliding log cannot be
	// overridden: Period must equal the policy's.
	Limit     Limit
	Unlimited bool
	// Expires ends the override; zero means never.
	Expires time.Time
}
