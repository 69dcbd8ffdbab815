package sim

import (
	"time"

	"github.com/weirhq/weir/quota"
)

// tick is how often requests arrive.
const tick = 20 * time.Millisecond

// fleet is what all algorithms have: one store per region and the network between
// them and the coordinator.
type fleet struct {
	regions []quota.Region
	limit   quota.Share
	stores  []*store
	net     network
	// cut regions are away: they have no requests and no messages.
	cut []bool
	// over is the largest excess of the sum of shares in force, as a part of the limit.
	over float64
	// changes counts the splits.
	changes int
}

func newFleet(c *course) fleet {
	return fleet{
		regions: c.regions, limit: c.policy.Limit.Share(), cut: make([]bool, len(c.regions)),
		net: network{rng: source(c.seed, purposeNetwork), loss: c.loss},
	}
}

// checkShares looks at the sum of the shares in force; it is called whenever one
// of them changes.
func (f *fleet) checkShares() {
	var sum quota.Share
	for _, s := range f.stores {
		sum = sum.Add(s.share)
	}
	f.over = max(f.over, excess(sum.Capacity, f.limit.Capacity), excess(sum.Refill, f.limit.Refill))
}

func excess(sum, limit quota.Tokens) float64 {
	if limit <= 0 || sum <= limit {
		return 0
	}
	return float64(sum-limit) / float64(limit)
}

func (f *fleet) base() *fleet { return f }

// world is one algorithm with its regions.
type world interface {
	base() *fleet
	// advance does everything that is due by an instant.
	advance(now int64) error
	// note says what a region was offered in a tick, and admitted.
	note(region, offered, admitted int)
	// setRegion and setCoordinator take a part of the world away, or bring it back.
	setRegion(now int64, region int, up bool)
	setCoordinator(now int64, up bool) error
	// past lets time go by at steady rates, without requests.
	past(from, to int64, rates []float64) error
}

// epoch is when scenarios begin, in microseconds since 1970.
const epoch int64 = 1_700_000_000_000_000

func instant(now int64) time.Time { return time.UnixMicro(now) }
