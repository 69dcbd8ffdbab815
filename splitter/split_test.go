package splitter_test

import (
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

// drawInput draws a quota with any numbers a policy may state, and floors as
// Floors computes them. The present split is either nothing, or an earlier result.
func drawInput(t *rapid.T) splitter.Input {
	in := splitter.Input{
		Algorithm: rapid.SampledFrom([]quota.Algorithm{quota.TokenBucket, quota.SlidingLog}).Draw(t, "algorithm"),
		Urgent:    rapid.Bool().Draw(t, "urgent"),
	}
	in.Limit.Capacity = drawTokens(t, "capacity")
	in.Limit.Period = time.Duration(rapid.Int64Range(1, int64(24*time.Hour/time.Microsecond)).Draw(t, "period")) * time.Microsecond
	if in.Algorithm == quota.TokenBucket {
		in.Limit.Refill = drawTokens(t, "refill")
	}
	n := rapid.OneOf(rapid.IntRange(1, 6), rapid.IntRange(1, 50)).Draw(t, "regions")
	in.Regions = make([]splitter.Region, n)
	for i := range in.Regions {
		in.Regions[i].Name = quota.Region(fmt.Sprintf("r%02d", i))
		in.Regions[i].Weight = drawRate(t, "weight")
	}
	floors := splitter.Floors(nil, in.Algorithm, in.Limit, rapid.Float64Range(0, 100).Draw(t, "floor"), in.Regions)
	for i := range in.Regions {
		in.Regions[i].Floor = floors[i]
	}
	drawDemand(t, &in)
	if rapid.Bool().Draw(t, "has present") {
		present, _ := splitter.Split(nil, in)
		for i := range in.Regions {
			in.Regions[i].Present = present[i]
			in.Regions[i].Bound = present[i]
		}
		drawDemand(t, &in)
	}
	for i := range in.Regions {
		if rapid.IntRange(0, 9).Draw(t, "silent") == 0 {
			in.Regions[i].Silent = true
			if rapid.Bool().Draw(t, "other bound") {
				in.Regions[i].Bound = quota.Share{Capacity: drawTokens(t, "bound"), Refill: drawTokens(t, "bound")}
			}
		}
	}
	return in
}

func drawDemand(t *rapid.T, in *splitter.Input) {
	for i := range in.Regions {
		in.Regions[i].Demand = drawRate(t, "demand")
		in.Regions[i].Peak = drawRate(t, "peak")
	}
}

func drawTokens(t *rapid.T, label string) quota.Tokens {
	return quota.Tokens(rapid.OneOf(
		rapid.Int64Range(0, 20), rapid.Int64Range(0, 20_000),
		rapid.Map(rapid.Int64Range(0, 5000), func(x int64) int64 { return x * 1000 }),
		rapid.Int64Range(0, int64(quota.MaxTokens)), rapid.Just(int64(quota.MaxTokens)),
	).Draw(t, label))
}

func drawRate(t *rapid.T, label string) float64 {
	return rapid.OneOf(
		rapid.Just(0.0), rapid.Float64Range(0, 1), rapid.Float64Range(0, 1000), rapid.Float64Range(0, 1e13),
		rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, math.MaxFloat64, math.SmallestNonzeroFloat64}),
	).Draw(t, label)
}

func sum(shares []quota.Share) (s quota.Share) {
	for _, x := range shares {
		s = s.Add(x)
	}
	return s
}

// within reports c <= r*C/R + one token, exactly.
func within(s quota.Share, l quota.Limit) bool {
	lhs := new(big.Int).Mul(big.NewInt(int64(s.Capacity-quota.Token)), big.NewInt(int64(l.Refill)))
	rhs := new(big.Int).Mul(big.NewInt(int64(s.Refill)), big.NewInt(int64(l.Capacity)))
	return lhs.Cmp(rhs) <= 0
}

func TestSplitHoldsItsRulesForAnyInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		shares, changed := splitter.Split(nil, in)
		if got := sum(shares); got != in.Limit.Share() {
			t.Fatalf("sum is %v, limit %v: %v", got, in.Limit.Share(), shares)
		}
		differs, fractions := false, 0
		for i, s := range shares {
			r := in.Regions[i]
			if !r.Floor.Within(s) {
				t.Fatalf("%s has %v, under its floor %v", r.Name, s, r.Floor)
			}
			differs = differs || s != r.Present
			if s.Capacity%quota.Token != 0 {
				fractions++
			}
			if in.Algorithm != quota.TokenBucket || in.Limit.Refill == 0 {
				continue
			}
			if !within(s, in.Limit) {
				t.Fatalf("%s: capacity %v is more than its part %v of %v and a token", r.Name, s.Capacity, s.Refill, in.Limit)
			}
			if s.Capacity > 0 && s.Refill == 0 {
				t.Fatalf("%s: capacity %v and no refill", r.Name, s.Capacity)
			}
			if splitter.Fit(in.Algorithm, in.Limit, s) != s {
				t.Fatalf("%s: Fit changes %v", r.Name, s)
			}
		}
		if differs != changed {
			t.Fatalf("changed is %v, but shares differ: %v", changed, differs)
		}
		if fractions > 1 {
			t.Fatalf("%d regions have a fraction of a token of capacity", fractions)
		}
	})
}

