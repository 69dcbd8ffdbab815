package quota

import (
	"math"
	"time"
)

// Numbers that the scripts and the models share. A change of one of them is a
// change of the data in Redis.
const (
	// Drift bounds how much the clock rates of two regions differ: global
	// refills are divided by 1+Drift and global windows multiplied by it, so that
	// the sum over the regions holds in true time.
	Drift = 5e-4
	drift = 1 + Drift

	// markWrap is what accumulators count modulo. It is a multiple of
	// narrowWrap, so that a narrow mark is a wide one modulo narrowWrap.
	markWrap   = 4e15
	narrowWrap = 1e9

	// lostPause is how long a dataset that replaced a lost one admits nothing:
	// longer than tokens can be on their way between regions.
	lostPause = 1_050_000 * time.Microsecond

	// blockWindow is the longest window of a global log that is waited for after
	// a lost dataset. A longer one would cost more than the overshoot it avoids.
	blockWindow = time.Minute
)

// BucketLife returns how long the store keeps a bucket under a share record after
// its last charge, given the limit and the region's floor of it.
//
// An absent bucket reads as the ghost, the level of a bucket nobody uses. A bucket
// may therefore vanish only when its level has reached the ghost's, whatever the
// shares did meanwhile. Every refill narrows the distance unless it goes into room
// that a growing share has made, and that room is bounded: with capacities split in
// proportion to refills (and rounded to whole tokens), the refill since the charge
// must have outgrown the capacity after
//
//	(floor + 1 token)/floor refill + ln(capacity/floor) * capacity/refill
//
// because a share that is to stay ahead of its own refill can grow by no more than
// the factor e in each capacity/refill. A floor below one token counts as one token.
func BucketLife(limit Limit, floor Share) time.Duration {
	if limit.Refill <= 0 || limit.Capacity <= 0 {
		return maxBucketLife
	}
	full := float64(limit.Capacity) / float64(limit.Refill) * limit.Period.Seconds()
	c, r := float64(floor.Capacity), float64(floor.Refill)
	if floor.Capacity < Token || floor.Refill <= 0 {
		c = math.Min(float64(Token), float64(limit.Capacity))
		r = float64(limit.Refill) * c / float64(limit.Capacity)
	}
	seconds := (c + float64(Token)) / r * limit.Period.Seconds()
	if float64(limit.Capacity) > c {
		seconds += math.Log(float64(limit.Capacity)/c) * full
	}
	seconds *= drift
	if seconds >= maxBucketLife.Seconds() {
		return maxBucketLife
	}
	return time.Duration(math.Ceil(seconds*1000)+1) * time.Millisecond
}

// maxBucketLife bounds how long an idle key can stay in the store.
const maxBucketLife = 5 * 366 * 24 * time.Hour

// narrow reports whether a bucket of the limit fits the form that Redis keeps as
// one integer: nine digits of level and nine of the accumulator. The accumulator
// must not travel half its range while a bucket lives.
func narrow(limit Limit, life time.Duration) bool {
	travelled := float64(limit.Refill) / limit.Period.Seconds() * life.Seconds()
	return limit.Capacity < 450_000*Token && travelled < narrowWrap/2
}

// BucketForm returns what a share record must say of the buckets under it: how long
// they live after a charge, and what their marks count modulo (1e9 or 4e15).
func BucketForm(limit Limit, floor Share) (life time.Duration, wrap int64) {
	life = BucketLife(limit, floor)
	if limit.Period > 0 && narrow(limit, life) {
		return life, narrowWrap
	}
	return life, markWrap
}

// BlocksAfterLoss reports whether a log of this window admits nothing for one
// window after its region lost its data. Longer windows start over at once and
// may admit one share too much, once.
func BlocksAfterLoss(window time.Duration) bool { return window <= blockWindow }

// record is a share record, in the units of the scripts: milli-tokens and
// microseconds in float64, every one an integer below 2^53.
type record struct {
	limit, version, capacity, refill, period float64
	permCapacity, permRefill                 float64
	acc, at, ghost                           float64
	life, wrap                               float64
	hold, shrunk                             float64
	epoch                                    Epoch
}

func micros(d time.Duration) float64 { return float64(d / time.Microsecond) }

// newRecord starts the record of a quota that this stripe never had a record of.
// hot is the region's caution after a lost dataset, zero when nothing was lost.
func newRecord(g Grant, epoch Epoch, now, hot float64) record {
	life, wrap := BucketForm(g.Limit, g.Floor)
	r := record{
		limit: float64(g.Limit.Capacity), version: float64(g.Version),
		capacity: float64(g.Share.Capacity), refill: float64(g.Share.Refill), period: micros(g.Limit.Period),
		permCapacity: float64(g.Permanent.Capacity), permRefill: float64(g.Permanent.Refill),
		life: float64(life / time.Millisecond), wrap: float64(wrap), epoch: epoch,
	}
	if g.Algorithm == SlidingLog {
		if hot > 0 {
			r.at = hot
			if BlocksAfterLoss(g.Limit.Period) {
				r.at += math.Ceil(r.period * drift)
			}
		}
		return r
	}
	r.at = math.Max(now, hot)
	// Only the first grant of a new policy brings a gift: nothing can have been
	// spent under it before.
	if hot == 0 || g.Gift > 0 {
		r.ghost = math.Min(r.capacity, float64(g.Floor.Capacity+g.Gift))
	}
	return r
}

// settled returns the record of the grant after what the old one has accrued was
// settled: rules E1, E2 and W2.
func (r record) settled(g Grant, epoch Epoch, now float64) record {
	n := newRecord(g, epoch, now, 0)
	if g.Algorithm == SlidingLog {
		n.at, n.ghost = r.at, 0
		n.hold, n.shrunk = r.hold, r.shrunk
		if now-r.shrunk >= r.period*drift {
			n.hold = 0
		}
		if n.capacity < r.capacity {
			n.hold, n.shrunk = math.Max(n.hold, r.capacity), now
		}
		return n
	}
	n.at = math.Max(now, r.at)
	gained := math.Floor((n.at - r.at) * r.refill / (r.period * drift))
	n.acc = math.Mod(r.acc+gained, markWrap)
	n.ghost = math.Min(n.capacity, math.Min(r.capacity, r.ghost+gained)+float64(g.Gift))
	return n
}

// accrued returns what the record has gained since it was settled, the capacity in
// force and the microseconds a milli-token takes. When the region's lease is over,
// only the permanent part counts from its end on.
func (r record) accrued(now, leaseEnd float64) (gained, capacity, slow float64) {
	per := r.period * drift
	capacity, slow = r.capacity, per/r.refill
	elapsed := math.Max(0, now-r.at)
	gained = math.Floor(elapsed * r.refill / per)
	if (r.permCapacity != r.capacity || r.permRefill != r.refill) && leaseEnd < now {
		leased := math.Min(elapsed, math.Max(0, leaseEnd-r.at))
		before := leased * r.refill / per
		after := (elapsed - leased) * r.permRefill / per
		gained = math.Floor(before + after)
		capacity, slow = math.Min(capacity, r.permCapacity), per/r.permRefill
	}
	return gained, capacity, slow
}
