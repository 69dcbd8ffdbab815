package chaos_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// allIntervals is the definition: every interval from a sending to an answer.
func allIntervals(algorithm quota.Algorithm, limit quota.Limit, calls []call) float64 {
	most := math.Inf(-1)
	for _, first := range calls {
		for _, last := range calls {
			a, b := first.sent, last.answered
			if b < a || algorithm == quota.SlidingLog && b-a >= limit.Period.Microseconds() {
				continue
			}
			inside := 0
			for _, c := range calls {
				if c.sent >= a && c.answered <= b {
					inside++
				}
			}
			if inside == 0 {
				continue
			}
			allowed := float64(limit.Capacity) / 1000
			if algorithm == quota.TokenBucket {
				allowed += float64(limit.Refill) / 1000 * float64(b-a) / float64(limit.Period.Microseconds())
			}
			most = max(most, float64(inside)-allowed)
		}
	}
	return most
}

func TestCheckersFindTheWorstInterval(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		limit := quota.Limit{
			Capacity: quota.Tokens(1+r.IntN(5)) * quota.Token, Refill: quota.Tokens(1 + r.IntN(9000)),
			Period: time.Duration(2+r.IntN(50)) * time.Millisecond,
		}
		calls := make([]call, 1+r.IntN(40))
		for i := range calls {
			sent := r.Int64N(100_000)
			calls[i] = call{sent, sent + r.Int64N(limit.Period.Microseconds()-1)}
		}
		for _, algorithm := range []quota.Algorithm{quota.TokenBucket, quota.SlidingLog} {
			got, n := worst(endings(algorithm, limit, calls), math.MinInt64, math.MaxInt64)
			if want := allIntervals(algorithm, limit, calls); math.Abs(got-want) > 1e-6 || n != len(calls) {
				t.Fatalf("seed %d, %s: worst excess %v of %d calls, want %v of %d", seed, algorithm, got, n, want, len(calls))
			}
		}
	}
}

// A bucket that is spent as fast as it allows is at the edge of the envelope, and one
// more token is over it; slow calls hide no more than they may.
func TestCheckersAreSharp(t *testing.T) {
	t.Parallel()
	limit := quota.Limit{Capacity: 10 * quota.Token, Refill: 100 * quota.Token, Period: time.Second}
	spend := func(burst int, life int64) float64 {
		var calls []call
		for range burst {
			calls = append(calls, call{1000, 1000 + life})
		}
		for i := range int64(500) {
			at := 1000 + (i+1)*10_000 // one token each
			calls = append(calls, call{at - life, at + life})
		}
		got, _ := worst(endings(quota.TokenBucket, limit, calls), math.MinInt64, math.MaxInt64)
		return got
	}
	if got := spend(10, 0); got != 0 {
		t.Errorf("a bucket at its limit has an excess of %v", got)
	}
	if got := spend(11, 0); got != 1 {
		t.Errorf("one token too many is an excess of %v", got)
	}
	// Two calls of 2 ms are 0.4 tokens: of two too many, more than one and a half are seen.
	if got := spend(12, 2000); got < 1.6 || got > 2 {
		t.Errorf("two tokens too many in calls of 2 ms are an excess of %v", got)
	}
	// Calls of a second hide nearly everything, and accuse nobody.
	if got := spend(10, 1_000_000); got > 0 {
		t.Errorf("slow calls are an excess of %v", got)
	}
}

func TestSharesInForceAreSummed(t *testing.T) {
	t.Parallel()
	share := func(tokens quota.Tokens) quota.Share {
		return quota.Share{Capacity: tokens * quota.Token, Refill: tokens * quota.Token}
	}
	limit := share(100)
	// b grows while a is only seen at its old share before, and at its new one after.
	fine := map[string][]inForce{
		"a": {{share(60), 1, 0, 1000}, {share(20), 2, 3000, 9000}},
		"b": {{share(40), 1, 0, 1500}, {share(80), 2, 2000, 9000}},
	}
	if most, at := highestSum(fine); !most.Within(limit) || most != share(100) {
		t.Errorf("the shares in force sum to %v at %d, want 100", most, at)
	}
	// Here a still had 60 when b had 80 already.
	fine["a"][0].until = 2001
	if most, at := highestSum(fine); most != share(140) || at != 2000 {
		t.Errorf("the shares in force sum to %v at %d, want 140 at 2000", most, at)
	}
}