func TestSplitIgnoresTheOrderOfRegions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		want, _ := splitter.Split(nil, in)
		perm := rapid.Permutation(indices(len(in.Regions))).Draw(t, "order")
		other := in
		other.Regions = make([]splitter.Region, len(perm))
		for i, p := range perm {
			other.Regions[i] = in.Regions[p]
		}
		got, _ := splitter.Split(nil, other)
		for i, p := range perm {
			if got[i] != want[p] {
				t.Fatalf("%s gets %v in one order and %v in another", in.Regions[p].Name, want[p], got[i])
			}
		}
	})
}

func TestSplitMeetsEveryDemandThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 10).Draw(t, "regions")
		in := splitter.Input{Algorithm: quota.TokenBucket, Urgent: rapid.Bool().Draw(t, "urgent")}
		in.Limit = quota.Limit{
			Capacity: quota.Tokens(rapid.Int64Range(int64(2*n), 1<<40).Draw(t, "capacity")) * quota.Token,
			Refill:   quota.Tokens(rapid.Int64Range(int64(100*n), int64(quota.MaxTokens)).Draw(t, "refill")),
			Period:   time.Minute,
		}
		in.Regions = make([]splitter.Region, n)
		for i := range in.Regions {
			in.Regions[i].Name = quota.Region(fmt.Sprint("r", i))
			in.Regions[i].Weight = rapid.Float64Range(0.1, 1).Draw(t, "weight")
		}
		floors := splitter.Floors(nil, in.Algorithm, in.Limit, quota.DefaultFloorPercent, in.Regions)
		present, _ := splitter.Split(nil, in)
		left := float64(in.Limit.Refill)
		for i := range in.Regions {
			in.Regions[i].Floor, in.Regions[i].Present = floors[i], present[i]
			left -= float64(floors[i].Refill)
		}
		left -= float64(n) // demands are rounded up to milli-tokens
		for i := range in.Regions {
			r := &in.Regions[i]
			// What fits, and is within gamma of what the region has.
			most := min(float64(floors[i].Refill)+left, 4*float64(max(r.Present.Refill, in.Limit.Refill/quota.Tokens(n))))
			milli := math.Floor(rapid.Float64Range(0, most).Draw(t, "demand"))
			r.Demand = milli / 1000 / 60
			r.Peak = r.Demand
			left -= max(0, milli-float64(floors[i].Refill))
		}
		shares, _ := splitter.Split(nil, in)
		for i, s := range shares {
			if has, wants := float64(s.Refill), in.Regions[i].Demand*60*1000; has < wants*(1-1e-12)-1e-3 {
				t.Fatalf("%s offers %v and gets %v of %v: %v", in.Regions[i].Name, wants, has, in.Limit.Refill, shares)
			}
			if s.Capacity < quota.Token {
				t.Fatalf("%s can admit nothing: %v", in.Regions[i].Name, s)
			}
		}
	})
}

// More demand in one region must not cost that region anything. Where the sum
// passes the limit, the split goes over to max-min with 5 % slack for everyone,
// which is the tolerance here.
func TestSplitRewardsNoRegionForAskingLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := splitter.Input{
			Algorithm: quota.TokenBucket,
			Limit:     quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Second},
			Regions:   make([]splitter.Region, rapid.IntRange(2, 8).Draw(t, "regions")),
		}
		for i := range in.Regions {
			in.Regions[i] = splitter.Region{Name: quota.Region(fmt.Sprint("r", i)), Weight: 1, Demand: rapid.Float64Range(0, 500).Draw(t, "demand")}
		}
		before, _ := splitter.Split(nil, in)
		in.Regions[0].Demand += rapid.Float64Range(0, 500).Draw(t, "more")
		after, _ := splitter.Split(nil, in)
		if after[0].Refill < before[0].Refill-in.Limit.Refill/20-1 {
			t.Fatalf("asking more took the region from %v to %v", before[0], after[0])
		}
	})
}

// A region that shouts takes only what others do not ask for.
func TestSplitProtectsModestRegions(t *testing.T) {
	in := equal(quota.TokenBucket, quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Second}, 4)
	for i, d := range []float64{1e9, 200, 200, 200} {
		in.Regions[i].Demand = d
	}
	shares, _ := splitter.Split(nil, in)
	for _, s := range shares[1:] {
		if s.Refill < 200*quota.Token {
			t.Fatalf("a victim gets %v: %v", s.Refill, shares)
		}
	}
}

