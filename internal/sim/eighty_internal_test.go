package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// falseDenials is what three ways to enforce one limit deny of the same requests, in
// percent, at a load that the limit holds: all of it is wrong. "A bucket" is the
// central one, which is all that a split is compared with.
type falseDenials struct {
	traffic                     string
	burst                       int64
	static, weir, bucket        float64
	violations, sharesOverLimit int
}

// Fault list 35: a bucket that is cut into parts makes requests wait, or denies them, that
// the whole bucket would have admitted, whatever the arrivals are. How much that is at 80 %
// load, for parts that stay, for parts that follow demand, and for the whole bucket, is
// what docs/sim.md publishes; `go test -v -run EightyPercent ./internal/sim` prints it.
func TestFalseDenialsAtEightyPercentLoad(t *testing.T) {
	t.Parallel()
	traffic := []struct {
		name  string
		parts parts
		// atMost is what the split may deny of the requests at a burst of one second.
		atMost float64
	}{
		{"even: 20, 20, 20, 20 %", parts{0.2, 0.2, 0.2, 0.2}, 0.1},
		{"uneven: 40, 24, 10, 6 %", parts{0.4, 0.24, 0.1, 0.06}, 0.1},
	}
	var table strings.Builder
	table.WriteString("\n| traffic | burst | static % | weir % | one bucket % |\n|---|---|---|---|---|\n")
	for _, tr := range traffic {
		for _, burst := range []int64{50, 200, 1000} {
			got := measureEighty(t, tr.name, tr.parts, burst)
			fmt.Fprintf(&table, "| %s | %d | %.3f | **%.3f** | %.3f |\n", got.traffic, got.burst, got.static, got.weir, got.bucket)
			if got.violations > 0 || got.sharesOverLimit > 0 {
				t.Errorf("%s, burst %d: the limit was broken in %d ticks, shares were over it %d times", got.traffic, got.burst, got.violations, got.sharesOverLimit)
			}
			if got.bucket > got.static || got.bucket > got.weir {
				t.Errorf("%s, burst %d: the whole bucket denies %v %%, more than its parts", got.traffic, got.burst, got.bucket)
			}
			// Parts that follow demand are no worse than parts that stay, but for what moving costs.
			if got.weir > got.static+0.5 {
				t.Errorf("%s, burst %d: weir denies %v %%, static parts %v %%", got.traffic, got.burst, got.weir, got.static)
			}
			if burst == 1000 && got.weir > tr.atMost {
				t.Errorf("%s, burst %d: weir denies %v %%, want at most %v", got.traffic, got.burst, got.weir, tr.atMost)
			}
		}
	}
	t.Log(table.String())
}

func measureEighty(t *testing.T, name string, demand parts, burst int64) falseDenials {
	t.Helper()
	o := Defaults()
	o.Burst, o.Algorithms = burst, []string{Static, Weir}
	whole := span{0, 300}
	s := Scenario{
		Name: "eighty", regions: fourRegions, duration: whole.to, event: whole, loss: ordinaryLoss, demand: during(whole, demand, demand),
	}
	out := falseDenials{traffic: name, burst: burst}
	denied := func(of tally) float64 { return percent(of.offered-of.admitted, of.offered) / float64(o.Seeds) }
	for n := range o.Seeds {
		c, err := newCourse(s, o, o.Seed+uint64(n))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(context.Background()); err != nil {
			t.Fatal(err)
		}
		out.static += denied(c.entrants[0].tally)
		out.weir += denied(c.entrants[1].tally)
		out.bucket += denied(c.ideal.tally)
		for _, e := range c.entrants {
			out.violations += e.violations
			if e.world.base().over > 0 {
				out.sharesOverLimit++
			}
		}
	}
	return out
}
