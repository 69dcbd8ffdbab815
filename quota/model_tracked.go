package quota

import (
	"math"
	"slices"
	"time"
)

// Place says where a stripe keeps what a grant of a tracked key changes: its bucket,
// and its policy's share record.
type Place struct{ Bucket, ShareKey string }

// trackedKey is what a tracked key has besides its bucket or log, which never expires
// while it is tracked.
type trackedKey struct {
	rec record
	// known is whether an attempt or the form of the bucket has told how the key's
	// quota follows from the policy's; until then it may be overridden or not.
	known   bool
	scaling Scaling
}

// plain is the scaling of a key that is not overridden.
var plain = Scaling{Limit: 1, Base: 1, Refill: 1, Life: 1}

// scaleOf is the scaling that a tracked key remembers of an entry.
func scaleOf(e Entry) Scaling {
	if e.Limit == e.Base {
		return plain
	}
	s := e.Scaling()
	if e.Algorithm == SlidingLog {
		s.Refill, s.Life = 1, 1
	}
	return s
}

// recordOf returns the record that an entry is decided under: the key's own, or else
// its policy's.
func (m *Model) recordOf(now float64, a Attempt, e Entry) (rec record, own bool) {
	t, own := m.tracked[e.Bucket]
	if !own {
		return m.shareRecord(now, a, e), false
	}
	rec, caughtUp := t.rec.caughtUp(now, e)
	if t.rec = rec; caughtUp && !a.Peek {
		m.tracked[e.Bucket] = t
	}
	return rec, true
}

// learn notes how a tracked key's quota follows from the policy's, once.
func (m *Model) learn(a Attempt, e Entry) {
	if t := m.tracked[e.Bucket]; !t.known && !a.Peek {
		m.rescale(e)
	}
}

// rescale notes it whenever the value is written, since an override may come or go.
func (m *Model) rescale(e Entry) {
	if t, ok := m.tracked[e.Bucket]; ok {
		t.known, t.scaling = true, scaleOf(e)
		m.tracked[e.Bucket] = t
	}
}

// Track applies grants of tracked keys to one stripe, as Apply does those of whole
// policies. A key's first grant gives it a record of its own, a copy of the policy's, so
// that its level goes on as it was; a drop puts it back under the policy's.
func (m *Model) Track(now int64, stripe int, epoch Epoch, gen string, places []Place, grants []Grant) ([]int64, error) {
	region, err := m.accepts(stripe, epoch, gen)
	if err != nil {
		return nil, err
	}
	versions := make([]int64, len(grants))
	for i, g := range grants {
		t, own := m.tracked[places[i].Bucket]
		versions[i] = g.Version
		switch {
		case own && !t.rec.older(g, epoch):
			versions[i] = int64(t.rec.version)
		case own && g.Drop:
			m.untrack(float64(now), stripe, places[i], t)
		case g.Drop: // it is not tracked
		case own:
			m.settleKey(float64(now), stripe, places[i].Bucket, t, g, epoch)
		default:
			m.pin(float64(now), stripe, places[i], g, epoch)
		}
	}
	region.epoch = epoch
	return versions, nil
}

// pin gives a key its own record.
func (m *Model) pin(now float64, stripe int, p Place, g Grant, epoch Epoch) {
	region := m.regions[stripe]
	var t trackedKey
	v, bucket := m.buckets[p.Bucket]
	// Only a quota that is not overridden is kept in the narrow form.
	isNarrow := bucket && v.shared && v.wrap == narrowWrap
	if isNarrow {
		t.known, t.scaling = true, plain
	}
	rec, ok := m.shares[p.ShareKey]
	acc := rec.acc
	if ok {
		acc = rec.accAt(now, region.leaseEnd)
	}
	if isNarrow {
		v.mark, v.wrap = mod(acc-signed(acc-v.mark, narrowWrap), markWrap), markWrap
	}
	if bucket {
		v.expires = math.Inf(1)
		m.buckets[p.Bucket] = v
	} else if l, ok := m.logs[p.Bucket]; ok {
		l.expires = math.Inf(1)
		m.logs[p.Bucket] = l
	}
	if !ok {
		t.rec = newRecord(g, epoch, now, region.hot)
		t.rec.wrap = markWrap
		m.tracked[p.Bucket] = t
		return
	}
	t.rec = rec
	m.settleKey(now, stripe, p.Bucket, t, g, epoch)
}

// accAt returns the accumulator of a record at an instant.
func (r record) accAt(now, leaseEnd float64) float64 {
	exact, _ := r.exact(math.Max(now, r.at)-r.at, now, leaseEnd)
	return math.Mod(r.acc+math.Mod(math.Floor(exact), markWrap), markWrap)
}

// signed is a difference of marks, counted modulo wrap, as one of at most half of it:
// negative means ahead.
func signed(d, wrap float64) float64 {
	d = mod(d, wrap)
	if d >= wrap/2 {
		d -= wrap
	}
	return d
}

// settleKey puts a tracked key under a newer grant: what it surrenders is told, and a
// gift raises its level.
func (m *Model) settleKey(now float64, stripe int, key string, t trackedKey, g Grant, epoch Epoch) {
	was := t.rec
	t.rec = was.settled(g, epoch, now, m.regions[stripe].leaseEnd)
	t.rec.wrap = markWrap
	if g.Algorithm != SlidingLog {
		t.rec.hold = m.surrendered(now, stripe, key, trackedKey{was, t.known, t.scaling}, float64(g.Share.Capacity))
		if v, ok := m.buckets[key]; ok && v.shared && t.known {
			v.level += math.Floor(float64(g.Gift) * float64(t.scaling.Limit) / float64(t.scaling.Base))
			m.buckets[key] = v
		}
	}
	m.tracked[key] = t
}

