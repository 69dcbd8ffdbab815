package regional

import (
	"sync"
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	localShards = 16
	// evictScan is how many of the least recently used buckets are looked at to
	// make room for one.
	evictScan = 16
	// entriesPerKey is how many log entries weigh as much as one key.
	entriesPerKey = 16
)

// localStore holds the buckets that stand in for the store while it does not
// answer. Its memory is bounded. When it is full, buckets that are full again go
// first, because forgetting them changes nothing; then the least recently used,
// which is counted. A bucket that denies is never dropped: else a client could
// end its own denial by asking for enough other keys. When nothing may be
// dropped, all further keys of a policy share one overflow bucket.
type localStore struct {
	start    time.Time
	origin   int64 // the wall clock at start, in microseconds
	shards   [localShards]*localShard
	overflow *localShard
	metrics  *metrics
}

type localShard struct {
	mu     sync.Mutex
	model  *quota.Model
	byKey  map[string]*localEntry
	recent localEntry // the head of a ring: next is the most recently used
	weight int
	budget int
}

type localEntry struct {
	key    string
	weight int
	// deniesUntil is when an ordinary check would be admitted again, fullAt when
	// the bucket is as good as new, both in microseconds.
	deniesUntil int64
	fullAt      int64

	next, prev *localEntry
}

// unlink takes e out of its ring.
func (e *localEntry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

// pushFront makes e the most recently used.
func (s *localShard) pushFront(e *localEntry) {
	head := &s.recent
	e.prev, e.next = head, head.next
	e.prev.next, e.next.prev = e, e
}

func (s *localShard) moveToFront(e *localEntry) {
	e.unlink()
	s.pushFront(e)
}

func newLocalStore(keys int, m *metrics) *localStore {
	now := time.Now()
	l := &localStore{start: now, origin: now.UnixMicro(), metrics: m, overflow: newLocalShard(0)}
	for i := range l.shards {
		l.shards[i] = newLocalShard(max(1, keys/localShards))
	}
	return l
}

func newLocalShard(budget int) *localShard {
	s := &localShard{model: quota.NewModel(), byKey: map[string]*localEntry{}, budget: budget}
	s.recent.next, s.recent.prev = &s.recent, &s.recent
	return s
}

// now is in microseconds and cannot be set back: it counts from the start by the
// monotonic clock.
func (l *localStore) now() int64 { return l.origin + time.Since(l.start).Microseconds() }

// size returns how many buckets are held.
func (l *localStore) size() int {
	n := 0
	for _, s := range l.shards {
		s.mu.Lock()
		n += len(s.byKey)
		s.mu.Unlock()
	}
	return n
}

// forget drops what is held for a policy that is gone, as far as it does not go
// by itself.
func (l *localStore) forget(policy string) {
	l.overflow.mu.Lock()
	l.overflow.model.Forget(overflowKey(policy))
	l.overflow.mu.Unlock()
}

func overflowKey(policy string) string { return "overflow:" + policy }

// decide asks one bucket. policy names whose overflow it may fall back on. The
// entry that was charged is returned, for a refund.
func (l *localStore) decide(now int64, policy string, entry quota.Entry, cost quota.Tokens, peek bool) (quota.Verdict, quota.Entry) {
	s := l.shards[hashKey(entry.Bucket)%localShards]
	s.mu.Lock()
	v, ok := s.decide(now, entry, cost, peek, l.metrics)
	s.mu.Unlock()
	if ok {
		return v, entry
	}
	l.metrics.localOverflow.Inc()
	entry.Bucket = overflowKey(policy)
	l.overflow.mu.Lock()
	defer l.overflow.mu.Unlock()
	return l.overflow.ask(now, entry, cost, peek), entry
}

// refund gives back what decide took at now.
func (l *localStore) refund(now int64, policy string, entry quota.Entry, amount quota.Tokens) {
	s := l.shards[hashKey(entry.Bucket)%localShards]
	if entry.Bucket == overflowKey(policy) {
		s = l.overflow
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model.Refund(quota.Refund{Entry: entry, Amount: amount, At: now})
	if e := s.byKey[entry.Bucket]; e != nil {
		e.deniesUntil = 0
	}
}

// decide returns false when there is no room for the bucket.
func (s *localShard) decide(now int64, entry quota.Entry, cost quota.Tokens, peek bool, m *metrics) (quota.Verdict, bool) {
	e := s.byKey[entry.Bucket]
	if e == nil {
		if peek { // an untouched bucket needs no memory to be looked at
			return s.ask(now, entry, cost, true), true
		}
		w := weigh(entry, s.budget)
		if !s.makeRoom(now, w, m) {
			return quota.Verdict{}, false
		}
		e = &localEntry{key: entry.Bucket, weight: w}
		s.byKey[e.key] = e
		s.weight += w
		s.pushFront(e)
	} else {
		s.moveToFront(e)
	}
	v := s.ask(now, entry, cost, peek)
	e.fullAt = now + v.ResetAfter.Microseconds()
	if v.Level < quota.Token {
		next := s.ask(now, entry, quota.Token, true)
		e.deniesUntil = now + max(next.RetryAfter, v.RetryAfter).Microseconds()
		if next.RetryAfter == 0 && !next.Allowed {
			e.deniesUntil = e.fullAt
		}
	}
	return v, true
}

func (s *localShard) ask(now int64, entry quota.Entry, cost quota.Tokens, peek bool) quota.Verdict {
	out, err := s.model.Acquire(now, quota.Attempt{Cost: cost, Entries: []quota.Entry{entry}, Peek: peek})
	if err != nil { // only entries with a share record can fail, and these have none
		return quota.Verdict{}
	}
	return out.Verdicts[0]
}

// weigh is what a bucket counts against the budget: a log is as heavy as the
// entries it may hold.
func weigh(entry quota.Entry, budget int) int {
	w := 1
	if entry.Algorithm == quota.SlidingLog {
		w += int(min(entry.Limit.Capacity.Whole()/entriesPerKey, int64(budget)))
	}
	return min(w, max(1, budget/4))
}

func (s *localShard) makeRoom(now int64, weight int, m *metrics) bool {
	for s.weight+weight > s.budget {
		if !s.evict(now, m) {
			return false
		}
	}
	return true
}

// evict drops one bucket. It looks at a bounded number; those that must stay go
// to the front, so that the next search sees others.
func (s *localShard) evict(now int64, m *metrics) bool {
	var victim *localEntry
	e := s.recent.prev
	for range evictScan {
		if e == &s.recent {
			break
		}
		prev := e.prev
		if e.fullAt <= now {
			s.drop(e)
			return true
		}
		if e.deniesUntil > now {
			s.moveToFront(e)
		} else if victim == nil {
			victim = e
		}
		e = prev
	}
	if victim == nil {
		return false
	}
	s.drop(victim)
	m.localEvicted.Inc()
	return true
}

func (s *localShard) drop(e *localEntry) {
	e.unlink()
	delete(s.byKey, e.key)
	s.model.Forget(e.key)
	s.weight -= e.weight
}
