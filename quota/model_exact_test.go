package quota_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

// start is an instant of the store's clock, in microseconds since 1970.
const start = int64(1_790_000_000_123_457)

func tokens(n int64) quota.Tokens { return quota.Tokens(n) * quota.Token }

func perPeriod(capacity, refill int64, per time.Duration) quota.Limit {
	return quota.Limit{Capacity: tokens(capacity), Refill: tokens(refill), Period: per}
}

func regional(l quota.Limit) quota.Entry {
	return quota.Entry{Bucket: "k", Algorithm: quota.TokenBucket, Limit: l, Base: l}
}

func regionalLog(limit int64, window time.Duration) quota.Entry {
	l := quota.Limit{Capacity: tokens(limit), Period: window}
	return quota.Entry{Bucket: "k", Algorithm: quota.SlidingLog, Limit: l, Base: l}
}

// ask is one attempt on one quota; the model drops what has expired first, as Redis does.
func ask(tb testing.TB, m *quota.Model, now int64, e quota.Entry, cost quota.Tokens, peek bool) quota.Verdict {
	tb.Helper()
	m.Expire(now)
	out, err := m.Acquire(now, quota.Attempt{Cost: cost, Peek: peek, Entries: []quota.Entry{e}})
	if err != nil {
		tb.Fatal(err)
	}
	v := out.Verdicts[0]
	if out.Allowed != v.Allowed {
		tb.Fatalf("allowed %t, verdict %+v", out.Allowed, v)
	}
	if v.Level < 0 || v.Level > e.Limit.Capacity {
		tb.Fatalf("level %s is outside 0..%s", v.Level, e.Limit.Capacity)
	}
	return v
}

func take(tb testing.TB, m *quota.Model, now int64, e quota.Entry, cost quota.Tokens) bool {
	tb.Helper()
	return ask(tb, m, now, e, cost, false).Allowed
}

// exactBucket is a token bucket in rational arithmetic.
type exactBucket struct {
	capacity, rate, level *big.Rat // milli-tokens, milli-tokens per microsecond
	at                    int64
}

func newExactBucket(l quota.Limit) *exactBucket {
	c := new(big.Rat).SetInt64(int64(l.Capacity))
	return &exactBucket{
		capacity: c, level: new(big.Rat).Set(c),
		rate: big.NewRat(int64(l.Refill), l.Period.Microseconds()),
	}
}

func (b *exactBucket) advance(now int64) {
	gained := new(big.Rat).Mul(b.rate, new(big.Rat).SetInt64(now-b.at))
	if b.at == 0 {
		gained.SetInt64(0)
	}
	b.at = now
	b.level.Add(b.level, gained)
	if b.level.Cmp(b.capacity) > 0 {
		b.level.Set(b.capacity)
	}
}

// whole returns the level in whole milli-tokens.
func (b *exactBucket) whole() int64 {
	return new(big.Int).Div(b.level.Num(), b.level.Denom()).Int64()
}

func (b *exactBucket) take(now int64, cost quota.Tokens) bool {
	b.advance(now)
	c := new(big.Rat).SetInt64(int64(cost))
	if b.level.Cmp(c) < 0 {
		return false
	}
	b.level.Sub(b.level, c)
	return true
}

// rates are limits that a rounding error would show in.
var rates = []quota.Limit{
	perPeriod(20, 100, time.Minute),
	perPeriod(5, 7, 13*time.Second),
	perPeriod(3, 1, 24*time.Hour),
	perPeriod(2, 1, 365*24*time.Hour),
	perPeriod(3, 3, time.Second),
	perPeriod(1000, 1, time.Second),
	perPeriod(1000, 100_000, time.Second),
	perPeriod(1000, 1_000_000, time.Second),
	perPeriod(1<<40, 1<<40, 24*time.Hour),
	{Capacity: 50 * quota.Token, Refill: 333, Period: 777_777 * time.Microsecond},
	perPeriod(17, 999_983, 86_399_999_999*time.Microsecond),
}

