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
}

func fromMicros(us float64) time.Duration {
	if us >= float64(math.MaxInt64)/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// never stands for "no refill": nothing is that slow.
const never = 1e300

// gain is what a bucket with regional numbers gains between two instants. Counting
// whole periods from the epoch makes the gains of any sequence of touches add up to
// the gain of the whole, so that no fraction is ever lost.
func gain(refill, period, from, to float64) float64 {
	a, b := math.Floor(from/period), math.Floor(to/period)
	whole := (b - a) * refill
	head := math.Floor((to - float64(b*period)) * refill / period)
	tail := math.Floor((from - float64(a*period)) * refill / period)
	return whole + head - tail
}

func (m *Model) decideBucket(now float64, a Attempt, e Entry) step {
	if e.ShareKey == "" {
		return m.decideRegional(now, a, e)
	}
	return m.decideShared(now, a, e)
}

func (m *Model) decideRegional(now float64, a Attempt, e Entry) step {
	capacity, refill, period := float64(e.Limit.Capacity), float64(e.Limit.Refill), micros(e.Limit.Period)
	slow := period / refill
	level, mark, pause := capacity, now, 0.0
	v, ok := m.buckets[e.Bucket]
	if _, log := m.logs[e.Bucket]; log || ok && v.shared {
		// Left by other numbers or another algorithm: keep a level, never refill.
		v = bucketValue{level: v.level, mark: now, expires: now + (math.Ceil((capacity-v.level)*slow/1000)+1)*1000}
		m.replace(e.Bucket, v)
		ok = true
	}
	if ok {
		level = v.level
		if v.mark <= now {
			level += gain(refill, period, v.mark, now)
		} else if v.mark-now <= capacity*slow {
			mark, pause = v.mark, v.mark-now // ahead of the clock: wait for it
		}
		level = math.Min(capacity, level)
	}
	if level == capacity && slow < never {
		mark = now + math.Ceil(slow)
	}
	s := bucketStep(a.Cost, capacity, capacity, level, slow, pause)
	s.put = func() {
		left := level - float64(a.Cost)
		life := 31536000000.0
		if slow < never {
			life = math.Ceil((capacity-left)*slow/1000) + 1
		}
		m.replace(e.Bucket, bucketValue{level: left, mark: mark, expires: now + life*1000})
	}
	return s
}

func (m *Model) decideShared(now float64, a Attempt, e Entry) step {
	rec := m.shareRecord(now, a.Stripe, e)
	limit := rec.limit
	gained, capacity, slow := rec.accrued(now, m.regions[a.Stripe].leaseEnd)
	pause := math.Max(0, rec.at-now)
	mark := math.Mod(rec.acc+gained, markWrap)
	ghost := math.Min(capacity, rec.ghost+gained)
	scale, life := 1.0, rec.life
	if e.Limit != e.Base {
		wide, rate := e.scales()
		limit, scale = float64(e.Limit.Capacity), rate
		capacity, ghost, slow = math.Floor(capacity*wide), math.Floor(ghost*wide), slow/scale
		life = math.Ceil(life * math.Max(1, wide/scale))
	}
	level := ghost
	v, ok := m.buckets[e.Bucket]
	if _, log := m.logs[e.Bucket]; log || ok && !v.shared {
		// Left by other numbers or another algorithm: keep a level, never refill.
		v = bucketValue{level: v.level, mark: mark, shared: true, wrap: markWrap, expires: now + life*1000}
		m.replace(e.Bucket, v)
		ok = true
	}
	if ok {
		since := mod(mark-v.mark, v.wrap)
		if since >= v.wrap/2 {
			// The mark is ahead: a little, wait for it; a lot, go on from here.
			if v.wrap-since <= capacity/scale {
				mark = v.mark
				pause += math.Ceil(float64((v.wrap-since)*slow) * scale)
			}
			since = 0
		}
		if scale != 1 {
			since = math.Floor(since * scale)
		}
		level = math.Min(ghost, v.level+since)
	}
	if level == capacity {
		mark = math.Mod(mark+1, markWrap)
	}
	s := bucketStep(a.Cost, limit, capacity, level, slow, pause)
	s.version, s.share = int64(rec.version), Share{Tokens(rec.capacity), Tokens(rec.refill)}
	s.put = func() {
		at := mark
		if rec.wrap == narrowWrap {
			at = math.Mod(mark, narrowWrap)
		}
		m.replace(e.Bucket, bucketValue{
			level: level - float64(a.Cost), mark: at, shared: true, wrap: rec.wrap, expires: now + life*1000,
		})
	}
	return s
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

// scales returns how an overridden key's capacity and refill relate to the policy's.
func (e Entry) scales() (capacity, refill float64) {
	capacity, refill = 0, 0
	if e.Base.Capacity > 0 {
		capacity = float64(e.Limit.Capacity) / float64(e.Base.Capacity)
	}
	if e.Base.Refill > 0 && e.Limit.Period > 0 {
		refill = float64(e.Limit.Refill) / float64(e.Base.Refill) * (micros(e.Base.Period) / micros(e.Limit.Period))
	}
	return capacity, refill
}

// Scales returns how an overridden key's capacity and refill rate relate to those of
// its policy; both are 1 for a key without override.
func (e Entry) Scales() (capacity, refill float64) { return e.scales() }

// bucketStep decides a bucket whose level is known.
//
// The mark of a full bucket is one milli-token ahead. Accrual is rounded to whole ones,
// so without that the first one after a full bucket could come early, and capacity +
// refill be passed by a fraction.
func bucketStep(cost Tokens, limit, capacity, level, slow, pause float64) step {
	c := float64(cost)
	s := step{code: 1, spendable: level}
	switch {
	case c > limit:
		s.code = -1
	case level < c:
		s.code = 0
		if slow < never {
			s.wait = math.Ceil((c-level)*slow) + pause + 1
		}
	}
	s.reset = func(charged bool) float64 {
		at := level
		if charged {
			at -= c
		}
		if at < capacity && slow < never {
			return math.Ceil((capacity - at) * slow)
		}
		return 0
	}
	return s
}

// shareRecord returns the share record of an entry, writing the floor down where
// there is none.
func (m *Model) shareRecord(now float64, stripe int, e Entry) record {
	rec, ok := m.shares[e.ShareKey]
	if !ok {
		rec = newRecord(e.FloorGrant(), 0, now, m.regions[stripe].hot)
		m.shares[e.ShareKey] = rec
	}
	return rec
}

// FloorGrant is the share that a region uses of a policy before it was granted one.
func (e Entry) FloorGrant() Grant {
	return Grant{Share: e.Floor, Permanent: e.Floor, Floor: e.Floor, Algorithm: e.Algorithm, Limit: e.Base}
}

func (m *Model) decideLog(now float64, a Attempt, e Entry) step {
	limit, window := float64(e.Limit.Capacity), micros(e.Limit.Period)
	n, blocked := limit, 0.0
	var s step
	if e.ShareKey != "" {
		rec := m.shareRecord(now, a.Stripe, e)
		s.version, s.share = int64(rec.version), Share{Capacity: Tokens(rec.capacity)}
		limit, n, window = rec.limit, rec.capacity, math.Ceil(rec.period*drift)
		if rec.permCapacity != rec.capacity && m.regions[a.Stripe].leaseEnd < now {
			n = math.Min(n, rec.permCapacity)
		}
		if e.Limit != e.Base {
			wide, _ := e.scales()
			limit, n = float64(e.Limit.Capacity), n*wide
		}
		blocked = math.Max(0, rec.at-now)
	}
	n = math.Floor(n / 1000)
	entries := m.logEntries(now, e.Bucket, n, window)
	entry := now
	if k := len(entries); k > 0 {
		if ahead := entries[k-1] - now; ahead > window {
			// The clock stepped back by more than a window: go on from here.
			entries = slices.Repeat([]float64{now}, k)
		} else if ahead > 0 {
			entry = entries[k-1]
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
		all := slices.Concat(entries, slices.Repeat([]float64{entry}, int(want)))
		delete(m.buckets, e.Bucket)
		m.logs[e.Bucket] = logValue{entries: all, expires: now + (math.Ceil((window+entry-now)/1000)+1)*1000}
	}
	return s
}

// logEntries returns the stored entries of a log. A value left by a token bucket may
// have admitted a whole limit just now, so it becomes one.
func (m *Model) logEntries(now float64, key string, n, window float64) []float64 {
	if v, ok := m.logs[key]; ok {
		return v.entries
	}
	if _, ok := m.buckets[key]; !ok {
		return nil
	}
	entries := slices.Repeat([]float64{now}, int(n))
	delete(m.buckets, key)
	m.logs[key] = logValue{entries: entries, expires: now + (math.Ceil(window/1000)+1)*1000}
	return entries
}
