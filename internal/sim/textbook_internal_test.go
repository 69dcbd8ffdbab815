package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

func TestRulesByHand(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rule   rule
		demand []float64
		want   []float64 // of a limit of 100
	}{
		{"static ignores demand", even, []float64{90, 0}, []float64{50, 50}},
		{"proportional", proportional, []float64{90, 30}, []float64{75, 25}},
		{"proportional without demand", proportional, []float64{0, 0, 0, 0}, []float64{25, 25, 25, 25}},
		{"proportional rewards who shouts", proportional, []float64{900, 50, 50}, []float64{90, 5, 5}},
		{"max-min meets all and spreads the rest", maxMin, []float64{10, 50}, []float64{30, 70}},
		{"max-min meets the modest first", maxMin, []float64{900, 10, 200}, []float64{45, 10, 45}},
		{"max-min without demand", maxMin, []float64{0, 0}, []float64{50, 50}},
		{"max-min of large ones", maxMin, []float64{70, 80, 90, 20}, []float64{80. / 3, 80. / 3, 80. / 3, 20}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.rule(tc.demand, 100)
			for i := range got {
				if math.Abs(100*got[i]-tc.want[i]) > 1e-9 {
					t.Fatalf("parts %v, want %v of 100", got, tc.want)
				}
			}
		})
	}
}

func TestDividedSharesSumToTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		demand := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 12).Draw(t, "demand")
		l := quota.Limit{
			Capacity: quota.Tokens(rapid.Int64Range(1, 1e12).Draw(t, "capacity")),
			Refill:   quota.Tokens(rapid.Int64Range(1, 1e12).Draw(t, "refill")), Period: time.Second,
		}
		for _, r := range []rule{even, proportional, maxMin} {
			var sum, log quota.Share
			for _, s := range divideLimit(quota.TokenBucket, l, r(demand, l.PerSecond())) {
				if s.Capacity < 0 || s.Refill < 0 {
					t.Fatalf("share %v", s)
				}
				sum = sum.Add(s)
			}
			for _, s := range divideLimit(quota.SlidingLog, l, r(demand, l.PerSecond())) {
				log = log.Add(s)
			}
			if sum != l.Share() || log.Capacity != quota.Tokens(l.Capacity.Whole())*quota.Token {
				t.Fatalf("sums are %v and %v, the limit is %v", sum, log, l)
			}
		}
	})
}

// pair is two plain regions and the envelope of their limit.
type pair struct {
	t        *testing.T
	a, b     *store
	fleet    fleet
	envelope *central
	total    int
	broken   bool
}

func newPair(t *testing.T, a quota.Algorithm, l quota.Limit) *pair {
	t.Helper()
	p := &quota.Policy{ID: policyID, Algorithm: a, Limit: l}
	x := &pair{t: t}
	x.fleet.limit = l.Share()
	half := quota.Share{Capacity: l.Capacity / 2, Refill: l.Refill / 2}
	x.a, x.b = newPlainStore(p, half, func() {}), newPlainStore(p, half, func() {})
	x.fleet.stores = []*store{x.a, x.b}
	x.a.onShare, x.b.onShare = x.fleet.checkShares, x.fleet.checkShares
	var err error
	if x.envelope, err = newCentral(a, l, epoch); err != nil {
		t.Fatal(err)
	}
	return x
}

// take offers far more than there is at a time in seconds, and returns what was admitted.
func (x *pair) take(s *store, seconds float64) int {
	x.t.Helper()
	at, n := epoch+int64(seconds*1e6), 0
	for range 150 {
		k, err := s.admit(at, 1)
		if err != nil {
			x.t.Fatal(err)
		}
		n += k
	}
	x.total += n
	x.broken = !x.envelope.spend(at, int64(n)) || x.broken
	return n
}

func tokens(capacity, refill int64) quota.Share {
	return quota.Share{Capacity: quota.Tokens(capacity) * quota.Token, Refill: quota.Tokens(refill) * quota.Token}
}

var hundred = quota.Limit{Capacity: 100 * quota.Token, Refill: 10 * quota.Token, Period: time.Second}

// B is told 90/9 at once, A's 10/1 is late by five seconds. Nobody has touched B.
func TestPushedSharesOutOfOrderBreakTheEnvelope(t *testing.T) {
	x := newPair(t, quota.TokenBucket, hundred)
	x.b.set(tokens(90, 9))
	got := []int{x.take(x.a, 0), x.take(x.b, 0), x.take(x.a, 5), x.take(x.b, 5)}
	if !slices.Equal(got, []int{50, 90, 25, 45}) || x.total != 210 {
		t.Errorf("admitted %v, by hand it is 50, 90, 25, 45", got)
	}
	if !x.broken || math.Abs(x.fleet.over-0.4) > 1e-9 {
		t.Errorf("the envelope is broken %v, shares are over the limit by %v; want true and 0.4", x.broken, x.fleet.over)
	}
}

// The order is right, but the share that grows brings tokens that A has spent already.
func TestPushedGrowthIsAGift(t *testing.T) {
	x := newPair(t, quota.TokenBucket, hundred)
	spent := x.take(x.a, 0)
	x.a.set(tokens(10, 1))
	x.b.set(tokens(90, 9))
	if got := x.take(x.b, 0); spent != 50 || got != 90 || !x.broken || x.fleet.over != 0 {
		t.Errorf("admitted %d and %d, envelope broken %v, shares over the limit by %v; by hand 50, 90, true, 0", spent, got, x.broken, x.fleet.over)
	}
}

// The same order with share records: what A has spent stays spent.
func TestGrantedGrowthIsNoGift(t *testing.T) {
	p := &quota.Policy{ID: policyID, Algorithm: quota.TokenBucket, Limit: hundred}
	x := newPair(t, quota.TokenBucket, hundred)
	for i, s := range []**store{&x.a, &x.b} {
		*s = newStore(p, quota.Share{}, func() {})
		(*s).initialise(epoch, "gen", true)
		x.grant(*s, 1, tokens(50, 5), 50)
		x.fleet.stores[i] = *s
	}
	spent := x.take(x.a, 0)
	x.grant(x.a, 2, tokens(10, 1), 0)
	x.grant(x.b, 2, tokens(90, 9), 0)
	if got := x.take(x.b, 0); spent != 50 || got != 50 || x.broken {
		t.Errorf("admitted %d and %d, envelope broken %v; by hand 50, 50, false", spent, got, x.broken)
	}
}

func (x *pair) grant(s *store, version int64, share quota.Share, gift int64) {
	x.t.Helper()
	err := s.apply(epoch, 1, []quota.Grant{{
		ID: quota.ID{Policy: policyID}, Version: version, Share: share, Permanent: share,
		Gift: quota.Tokens(gift) * quota.Token, Algorithm: quota.TokenBucket, Limit: hundred,
	}})
	if err != nil {
		x.t.Fatal(err)
	}
}

// A admits its 50 and shrinks to 10, B grows to 90 inside the same window.
func TestPushedWindowsOverlap(t *testing.T) {
	x := newPair(t, quota.SlidingLog, quota.Limit{Capacity: 100 * quota.Token, Period: time.Minute})
	a := x.take(x.a, 0)
	x.a.set(tokens(10, 0))
	x.b.set(tokens(90, 0))
	if b := x.take(x.b, 2); a != 50 || b != 90 || !x.broken {
		t.Errorf("admitted %d and %d, envelope broken %v; by hand 50, 90, true", a, b, x.broken)
	}
}