// A bucket with regional numbers is the exact bucket: the same decisions and the
// same level, rounded down, at any sequence of touches.
func TestRegionalBucketIsTheExactBucket(t *testing.T) {
	t.Parallel()
	for _, l := range rates {
		t.Run(fmt.Sprintf("%s per %s burst %s", l.Refill, l.Period, l.Capacity), func(t *testing.T) {
			t.Parallel()
			fill := int64(float64(l.Capacity) / float64(l.Refill) * float64(l.Period.Microseconds()))
			rapid.Check(t, func(rt *rapid.T) {
				m, exact, e := quota.NewModel(), newExactBucket(l), regional(l)
				now := start
				for range rapid.IntRange(1, 60).Draw(rt, "touches") {
					step := rapid.Int64Range(0, max(2, fill/rapid.Int64Range(1, 10_000).Draw(rt, "part"))).Draw(rt, "step")
					now += step
					cost := quota.Tokens(rapid.Int64Range(0, int64(l.Capacity)/rapid.Int64Range(1, 1000).Draw(rt, "share")).Draw(rt, "cost"))
					want := exact.take(now, cost)
					v := ask(t, m, now, e, cost, false)
					if v.Allowed != want || int64(v.Level) != exact.whole() {
						rt.Fatalf("at +%d cost %s: %t with %s left, exactly %t with %s", now-start, cost, v.Allowed, v.Level, want, exact.level.FloatString(6))
					}
				}
			})
		})
	}
}

// A sole caller who waits exactly as told is admitted, and one who waits a
// microsecond less is not.
func TestRetryAfterIsExact(t *testing.T) {
	t.Parallel()
	check := func(tb testing.TB, t *rapid.T, e quota.Entry, early int64, prepare func(m *quota.Model)) {
		tb.Helper()
		m := quota.NewModel()
		prepare(m)
		now := start
		for range rapid.IntRange(1, 40).Draw(t, "touches") {
			now += rapid.Int64Range(0, 2*e.Limit.Period.Microseconds()).Draw(t, "step")
			cost := tokens(rapid.Int64Range(1, max(1, int64(e.Limit.Capacity/quota.Token))).Draw(t, "cost"))
			v := ask(tb, m, now, e, cost, false)
			if v.Allowed {
				continue
			}
			wait := v.RetryAfter.Microseconds()
			if wait < 1 {
				t.Fatalf("denied with a wait of %s", v.RetryAfter)
			}
			if before := wait - early; before > 0 && ask(tb, m, now+before, e, cost, true).Allowed {
				t.Fatalf("told to wait %d us, admitted %d us before", wait, early)
			}
			if !ask(tb, m, now+wait, e, cost, true).Allowed {
				t.Fatalf("denied after the wait of %d us that it was told: %+v then %+v", wait, v, ask(tb, m, now+wait, e, cost, true))
			}
		}
	}
	nothing := func(*quota.Model) {}
	for _, l := range rates {
		name := fmt.Sprintf("%s per %s", l.Refill, l.Period)
		t.Run("regional "+name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) { check(t, rt, regional(l), 1, nothing) })
		})
		t.Run("global "+name, func(t *testing.T) {
			t.Parallel()
			e := regional(l)
			e.ShareKey, e.Floor = "share", l.Share()
			rapid.Check(t, func(rt *rapid.T) {
				check(t, rt, e, 3, func(m *quota.Model) { m.Initialise(start, 0, "g", true) })
			})
		})
	}
	for _, window := range []time.Duration{time.Second, time.Minute, 365 * 24 * time.Hour} {
		t.Run("log "+window.String(), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) { check(t, rt, regionalLog(7, window), 1, nothing) })
		})
	}
}

// The same under shares that change between the touches, down to the microsecond
// that an accumulator may be off.
func TestRetryAfterHoldsUnderChangingShares(t *testing.T) {
	t.Parallel()
	for _, l := range rates {
		t.Run(fmt.Sprintf("%s per %s", l.Refill, l.Period), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				m := quota.NewModel()
				m.Initialise(start, 0, "g", true)
				e := regional(l)
				e.ShareKey, e.Floor = "share", l.Share()
				own := l.Capacity
				if rapid.Bool().Draw(rt, "overridden") {
					own = tokens(rapid.Int64Range(1, 5000).Draw(rt, "capacity"))
					e.Limit = quota.Limit{Capacity: own, Refill: tokens(rapid.Int64Range(1, 5000).Draw(rt, "refill")), Period: time.Minute}
				}
				now, capacity := start, l.Capacity
				for i := range rapid.IntRange(1, 40).Draw(rt, "touches") {
					now += rapid.Int64Range(0, 2*l.Period.Microseconds()).Draw(rt, "step")
					if rapid.Bool().Draw(rt, "grant") {
						capacity = quota.Tokens(rapid.Int64Range(1, int64(l.Capacity)).Draw(rt, "share"))
						share := quota.Share{Capacity: capacity, Refill: quota.Tokens(rapid.Int64Range(1, int64(l.Refill)).Draw(rt, "rate"))}
						grant := quota.Grant{Version: int64(i + 1), Algorithm: quota.TokenBucket, Limit: l, Share: share, Permanent: share, Floor: l.Share()}
						if _, err := m.Apply(now, 0, 1, "g", []string{"share"}, []quota.Grant{grant}); err != nil {
							rt.Fatal(err)
						}
					}
					room := quota.Tokens(float64(capacity) * float64(own) / float64(l.Capacity) * 0.999)
					if room < 1 {
						continue
					}
					cost := quota.Tokens(rapid.Int64Range(1, int64(room)).Draw(rt, "cost"))
					v := ask(t, m, now, e, cost, false)
					wait := v.RetryAfter.Microseconds()
					// An accumulator says what happened within half of its range, and a
					// double what a microsecond is within two centuries.
					told := float64(wait)*float64(l.Refill)/float64(l.Period.Microseconds()) < 1.9e15 && wait < 3e15
					if !v.Allowed && told && !ask(t, m, now+wait, e, cost, true).Allowed {
						rt.Fatalf("denied after the wait of %d us that it was told: %+v then %+v", wait, v, ask(t, m, now+wait, e, cost, true))
					}
				}
			})
		})
	}
}

