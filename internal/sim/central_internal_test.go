package sim

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

// drawLimit draws limits whose refill per microsecond is no round number.
func drawLimit(t *rapid.T, a quota.Algorithm) quota.Limit {
	l := quota.Limit{
		Capacity: quota.Tokens(rapid.Int64Range(1, 50_000).Draw(t, "capacity")),
		Period:   time.Duration(rapid.Int64Range(1, 3_000_000).Draw(t, "period")) * time.Microsecond,
	}
	if a == quota.TokenBucket {
		l.Refill = quota.Tokens(rapid.Int64Range(1, 50_000).Draw(t, "refill"))
	}
	return l
}

func TestIdealBucketIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLimit(t, quota.TokenBucket)
		c, err := newCentral(quota.TokenBucket, l, 0)
		if err != nil {
			t.Fatal(err)
		}
		perToken := big.NewRat(int64(quota.Token), 1)
		full := new(big.Rat).Quo(big.NewRat(int64(l.Capacity), 1), perToken)
		level, now := new(big.Rat).Set(full), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			dt := rapid.Int64Range(0, 2_000_000).Draw(t, "dt")
			now += dt
			gain := new(big.Rat).Mul(big.NewRat(dt, l.Period.Microseconds()), big.NewRat(int64(l.Refill), int64(quota.Token)))
			if level.Add(level, gain); level.Cmp(full) > 0 {
				level.Set(full)
			}
			n := rapid.IntRange(0, 60).Draw(t, "n")
			whole := new(big.Int).Div(level.Num(), level.Denom())
			want := min(int64(n), whole.Int64())
			level.Sub(level, big.NewRat(want, 1))
			if got := c.admit(now, n); int64(got) != want {
				t.Fatalf("at %d us %d of %d are admitted, exactly it is %d", now, got, n, want)
			}
		}
	})
}

func TestIdealLogIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLimit(t, quota.SlidingLog)
		c, err := newCentral(quota.SlidingLog, l, 0)
		if err != nil {
			t.Fatal(err)
		}
		var at []int64
		now := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 1_000_000).Draw(t, "dt")
			want := 0
			n := rapid.IntRange(0, 30).Draw(t, "n")
			for range n {
				inside := int64(0)
				for _, x := range at {
					if now-x < l.Period.Microseconds() {
						inside++
					}
				}
				if inside < l.Capacity.Whole() {
					at = append(at, now)
					want++
				}
			}
			if got := c.admit(now, n); got != want {
				t.Fatalf("at %d us %d of %d are admitted, exactly it is %d", now, got, n, want)
			}
		}
	})
}

// The envelope must be broken exactly when some interval has admitted more than
// capacity + refill x length, which here is looked for in all of them.
func TestEnvelopeFindsEveryBrokenInterval(t *testing.T) {
	seen := [2]int{}
	rapid.Check(t, func(t *rapid.T) {
		l := quota.Limit{
			Capacity: quota.Tokens(rapid.Int64Range(1, 20).Draw(t, "capacity")) * quota.Token,
			Refill:   quota.Tokens(rapid.Int64Range(1, 20).Draw(t, "refill")) * quota.Token, Period: time.Second,
		}
		c, err := newCentral(quota.TokenBucket, l, 0)
		if err != nil {
			t.Fatal(err)
		}
		var spent []entry
		now := int64(0)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			now += rapid.Int64Range(0, 500_000).Draw(t, "dt")
			n := rapid.Int64Range(0, 8).Draw(t, "n")
			spent = append(spent, entry{now, n})
			broken, sum := false, int64(0)
			for _, e := range slices.Backward(spent) {
				sum += e.n
				most := int64(l.Capacity)*1_000_000 + int64(l.Refill)*(now-e.at)
				broken = broken || sum*int64(quota.Token)*1_000_000 > most
			}
			if within := c.spend(now, n); within == broken {
				t.Fatalf("%d at %d us: within the envelope is %v, some interval is broken %v", n, now, within, broken)
			}
			if broken {
				seen[1]++
				return // from here on the debt is carried along
			}
			seen[0]++
		}
	})
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("only one kind was drawn: %v", seen)
	}
}

func TestBucketTooLargeToBeExactIsRefused(t *testing.T) {
	l := quota.Limit{Capacity: quota.MaxTokens, Refill: quota.Token, Period: 24 * time.Hour}
	if _, err := newCentral(quota.TokenBucket, l, 0); err == nil {
		t.Error("accepted")
	}
}

func TestArrivalsArePoisson(t *testing.T) {
	rng := source(1, purposeArrivals)
	for _, mean := range []float64{0, 0.3, 5, 16, 200.5} {
		const n = 20_000
		sum, squares := 0.0, 0.0
		for range n {
			x := float64(poisson(rng, mean))
			sum, squares = sum+x, squares+x*x
		}
		average := sum / n
		variance := squares/n - average*average
		if average < mean*0.97-0.01 || average > mean*1.03+0.01 || variance < mean*0.95-0.01 || variance > mean*1.05+0.01 {
			t.Errorf("mean %v: drawn were a mean of %v and a variance of %v", mean, average, variance)
		}
	}
}
