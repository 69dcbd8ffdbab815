package quota

import (
	"math/bits"
	"time"
)

// Per returns a share whose refill is counted by one period, counted by another: the
// least that is not less.
func (s Share) Per(from, to time.Duration) Share {
	if from == to || from <= 0 || to <= 0 || s.Refill <= 0 {
		return s
	}
	hi, lo := bits.Mul64(uint64(s.Refill), uint64(to))
	if hi >= uint64(from) {
		s.Refill = MaxTokens
		return s
	}
	whole, rest := bits.Div64(hi, lo, uint64(from))
	if rest > 0 {
		whole++
	}
	s.Refill = Tokens(min(whole, uint64(MaxTokens)))
	return s
}
