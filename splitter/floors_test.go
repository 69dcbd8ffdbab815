package splitter_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

func TestFloorsStayWithinTheirPercentage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		percent := rapid.Float64Range(0, 100).Draw(t, "percent")
		floors := splitter.Floors(nil, in.Algorithm, in.Limit, percent, in.Regions)
		total := sum(floors)
		if c, most := float64(total.Capacity), float64(in.Limit.Capacity)*percent/100; c > most*(1+1e-12) {
			t.Fatalf("floors have capacity %v of %v at %v %%", c, in.Limit.Capacity, percent)
		}
		if r, most := float64(total.Refill), float64(in.Limit.Refill)*percent/100; r > most*(1+1e-12) {
			t.Fatalf("floors refill %v of %v at %v %%", r, in.Limit.Refill, percent)
		}
		for i, f := range floors {
			if f.Capacity%quota.Token != 0 || f.Capacity < 0 || f.Refill < 0 {
				t.Fatalf("floor %v", f)
			}
			if in.Algorithm == quota.TokenBucket && in.Limit.Refill > 0 {
				if !within(f, in.Limit) || (f.Capacity > 0 && f.Refill == 0) {
					t.Fatalf("floor %v of %s breaks the rule of %v", f, in.Regions[i].Name, in.Limit)
				}
			}
		}
	})
}

func TestFloorsAreHalfEqualHalfByWeight(t *testing.T) {
	limit := quota.Limit{Capacity: 1000 * quota.Token, Refill: 1000 * quota.Token, Period: time.Minute}
	regions := []splitter.Region{{Name: "b", Weight: 3}, {Name: "a", Weight: 1}}
	got := splitter.Floors(nil, quota.TokenBucket, limit, 20, regions)
	for i, whole := range []quota.Tokens{125, 75} {
		want := quota.Share{Capacity: whole * quota.Token, Refill: whole * quota.Token}
		if got[i] != want {
			t.Errorf("%s has the floor %v, want %v", regions[i].Name, got[i], want)
		}
	}
}