// Long-run counts are exact to the token, however often a bucket is asked.
func TestLongRunCountsAreExact(t *testing.T) {
	t.Parallel()
	for _, l := range rates {
		for _, tries := range []int64{3, 1000, 100_000} {
			// Over four times the time to fill, asked so often, each time until denied.
			fill := int64(float64(l.Capacity) / float64(l.Refill) * float64(l.Period.Microseconds()))
			every := max(1, 4*fill/tries)
			cost := max(quota.Token, l.Capacity/50/quota.Token*quota.Token)
			m, exact, e := quota.NewModel(), newExactBucket(l), regional(l)
			var got, want int64
			for i := range tries {
				now := start + i*every
				for take(t, m, now, e, cost) {
					got++
				}
				for exact.take(now, cost) {
					want++
				}
			}
			if got != want {
				t.Errorf("%s per %s asked %d times: %d admitted, exactly %d", l.Refill, l.Period, tries, got, want)
			}
		}
	}
}

// Case 90: with the largest limit and a clock of the year 2099, ten million
// operations end at the very milli-token.
func TestNoDriftOverTenMillionOperations(t *testing.T) {
	t.Parallel()
	const year2099 = int64(4_085_000_000_000_000)
	l := perPeriod(1<<40, 1<<40, 9*24*time.Hour)
	m, e := quota.NewModel(), regional(l)
	r := rand.New(rand.NewPCG(90, 90))
	now, spent := year2099, new(big.Int)
	if !take(t, m, now, e, l.Capacity) { // from here on the bucket is never full
		t.Fatal("a full bucket denied its capacity")
	}
	const operations = 10_000_000
	attempt := quota.Attempt{Entries: []quota.Entry{e}}
	for range operations {
		now += r.Int64N(150_000)
		attempt.Cost = quota.Tokens(r.Int64N(250_000_000_000))
		out, err := m.Acquire(now, attempt)
		if err != nil {
			t.Fatal(err)
		}
		if out.Allowed {
			spent.Add(spent, big.NewInt(int64(attempt.Cost)))
		}
	}
	gained := new(big.Rat).Mul(big.NewRat(int64(l.Refill), l.Period.Microseconds()), new(big.Rat).SetInt64(now-year2099))
	left := new(big.Rat).Sub(gained, new(big.Rat).SetInt(spent))
	want := new(big.Int).Div(left.Num(), left.Denom()).Int64()
	got := ask(t, m, now, e, 0, true).Level
	if int64(got) != want {
		t.Errorf("level %d after %d operations, exactly %d: %d milli-tokens of drift", got, operations, want, int64(got)-want)
	}
}

// A sliding log admits exactly its limit in any window, however it is driven.
func TestSlidingLogIsExactInAnyWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.Int64Range(1, 12).Draw(rt, "limit")
		window := time.Duration(rapid.Int64Range(1, 5_000_000).Draw(rt, "window")) * time.Microsecond
		m, e := quota.NewModel(), regionalLog(limit, window)
		var admitted []int64
		now := start
		for range rapid.IntRange(1, 200).Draw(rt, "touches") {
			now += rapid.Int64Range(0, window.Microseconds()/rapid.Int64Range(1, 20).Draw(rt, "part")).Draw(rt, "step")
			cost := rapid.Int64Range(1, 3).Draw(rt, "cost")
			inside := int64(0)
			for _, at := range admitted {
				if now-at < window.Microseconds() {
					inside++
				}
			}
			got, want := take(t, m, now, e, tokens(cost)), inside+cost <= limit
			if got != want {
				rt.Fatalf("%d of %d in the window, cost %d: admitted %t", inside, limit, cost, got)
			}
			if got {
				for range cost {
					admitted = append(admitted, now)
				}
			}
		}
	})
}
