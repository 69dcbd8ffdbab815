package lua

import (
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// While a change of the period has reached some stripes only, the larger rate counts,
// whatever the numbers.
func TestHeldSharesOfDifferentPeriods(t *testing.T) {
	t.Parallel()
	for _, texts := range [][]string{
		{"9:1:4000:120:2000000:0:0:0:0:0:4000:120:0:0:0", "9:2:3000:130:3000000:0:0:0:0:0:3000:130:0:0:0"},
		{"9:2:3000:130:3000000:0:0:0:0:0:3000:130:0:0:0", "9:1:4000:120:2000000:0:0:0:0:0:4000:120:0:0:0"},
	} {
		var h heldShare
		for _, text := range texts {
			if err := h.add(text, 1); err != nil {
				t.Fatal(err)
			}
		}
		r := h.report("p")
		if r.Version != 1 || r.Period != 3*time.Second || r.Share != (quota.Share{Capacity: 4000, Refill: 180}) {
			t.Errorf("%+v, want the share of 60 a second, and the lower version", r)
		}
	}
}
