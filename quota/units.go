package quota

import (
	"strconv"
	"time"
)

// Tokens is an amount in milli-tokens, as time.Duration is an amount of
// nanoseconds: write 5*quota.Token for five tokens. Sums of shares are exact
// because they are sums of integers.
type Tokens int64

// Token is one whole token, the price of an ordinary check.
const Token Tokens = 1000

// MaxTokens is the largest amount a policy may state (2^40 whole tokens). Twice
// this amount in milli-tokens is still an exact integer in a double, which is
// what Redis Lua computes with.
const MaxTokens = (1 << 40) * Token

// Whole returns t rounded down to whole tokens.
func (t Tokens) Whole() int64 {
	w := int64(t / Token)
	if t%Token < 0 {
		w--
	}
	return w
}

// String prints t in tokens, with up to three decimals.
func (t Tokens) String() string {
	return strconv.FormatFloat(float64(t)/float64(Token), 'f', -1, 64)
}

// Limit is the numbers of a policy, or of an override of one of its keys.
type Limit struct {
	// Capacity is the burst of a token bucket, the number of entries of a
	// sliding log, or the number of slots of a concurrency limit. Zero denies
	// always.
	Capacity Tokens
	// Refill is what a token bucket gains every Period; zero for other algorithms.
	Refill Tokens
	// Period is the refill period of a token bucket or the window of a sliding
	// log. It is a whole number of microseconds, the resolution of the store's clock.
	Period time.Duration
}

// PerSecond returns the sustained rate of a token bucket, or the average rate
// that a sliding log allows, in tokens (not milli-tokens) per second.
func (l Limit) PerSecond() float64 {
	if l.Period <= 0 {
		return 0
	}
	amount := l.Refill
	if amount == 0 {
		amount = l.Capacity
	}
	return float64(amount) / float64(Token) / l.Period.Seconds()
}

// Share is the part of a limit that a region may use. Its components have the
// units of the limit they are a part of: Refill is per the limit's Period.
type Share struct {
	Capacity Tokens
	Refill   Tokens
}

// Share returns the whole limit as a share.
func (l Limit) Share() Share { return Share{Capacity: l.Capacity, Refill: l.Refill} }

// Add returns the component-wise sum.
func (s Share) Add(o Share) Share { return Share{s.Capacity + o.Capacity, s.Refill + o.Refill} }

// Sub returns the component-wise difference, which may be negative.
func (s Share) Sub(o Share) Share { return Share{s.Capacity - o.Capacity, s.Refill - o.Refill} }

// Max returns the component-wise maximum.
func (s Share) Max(o Share) Share {
	return Share{max(s.Capacity, o.Capacity), max(s.Refill, o.Refill)}
}

// Min returns the component-wise minimum.
func (s Share) Min(o Share) Share {
	return Share{min(s.Capacity, o.Capacity), min(s.Refill, o.Refill)}
}

// Within reports whether both components of s are at most those of o.
func (s Share) Within(o Share) bool { return s.Capacity <= o.Capacity && s.Refill <= o.Refill }