// surrendered returns what a capacity cuts off the level of a tracked key, in the
// policy's tokens, and never more: others may be given as much.
func (m *Model) surrendered(now float64, stripe int, key string, t trackedKey, capacity float64) float64 {
	s := m.view(t.rec, now, stripe, t.scaling, t.known)
	if t.known {
		limit, base := float64(t.scaling.Limit), float64(t.scaling.Base)
		level, ok := m.levelOf(key, &s, t)
		cut := level - math.Floor(capacity*limit/base)
		if !ok || cut <= 0 || limit <= 0 {
			return 0
		}
		return math.Floor(cut * base / limit)
	}
	if _, _, held := m.stored(key); held {
		return 0
	}
	// An untouched quota has its part of the ghost, or of less where it is one that
	// fills more slowly.
	level := s.ghost
	for _, g := range t.rec.grown {
		level = math.Min(level, g.capacity)
	}
	return math.Max(0, level-capacity)
}

// levelOf returns the level of a tracked key whose scaling is known; ok is false when
// what is stored is no bucket under a share record.
func (m *Model) levelOf(key string, s *shared, t trackedKey) (level float64, ok bool) {
	s.fill(t.rec, 0)
	v, bucket, held := m.stored(key)
	switch {
	case !held:
		return s.ghost, true
	case !bucket || !v.shared:
		return 0, false
	}
	return s.levelOf(v, true), true
}

// untrack puts a key back under its policy's record, with no token more.
func (m *Model) untrack(now float64, stripe int, p Place, t trackedKey) {
	delete(m.tracked, p.Bucket)
	if l, ok := m.logs[p.Bucket]; ok && len(l.entries) > 0 {
		last := l.entries[len(l.entries)-1] + math.Ceil(t.rec.period*drift)
		if last <= now {
			delete(m.logs, p.Bucket)
			return
		}
		l.expires = now + (math.Ceil((last-now)/1000)+1)*1000
		m.logs[p.Bucket] = l
		return
	}
	rec, ok := m.shares[p.ShareKey]
	v, bucket := m.buckets[p.Bucket]
	if !ok || bucket && !v.shared {
		// Nothing can be told of it: it goes on as it is.
		if bucket {
			v.expires = now + t.rec.life*1000
			m.buckets[p.Bucket] = v
		}
		return
	}
	life := rec.life
	if t.known {
		life = math.Min(math.Ceil(life*t.scaling.Life), float64(maxBucketLife/time.Millisecond))
	}
	level, mark, full := m.returned(now, stripe, p.Bucket, t, rec)
	if full {
		delete(m.buckets, p.Bucket)
		return
	}
	m.buckets[p.Bucket] = bucketValue{level: level, mark: mark, shared: true, wrap: markWrap, expires: now + life*1000}
}

// returned returns the level and the mark of a key that goes back under the policy's
// record, or full when it is as good as one that nobody uses.
func (m *Model) returned(now float64, stripe int, key string, t trackedKey, rec record) (level, mark float64, full bool) {
	own, whole := m.view(t.rec, now, stripe, t.scaling, t.known), m.view(rec, now, stripe, t.scaling, t.known)
	v, _, held := m.stored(key)
	// The milli-token under way is not the bucket's own; a clock that stepped back is waited for.
	since := 0.0
	if held {
		since = signed(own.mark-v.mark, markWrap)
	}
	next := mod(whole.mark+math.Max(0, -since)+1, markWrap)
	if t.known {
		if level, _ = m.levelOf(key, &own, t); level >= whole.capacity || level > whole.ghost {
			return 0, 0, true
		}
		return level, next, false
	}
	above := own.ghost >= whole.capacity || own.ghost > whole.ghost
	for _, g := range t.rec.grown {
		above = above && g.capacity+math.Max(0, signed(own.mark-g.acc, markWrap)) >= whole.capacity
	}
	switch {
	case !above:
		return 0, next, false // whatever its numbers are, it has no less
	case !held:
		return 0, 0, true
	}
	return v.level, mod(whole.mark-since+1, markWrap), false
}

// KeyState is what a region says of a tracked key.
type KeyState struct {
	Version int64
	Share   Share
	// Hold is the larger of a log's share and its entries, in the policy's tokens.
	Hold Tokens
	// Surrendered is what the last grant cut off the level of a bucket.
	Surrendered Tokens
}

// HeldKey returns the state of the tracked key with the given bucket as of now; ok is
// false when the key has no record of its own.
func (m *Model) HeldKey(now int64, bucket string) (state KeyState, ok bool) {
	t, ok := m.tracked[bucket]
	if !ok {
		return KeyState{}, false
	}
	r := t.rec
	state = KeyState{Version: int64(r.version), Share: Share{Tokens(r.capacity), Tokens(r.refill)}, Hold: Tokens(r.capacity)}
	window := math.Ceil(r.period * drift)
	live := 0.0
	for _, at := range m.logs[bucket].entries {
		if float64(now)-at < window {
			live++
		}
	}
	switch {
	case live > 0 && t.known && t.scaling.Limit > 0:
		state.Hold = max(state.Hold, Tokens(math.Ceil(live*1000*float64(t.scaling.Base)/float64(t.scaling.Limit))))
	case live > 0 && r.hold > 0 && float64(now)-r.shrunk < window:
		state.Hold = max(state.Hold, Tokens(r.hold))
	}
	if r.shrunk == 0 {
		state.Surrendered = Tokens(r.hold)
	}
	return state, true
}

// Tracked lists the buckets of the tracked keys, in order.
func (m *Model) Tracked() []string {
	keys := make([]string, 0, len(m.tracked))
	for key := range m.tracked {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
