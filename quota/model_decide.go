package quota

import (
	"math"
	"slices"
	"time"
)

// step is what one quota of an attempt says, and how to charge it.
type step struct {
	// code is 1 admits, 0 denies, -1 can never fit.
	code      int
	spendable float64
	wait      float64
	reset     func(charged bool) float64
	put       func()
	version   int64
	share     Share
	// tracked is whether the share is the key's own.
	tracked bool
}

func fromMicros(us float64) time.Duration {
	return time.Duration(us) * time.Microsecond
}

// never stands for "no refill": nothing is that slow.
const never = 1e300

func (m *Model) decideBucket(now float64, a Attempt, e Entry) step {
	if e.ShareKey == "" {
		return m.decideRegional(now, a, e)
	}
	return m.decideShared(now, a, e)
}

// numbers are a regional limit as the model counts: refill milli-tokens in period
// microseconds, in lowest terms.
type numbers struct{ capacity, refill, period, slow float64 }

func numbersOf(l Limit) numbers {
	refill, period := l.LowestTerms()
	n := numbers{capacity: float64(l.Capacity), refill: float64(refill), period: float64(period)}
	n.slow = n.period / n.refill
	return n
}

// touch brings a stored bucket up to date: its level now, and the level x at the
// instant from. That instant only ever moves on by whole periods of the lowest terms,
// so no sequence of touches loses a fraction or gains one. moved is whether the bucket
// must be written down as it is now, since it would stand still otherwise.
func (n numbers) touch(now float64, v bucketValue, own bool) (level, x, from float64, moved bool) {
	moved = !own
	x, from = v.level, v.mark
	level = x
	if own {
		if elapsed := now - from; elapsed > 0 {
			whole := math.Floor(elapsed / n.period)
			x, from = x+float64(whole*n.refill), from+float64(whole*n.period)
			level = x + math.Floor((now-from)*n.refill/n.period)
		} else if -elapsed > float64(n.capacity*n.slow) {
			moved = true // the clock stepped back by a lot: go on from here; a little: wait for it
		}
	}
	if moved {
		x, from = math.Min(math.Max(x, 0), n.capacity), now
		level = x
	}
	if level >= n.capacity {
		x, level, from = n.capacity, n.capacity, math.Max(from, now)
	}
	return level, x, from, moved
}

// decideRegional decides a bucket with regional numbers.
func (m *Model) decideRegional(now float64, a Attempt, e Entry) step {
	n := numbersOf(e.Limit)
	level, x, from := n.capacity, n.capacity, now
	until := func(x float64) float64 { return from - now + math.Ceil((n.capacity-x)*n.slow) }
	store := func(x float64) {
		delete(m.tracked, e.Bucket) // regional numbers need no share
		m.replace(e.Bucket, bucketValue{level: x, mark: from, expires: now + 1000*(math.Ceil(until(x)/1000)+1)})
	}
	if v, bucket, held := m.stored(e.Bucket); held {
		var moved bool
		level, x, from, moved = n.touch(now, v, bucket && !v.shared)
		if moved && !a.Peek {
			store(x)
		}
	}
	c := float64(a.Cost)
	s := step{spendable: math.Max(0, level)}
	if s.code = fits(c, n.capacity, s.spendable); s.code == 0 {
		s.wait = math.Ceil((c - x) * n.period / n.refill)
		if x+math.Floor(s.wait*n.refill/n.period) < c {
			s.wait++ // a product above 2^53
		}
		s.wait += from - now
	}
	s.reset = func(charged bool) float64 {
		switch {
		case charged:
			return until(x - c)
		case s.spendable < n.capacity:
			return until(x)
		}
		return 0
	}
	s.put = func() { store(x - c) }
	return s
}

// stored returns what a key holds; bucket is whether it is one, and not a log.
func (m *Model) stored(key string) (v bucketValue, bucket, held bool) {
	if v, ok := m.buckets[key]; ok {
		return v, true, true
	}
	return bucketValue{}, false, m.logs[key].entries != nil
}

// fits returns the code of a cost: 1 admits, 0 denies, -1 can never fit.
func fits(cost, limit, level float64) int {
	switch {
	case cost > limit:
		return -1
	case level < cost:
		return 0
	}
	return 1
}