func TestSplitLeavesASplitThatFits(t *testing.T) {
	in := equal(quota.TokenBucket, quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Second}, 3)
	for step := range 100 {
		for i := range in.Regions {
			in.Regions[i].Demand = 250 + 20*math.Sin(float64(step*(i+1)))
			in.Regions[i].Peak = 270
		}
		shares, changed := splitter.Split(nil, in)
		if changed {
			t.Fatalf("step %d: demand that fits moved the split to %v", step, shares)
		}
	}
}

// A steady demand just above a share would be denied for ever if the dead band
// hid it, although there is enough for everybody.
func TestSplitHasNoDeadBandForWhatCanBeMet(t *testing.T) {
	in := equal(quota.TokenBucket, quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Second}, 4)
	in.Regions[2].Demand = 250.5
	shares, changed := splitter.Split(nil, in)
	if !changed || shares[2].Refill < 250_500 {
		t.Fatalf("demand 250.5 of 250 stays short: %v", shares)
	}
}

// A limit smaller than the number of regions stays usable from any of them.
func TestSplitOfTinyLimitsStaysUsable(t *testing.T) {
	for _, n := range []int{5, 50} {
		for _, a := range []quota.Algorithm{quota.TokenBucket, quota.SlidingLog} {
			t.Run(fmt.Sprintf("3 per second, %d regions, %s", n, a), func(t *testing.T) {
				limit := quota.Limit{Capacity: 3 * quota.Token, Refill: 3 * quota.Token, Period: time.Second}
				if a == quota.SlidingLog {
					limit.Refill = 0
				}
				in := equal(a, limit, n)
				for busy := range in.Regions {
					for range 4 { // gamma bounds what one run moves
						shares := splitWithDemand(t, &in, busy, 3)
						for i, s := range shares {
							if i != busy && a == quota.TokenBucket && (s.Capacity == 0) != (s.Refill == 0) {
								t.Fatalf("%v holds what it cannot use", s)
							}
						}
					}
					if has := in.Regions[busy].Present; has != limit.Share() {
						t.Fatalf("region %d alone offers 3/s and gets %v", busy, has)
					}
				}
			})
		}
	}
}

func splitWithDemand(t *testing.T, in *splitter.Input, busy int, rate float64) []quota.Share {
	t.Helper()
	for i := range in.Regions {
		in.Regions[i].Demand, in.Regions[i].Peak = 0, 0
	}
	in.Regions[busy].Demand, in.Regions[busy].Peak = rate, rate
	shares, _ := splitter.Split(nil, *in)
	if got := sum(shares); got != in.Limit.Share() {
		t.Fatalf("sum %v", got)
	}
	for i, s := range shares {
		in.Regions[i].Present = s
	}
	return shares
}

func TestSilentRegionsKeepTheirBound(t *testing.T) {
	in := equal(quota.TokenBucket, quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Second}, 3)
	in.Regions[0].Silent = true
	in.Regions[0].Bound = in.Regions[0].Present
	in.Regions[1].Demand, in.Regions[2].Demand = 600, 50
	shares, _ := splitter.Split(nil, in)
	if shares[0] != in.Regions[0].Present {
		t.Fatalf("the silent region went from %v to %v", in.Regions[0].Present, shares[0])
	}
}

// equal returns n regions of equal weight with the split of no demand.
func equal(a quota.Algorithm, l quota.Limit, n int) splitter.Input {
	in := splitter.Input{Algorithm: a, Limit: l, Regions: make([]splitter.Region, n)}
	for i := range in.Regions {
		in.Regions[i].Name = quota.Region(fmt.Sprintf("r%02d", i))
		in.Regions[i].Weight = 1
	}
	floors := splitter.Floors(nil, a, l, quota.DefaultFloorPercent, in.Regions)
	for i := range in.Regions {
		in.Regions[i].Floor = floors[i]
	}
	present, _ := splitter.Split(nil, in)
	for i := range in.Regions {
		in.Regions[i].Present = present[i]
	}
	return in
}

func indices(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func BenchmarkSplit(b *testing.B) {
	for _, n := range []int{3, 5, 50} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			in := equal(quota.TokenBucket, quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Minute}, n)
			for i := range in.Regions {
				in.Regions[i].Demand = 15 / float64(i+1)
			}
			var dst []quota.Share
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = splitter.Split(dst, in)
			}
		})
	}
}

func BenchmarkSplit10kPolicies(b *testing.B) {
	in := equal(quota.TokenBucket, quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Minute}, 5)
	for i := range in.Regions {
		in.Regions[i].Demand = 15 / float64(i+1)
	}
	var dst []quota.Share
	for b.Loop() {
		for range 10_000 {
			dst, _ = splitter.Split(dst, in)
		}
	}
}
