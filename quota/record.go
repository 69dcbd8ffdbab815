package quota

import (
	"math"
	"slices"
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

	// longestWait is the longest wait that an outcome states, in microseconds.
	longestWait = 9e15

	// markWrap is what accumulators count modulo. It is a multiple of
	// narrowWrap, so that a narrow mark is a wide one modulo narrowWrap.
	markWrap   = 4e15
	narrowWrap = 1e9

	// lostPause is how long a dataset that replaced a lost one admits nothing:
	// longer than tokens can be on their way between regions.
	lostPause = 1_050_000 * time.Microsecond

	// longestPause is more than any record waits for tokens on their way, in microseconds.
	longestPause = 2e6

	// blockWindow is the longest window of a global log that is waited for after
	// a lost dataset. A longer one would cost more than the overshoot it avoids.
	blockWindow = time.Minute
)

// BucketLife returns how long the store keeps a bucket under a share record after
// its last charge, given the limit and the region's floor of it.
//
// An absent bucket reads as the ghost, the level of a bucket nobody uses. A bucket
// may therefore vanish only when its level is the ghost's and stays so, whatever the
// shares did meanwhile. It is from the first instant s at which the refill since the
// charge is as much as the capacity c(s): the ghost was cut to c(s) then, and from
// there on both gain the same. A share holds c <= r*C/R + one token and r >= floor
// refill (and one milli-token where there is capacity at all), so a share that is to
// stay ahead of its own refill G needs r > (G - 1 token)*R/C. That is the floor until
// G = floor*C/R + 1 token, and from then on r can grow by no more than the factor e
// in each C/R, until it is R:
//
//	C/R + 1 token/floor refill + ln(R/floor refill) * C/R
func BucketLife(limit Limit, floor Share) time.Duration {
	if limit.Refill <= 0 || limit.Capacity <= 0 {
		return maxBucketLife
	}
	full := float64(limit.Capacity) / float64(limit.Refill) * limit.Period.Seconds()
	least := float64(min(max(floor.Refill, 1), limit.Refill))
	// Three milli-tokens more for what rounding may hold back.
	seconds := full + float64(Token+3)/least*limit.Period.Seconds() + math.Log(float64(limit.Refill)/least)*full
	seconds *= drift
	if seconds >= maxBucketLife.Seconds() {
		return maxBucketLife
	}
	return time.Duration(math.Ceil(seconds*1000)+1) * time.Millisecond
}

// maxBucketLife bounds how long an idle key can stay in the store.
const maxBucketLife = 5 * 366 * 24 * time.Hour

// longestStep is by how much a clock may step back without being taken for one that
// has gone far ahead, in the narrow form.
const longestStep = 2 * time.Hour

// narrow reports whether a bucket of the limit fits the form that Redis keeps as
// one integer: nine digits of level and nine of the accumulator. The accumulator
// must not travel half its range while a bucket lives, nor in a step of the clock.
func narrow(limit Limit, life time.Duration) bool {
	travelled := float64(limit.Refill) / limit.Period.Seconds() * max(life, longestStep).Seconds()
	return limit.Capacity < 450_000*Token && travelled < narrowWrap/2
}

// BucketForm returns what a share record must say of the buckets under it: how long
// they live after a charge, and whether they are kept in the narrow form.
func BucketForm(limit Limit, floor Share) (life time.Duration, isNarrow bool) {
	life = BucketLife(limit, floor)
	return life, limit.Period > 0 && narrow(limit, life)
}

// BlocksAfterLoss reports whether a log of this window admits nothing for one
// window after its region lost its data. Longer windows start over at once and
// may admit one share too much, once.
func BlocksAfterLoss(window time.Duration) bool { return window <= blockWindow }

// record is a share record, in the units of the scripts: milli-tokens and
// microseconds in float64, every one but the ghost an integer below 2^53.
type record struct {
	limit, version, capacity, refill, period float64
	permCapacity, permRefill                 float64
	acc, at, ghost                           float64
	life, wrap                               float64
	hold, shrunk                             float64
	epoch                                    Epoch
	// grown holds the instants at which the share grew, oldest first.
	grown []growth
}

// growth is an instant at which a share grew: the accumulator then, and the capacity
// before. A key whose refill is slower for its burst than the policy's fills the room
// from there at its own pace, which the ghost does not know.
type growth struct{ acc, capacity float64 }

// maxGrown bounds how many instants of growth a record remembers.
const maxGrown = 8

// regrown returns the instants to remember after the share became capacity at the
// given accumulator; room is what it was before, and any gift.
func (r record) regrown(acc, gift, room, capacity float64) []growth {
	var list []growth
	for _, g := range r.grown {
		g.capacity += gift
		// Past a quarter of the accumulator's range an instant is long filled.
		age := mod(acc-g.acc, markWrap)
		if g.capacity < math.Min(room, capacity) && (age < markWrap/4 || age >= markWrap/2) {
			list = append(list, g)
		}
	}
	if capacity > room {
		list = append(list, growth{math.Mod(acc+1, markWrap), room})
	}
	for len(list) > maxGrown {
		// Two that differ least become one that is no higher than either.
		least := 0
		for i := 1; i < len(list)-1; i++ {
			if list[i+1].capacity-list[i].capacity < list[least+1].capacity-list[least].capacity {
				least = i
			}
		}
		list[least].acc = list[least+1].acc
		list = slices.Delete(list, least+1, least+2)
	}
	return list
}