// shared is a share record as an entry sees it at one instant.
type shared struct {
	limit, capacity, ghost float64 // of the key, after its override
	mark, gained, elapsed  float64 // of the policy
	settledGhost           float64
	per, rate              float64 // refill: rate in per microseconds
	lapsed                 bool
	scaling                Scaling
	overridden             bool
}

// view is a record as a quota sees it that follows from its share by scaling, which
// counts only for overridden ones.
func (m *Model) view(rec record, now float64, stripe int, scaling Scaling, overridden bool) shared {
	leaseEnd := m.regions[stripe].leaseEnd
	v := shared{limit: rec.limit, elapsed: now - rec.at, per: rec.period * drift, rate: rec.refill}
	v.lapsed = rec.lapsed(now, leaseEnd)
	exact, capacity := rec.exact(math.Max(0, v.elapsed), now, leaseEnd)
	v.gained, v.capacity = math.Floor(exact), capacity
	if v.lapsed {
		v.rate = rec.permRefill
	}
	v.mark = math.Mod(rec.acc+math.Mod(v.gained, markWrap), markWrap)
	v.settledGhost = rec.ghost
	v.ghost = math.Min(capacity, math.Floor(rec.ghost+exact))
	v.scaling = Scaling{Refill: 1, Life: 1}
	if overridden {
		v.overridden, v.scaling = true, scaling
		limit, base := float64(v.scaling.Limit), float64(v.scaling.Base)
		v.limit, v.capacity, v.ghost = limit, math.Floor(capacity*limit/base), math.Floor(v.ghost*limit/base)
	}
	return v
}

// fill lowers the ghost of an overridden key to what its own refill has filled of the
// room that growing shares made. It returns what the accumulator lacks for a cost.
func (s *shared) fill(rec record, cost float64) (short float64) {
	scale := s.scaling.Refill
	if !s.overridden || s.limit/float64(s.scaling.Base) <= scale {
		return 0
	}
	for _, g := range rec.grown {
		since, first := mod(s.mark-g.acc, markWrap), g.capacity*s.limit/float64(s.scaling.Base)
		if since >= markWrap/2 {
			since -= markWrap
		}
		filled := math.Floor(first + float64(math.Max(0, since)*scale))
		s.ghost = math.Min(s.ghost, filled)
		if filled < cost {
			short = math.Max(short, steps(cost, first, scale)-since)
		}
	}
	return short
}

// touch returns the level of a stored bucket, the mark that it is charged under, and
// what the accumulator lacks until the bucket has the cost. moved is whether the bucket
// must be written down under that mark, since it would stand still otherwise.
func (s *shared) touch(v bucketValue, own bool, cost float64) (level, mark, short float64, moved bool) {
	scale := s.scaling.Refill
	mark = s.mark
	if !own {
		// Left by other numbers or another algorithm: keep a level, never refill.
		v.mark, v.wrap = mark, markWrap
	}
	since := mod(mark-v.mark, v.wrap)
	moved = !own
	if since >= v.wrap/2 {
		since -= v.wrap
		if -since <= s.capacity/scale {
			mark = v.mark // the clock stepped back by a little: wait for it
		} else {
			since, moved = 0, true // by a lot: go on from here
		}
	}
	gain := math.Max(0, since)
	if scale != 1 {
		gain = math.Floor(gain * scale)
	}
	return math.Max(0, math.Min(s.ghost, v.level+gain)), mark, steps(cost-v.level, 0, scale) - since, moved
}

// levelOf is the level that touch returns.
func (s *shared) levelOf(v bucketValue, own bool) float64 {
	level, _, _, _ := s.touch(v, own, 0) //nolint:dogsled // the others are for a charge
	return level
}

