package sim

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/weirhq/weir/quota"
)

// central is one bucket or log for all regions, counted exactly in integers. It is
// both the ideal that results are measured by, which never admits too much, and the
// envelope, which is told what was admitted and notices when that was too much.
type central struct {
	limit quota.Limit
	log   bool
	// at is the instant of level and count, in microseconds.
	at int64
	// level of a bucket in milli-tokens times microseconds of the period, so that
	// no refill is ever rounded. It is below zero after more than the envelope.
	level int64
	full  int64
	// entries of a log, oldest first, and how many tokens they are together.
	entries []entry
	count   int64
}

// entry is a number of tokens admitted at one instant.
type entry struct{ at, n int64 }

// newCentral returns a full bucket, or an empty log. It refuses limits whose exact
// level does not fit an integer.
func newCentral(a quota.Algorithm, l quota.Limit, at int64) (*central, error) {
	c := &central{limit: l, log: a == quota.SlidingLog, at: at}
	hi, full := bits.Mul64(uint64(l.Capacity), uint64(l.Period.Microseconds()))
	if !c.log && (hi > 0 || full > 1<<61) {
		return nil, fmt.Errorf("a bucket of %s tokens: %w", l.Capacity, quota.ErrInvalid)
	}
	c.full = int64(full)
	c.level = c.full
	return c, nil
}

// settle brings the state up to an instant.
func (c *central) settle(now int64) {
	if c.log {
		gone := 0
		for gone < len(c.entries) && now-c.entries[gone].at >= c.limit.Period.Microseconds() {
			c.count -= c.entries[gone].n
			gone++
		}
		c.entries = c.entries[gone:]
		c.at = now
		return
	}
	hi, gain := bits.Mul64(uint64(now-c.at), uint64(c.limit.Refill))
	if hi > 0 || gain >= uint64(c.full-c.level) {
		c.level = c.full
	} else {
		c.level += int64(gain)
	}
	c.at = now
}

// room is how many whole tokens could be admitted at an instant.
func (c *central) room(now int64) int64 {
	c.settle(now)
	if c.log {
		return max(0, c.limit.Capacity.Whole()-c.count)
	}
	return max(0, c.level) / (int64(quota.Token) * c.limit.Period.Microseconds())
}

// spend notes that tokens were admitted, whether or not there was room, and reports
// whether that stays within the limit.
func (c *central) spend(now, n int64) bool {
	c.settle(now)
	if c.log {
		if n > 0 {
			c.entries = append(c.entries, entry{now, n})
			c.count += n
		}
		return c.count <= c.limit.Capacity.Whole()
	}
	c.level -= n * int64(quota.Token) * c.limit.Period.Microseconds()
	return c.level >= 0
}

// admit admits as many of n as there is room for.
func (c *central) admit(now int64, n int) int {
	k := min(int64(n), c.room(now))
	c.spend(now, k)
	return int(k)
}

// micros is a duration in the unit of the simulation's clock.
func micros(d time.Duration) int64 { return d.Microseconds() }