func micros(d time.Duration) float64 { return float64(d / time.Microsecond) }

// newRecord starts the record of a quota that this stripe never had a record of.
// hot is the region's caution after a lost dataset, zero when nothing was lost.
func newRecord(g Grant, epoch Epoch, now, hot float64) record {
	life, isNarrow := BucketForm(g.Limit, g.Floor)
	wrap := markWrap
	if isNarrow {
		wrap = narrowWrap
	}
	r := record{
		limit: float64(g.Limit.Capacity), version: float64(g.Version),
		capacity: float64(g.Share.Capacity), refill: float64(g.Share.Refill), period: micros(g.Limit.Period),
		permCapacity: float64(g.Permanent.Capacity), permRefill: float64(g.Permanent.Refill),
		life: float64(life / time.Millisecond), wrap: wrap, epoch: epoch,
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
	if r.ghost < r.capacity {
		r.grown = []growth{{0, r.ghost}}
	}
	return r
}

// settled returns the record of the grant after what the old one has accrued was
// settled: rules E1, E2 and W2.
func (r record) settled(g Grant, epoch Epoch, now, leaseEnd float64) record {
	n := newRecord(g, epoch, now, 0)
	if g.Algorithm == SlidingLog {
		n.at, n.ghost, n.grown = r.at, 0, nil
		n.hold, n.shrunk = r.hold, r.shrunk
		if now-r.shrunk >= r.period*drift {
			n.hold = 0
		}
		if n.capacity < r.capacity {
			n.hold, n.shrunk = math.Max(n.hold, r.capacity), now
		}
		return n
	}
	return r.settledInto(n, float64(g.Gift), now, leaseEnd)
}

// settledInto returns n, the record of a token bucket that is to take the place of this
// one, with what this one has accrued.
func (r record) settledInto(n record, gift, now, leaseEnd float64) record {
	n.at = math.Max(now, r.at)
	exact, capacity := r.exact(n.at-r.at, now, leaseEnd)
	gained := math.Floor(exact)
	n.acc = math.Mod(r.acc+math.Mod(gained, markWrap), markWrap)
	// The milli-token under way goes on under the new refill, or a policy that is
	// settled often would never refill. The ghost has its own part of one.
	per, carry := n.period*drift, 0.0
	if n.refill > 0 {
		carry = math.Floor((exact - gained) * per / n.refill)
	}
	n.at -= carry
	n.ghost = math.Min(n.capacity, math.Min(capacity, r.ghost+exact)+gift) - phase(carry*n.refill/per, n.capacity)
	n.ghost = math.Max(0, math.Floor(float64(n.ghost*1e6)+0.5)/1e6)
	n.grown = r.regrown(n.acc, gift, capacity+gift, n.capacity)
	return n
}

// phase returns the part of a milli-token that a refill is ahead by, in millionths and
// no more than it is; of large capacities, which have no such digits left, a whole one.
func phase(part, capacity float64) float64 {
	switch {
	case part <= 0:
		return 0
	case capacity > 1e9:
		return 1
	}
	return math.Max(0, math.Floor(part*1e6)-1) / 1e6
}

// lapsed reports whether only the permanent part of the record counts.
func (r record) lapsed(now, leaseEnd float64) bool {
	return (r.permCapacity != r.capacity || r.permRefill != r.refill) && leaseEnd < now
}

// exact returns what the record gains in a time since it was settled, and the
// capacity in force at its end. When the region's lease is over, only the permanent
// part counts from there on.
func (r record) exact(elapsed, now, leaseEnd float64) (gained, capacity float64) {
	per := r.period * drift
	if !r.lapsed(now, leaseEnd) {
		return elapsed * r.refill / per, r.capacity
	}
	leased := math.Min(elapsed, math.Max(0, leaseEnd-r.at))
	before := leased * r.refill / per
	after := (elapsed - leased) * r.permRefill / per
	return before + after, math.Min(r.capacity, r.permCapacity)
}

// LowestTerms returns the refill as a fraction in lowest terms: so many milli-tokens
// in so many microseconds. A limit that refills nothing has some fraction.
func (l Limit) LowestTerms() (refill, period int64) {
	refill, period = int64(l.Refill), l.Period.Microseconds()
	if refill <= 0 || period <= 0 {
		return 1, 1
	}
	a, b := refill, period
	for b != 0 {
		a, b = b, a%b
	}
	return refill / a, period / a
}

// Scaling says how the quota of an overridden key follows from a share of its policy.
type Scaling struct {
	// A share's capacity counts Limit/Base.
	Limit, Base Tokens
	// Refill is how the key's refill rate relates to the policy's.
	Refill float64
	// Life is by what factor the key's bucket lives longer.
	Life float64
}

// Scaling returns how the entry's quota follows from a share of its policy.
func (e Entry) Scaling() Scaling {
	s := Scaling{Limit: e.Limit.Capacity, Base: max(e.Base.Capacity, 1), Life: 1}
	if e.Base.Refill > 0 && e.Limit.Period > 0 {
		s.Refill = float64(e.Limit.Refill) / float64(e.Base.Refill) * (micros(e.Base.Period) / micros(e.Limit.Period))
	}
	if s.Refill > 0 {
		s.Life = math.Max(1, float64(s.Limit)/float64(s.Base)/s.Refill)
	}
	return s
}