func (m *Model) decideShared(now float64, a Attempt, e Entry) step {
	rec, own := m.recordOf(now, a, e)
	s := m.view(rec, now, a.Stripe, e.Scaling(), e.Limit != e.Base)
	cost := float64(a.Cost)
	life, wrap := rec.life, rec.wrap
	if s.overridden {
		life, wrap = math.Min(math.Ceil(life*s.scaling.Life), float64(maxBucketLife/time.Millisecond)), markWrap
	}
	bucket := bucketValue{shared: true, expires: now + life*1000}
	if own {
		bucket.expires = math.Inf(1)
		m.learn(a, e)
	}
	short := s.fill(rec, cost)
	level, mark := s.ghost, s.mark
	if v, isBucket, held := m.stored(e.Bucket); held {
		var lacks float64
		var moved bool
		level, mark, lacks, moved = s.touch(v, isBucket && v.shared, cost)
		short = math.Max(short, lacks)
		if moved && !a.Peek {
			bucket.level, bucket.mark, bucket.wrap = v.level, mark, markWrap
			m.replace(e.Bucket, bucket)
			m.rescale(e)
		}
	}
	out := step{code: fits(cost, s.limit, level), spendable: level, tracked: own}
	if out.code == 0 {
		out.wait = s.wait(cost, short)
	}
	// Accumulators are whole milli-tokens. The one that is under way when a bucket
	// leaves its capacity is not its own.
	if level >= s.capacity {
		mark = math.Mod(mark+1, markWrap)
	}
	out.version, out.share = int64(rec.version), Share{Tokens(rec.capacity), Tokens(rec.refill)}
	slow := s.per / (s.rate * s.scaling.Refill)
	out.reset = func(charged bool) float64 {
		at := level
		if charged {
			at -= cost
		}
		if at < s.capacity && slow < never {
			return math.Max(0, -s.elapsed) + math.Ceil((s.capacity-at)*slow)
		}
		return 0
	}
	out.put = func() {
		bucket.level, bucket.mark, bucket.wrap = level-cost, math.Mod(mark, wrap), wrap
		m.replace(e.Bucket, bucket)
		m.rescale(e)
	}
	return out
}

// steps returns how many steps of a size it takes from one number to another, both as
// doubles count.
func steps(to, from, size float64) float64 {
	n := math.Ceil((to - from) / size)
	if math.Floor(from+float64(n*size)) < to {
		n++
	}
	return n
}

// wait returns the time until a cost fits, given what the accumulator lacks until
// the bucket itself has it.
func (s *shared) wait(cost, short float64) float64 {
	if s.overridden {
		limit, base := float64(s.scaling.Limit), float64(s.scaling.Base)
		whole := math.Ceil(cost * base / limit)
		if math.Floor(whole*limit/base) < cost {
			whole++
		}
		cost = whole
	}
	short = math.Max(short, cost-s.settledGhost-s.gained)
	switch {
	case s.rate <= 0:
		return 0
	case s.lapsed:
		return math.Ceil(short*s.per/s.rate) + 1
	}
	return math.Ceil((s.gained+short)*s.per/s.rate) - s.elapsed + 1
}

// replace stores a bucket in place of whatever the key held.
func (m *Model) replace(key string, v bucketValue) {
	delete(m.logs, key)
	m.buckets[key] = v
}

// mod is x modulo y with the sign of y, as Lua counts.
func mod(x, y float64) float64 {
	r := math.Mod(x, y)
	if r < 0 {
		r += y
	}
	return r
}

// shareRecord returns the share record of an entry, writing the floor down where
// there is none. A record whose instant lies ahead of the clock by more than it ever
// should saw the clock step back; what counts by it would stand still until the clock
// has caught up, so it goes on from here.
func (m *Model) shareRecord(now float64, a Attempt, e Entry) record {
	rec, ok := m.shares[e.ShareKey]
	if !ok {
		rec = newRecord(e.FloorGrant(), 0, now, m.regions[a.Stripe].hot)
		m.shares[e.ShareKey] = rec
	}
	rec, caughtUp := rec.caughtUp(now, e)
	if caughtUp && !a.Peek {
		m.shares[e.ShareKey] = rec
	}
	return rec
}

// caughtUp returns the record with its instant moved back to where the clock is, when it
// lies ahead by more than it ever should, and whether it was.
func (r record) caughtUp(now float64, e Entry) (record, bool) {
	window := 0.0
	if e.Algorithm == SlidingLog {
		window = math.Ceil(r.period * drift)
	}
	if r.at-now <= window+longestPause {
		return r, false
	}
	r.at = now + window
	return r, true
}

// FloorGrant is the share that a region uses of a policy before it was granted one.
func (e Entry) FloorGrant() Grant {
	return Grant{Share: e.Floor, Permanent: e.Floor, Floor: e.Floor, Algorithm: e.Algorithm, Limit: e.Base}
}

// logNumbers returns a log's limit, how many entries its share allows, its window, and
// for how long it admits nothing at all; s learns of the share.
func (m *Model) logNumbers(now float64, a Attempt, e Entry, s *step) (limit, n, window, blocked float64) {
	limit, window = float64(e.Limit.Capacity), micros(e.Limit.Period)
	n = limit
	if e.ShareKey != "" {
		rec, own := m.recordOf(now, a, e)
		if s.tracked = own; own {
			m.learn(a, e)
		}
		s.version, s.share = int64(rec.version), Share{Capacity: Tokens(rec.capacity)}
		limit, n, window = rec.limit, rec.capacity, math.Ceil(rec.period*drift)
		if rec.permCapacity != rec.capacity && m.regions[a.Stripe].leaseEnd < now {
			n = math.Min(n, rec.permCapacity)
		}
		if e.Limit != e.Base {
			scaling := e.Scaling()
			limit = float64(scaling.Limit)
			n = n * limit / float64(scaling.Base)
		}
		blocked = math.Max(0, rec.at-now)
	}
	return limit, math.Floor(n / 1000), window, blocked
}

func (m *Model) decideLog(now float64, a Attempt, e Entry) step {
	var s step
	limit, n, window, blocked := m.logNumbers(now, a, e, &s)
	entries, moved := m.logEntries(now, e.Bucket, n)
	entry := now
	if k := len(entries); k > 0 {
		if ahead := entries[k-1] - now; ahead > window {
			// The clock stepped back by more than a window: go on from here.
			entries, moved = slices.Repeat([]float64{now}, k), true
		} else if ahead > 0 {
			entry = entries[k-1]
		}
		if moved && !a.Peek {
			delete(m.buckets, e.Bucket)
			m.keepLog(e, entries, now+(math.Ceil(window/1000)+1)*1000)
			m.rescale(e)
		}
	}
	live := slices.IndexFunc(entries, func(at float64) bool { return now-at < window })
	if live < 0 {
		live = len(entries)
	}
	entries = entries[live:]
	count, want := float64(len(entries)), float64(a.Cost)/1000
	s.code = 1
	switch {
	case float64(a.Cost) > limit:
		s.code = -1
	case blocked > 0 || count+want > n:
		s.code = 0
		gone := int(math.Min(count+want-n, count))
		s.wait = math.Max(blocked, 1)
		if gone > 0 {
			s.wait = math.Max(s.wait, window-(now-entries[gone-1]))
		}
	}
	if blocked == 0 {
		s.spendable = math.Max(0, n-count) * 1000
	}
	s.reset = func(charged bool) float64 {
		switch {
		case charged:
			return window + entry - now
		case len(entries) > 0:
			return math.Max(0, window-(now-entries[len(entries)-1]))
		}
		return 0
	}
	s.put = func() {
		// In place: what is stored is about to be replaced, and nothing else refers to it.
		entries = append(entries, slices.Repeat([]float64{entry}, int(want))...)
		delete(m.buckets, e.Bucket)
		m.keepLog(e, entries, now+(math.Ceil((window+entry-now)/1000)+1)*1000)
		m.rescale(e)
	}
	return s
}

// keepLog stores a log. That of a tracked key does not expire, unless the entry has
// regional numbers: then it is tracked no more.
func (m *Model) keepLog(e Entry, entries []float64, expires float64) {
	if e.ShareKey == "" {
		delete(m.tracked, e.Bucket)
	}
	if _, own := m.tracked[e.Bucket]; own {
		expires = math.Inf(1)
	}
	m.logs[e.Bucket] = logValue{entries: entries, expires: expires}
}

// logEntries returns the entries of a log, and whether they differ from what is
// stored: a value left by a token bucket may have admitted a whole limit just now.
func (m *Model) logEntries(now float64, key string, n float64) (entries []float64, moved bool) {
	if v, ok := m.logs[key]; ok {
		return v.entries, false
	}
	if _, ok := m.buckets[key]; !ok {
		return nil, false
	}
	return slices.Repeat([]float64{now}, int(n)), true
}
