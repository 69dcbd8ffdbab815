package quota

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Model is the algorithms in plain Go: what the scripts in lua/ do, with the same
// arithmetic and rounding, on maps instead of Redis. The scripts are held against
// it by a property test. It also stands in for Redis where there is none: the local
// bucket of a node whose store is away, and tests.
//
// The caller brings the clock, in microseconds, and the order: a Model is not safe
// for concurrent use. Keys vanish at their expiry only through Expire.
type Model struct {
	regions map[int]*regionRecord
	shares  map[string]record
	buckets map[string]bucketValue
	logs    map[string]logValue
	tracked map[string]trackedKey
	replies map[string]reply
}

type regionRecord struct {
	gen      string
	epoch    Epoch
	leaseEnd float64
	// hot is the instant before which a dataset that replaced a lost one admits
	// nothing; zero for one that did not.
	hot float64
}

// bucketValue is a stored bucket: a level, and the clock (regional numbers) or the
// accumulator (share record) of the instant at which it was the level.
type bucketValue struct {
	level, mark float64
	shared      bool
	// wrap is what mark counts modulo.
	wrap    float64
	expires float64
}

// logValue is a stored log: the instants of its entries, oldest first.
type logValue struct {
	entries []float64
	expires float64
}

type reply struct {
	outcome Outcome
	expires float64
}

// NewModel returns an empty model.
func NewModel() *Model {
	return &Model{
		regions: map[int]*regionRecord{},
		shares:  map[string]record{},
		buckets: map[string]bucketValue{},
		logs:    map[string]logValue{},
		tracked: map[string]trackedKey{},
		replies: map[string]reply{},
	}
}

// Len returns how many buckets and logs the model holds.
func (m *Model) Len() int { return len(m.buckets) + len(m.logs) }

// Expire drops what has expired by now, as Redis does by itself.
func (m *Model) Expire(now int64) {
	t := float64(now)
	maps.DeleteFunc(m.buckets, func(_ string, v bucketValue) bool { return v.expires < t })
	maps.DeleteFunc(m.logs, func(_ string, v logValue) bool { return v.expires < t })
	maps.DeleteFunc(m.replies, func(_ string, v reply) bool { return v.expires < t })
}

// Forget drops one bucket or log, as if it had never been touched.
func (m *Model) Forget(bucket string) {
	delete(m.buckets, bucket)
	delete(m.logs, bucket)
	delete(m.tracked, bucket)
}

// Initialise gives a stripe its region record. A stripe without one, in a region
// that is not fresh, has lost its data.
func (m *Model) Initialise(now int64, stripe int, gen string, fresh bool) {
	if r := m.regions[stripe]; r != nil {
		r.gen = gen
		return
	}
	r := &regionRecord{gen: gen}
	if !fresh {
		r.hot = float64(now) + micros(lostPause)
	}
	m.regions[stripe] = r
}

// Apply applies grants to one stripe; keys names the share record of each. It
// returns the version in force of each, or ErrFenced when the dataset or the epoch
// is not the stripe's.
func (m *Model) Apply(now int64, stripe int, epoch Epoch, gen string, keys []string, grants []Grant) ([]int64, error) {
	region, err := m.accepts(stripe, epoch, gen)
	if err != nil {
		return nil, err
	}
	versions := make([]int64, len(grants))
	for i, g := range grants {
		old, held := m.shares[keys[i]]
		switch {
		case held && !old.older(g, epoch):
			versions[i] = int64(old.version)
			continue
		case g.Drop:
			delete(m.shares, keys[i])
		case held:
			m.shares[keys[i]] = old.settled(g, epoch, float64(now), region.leaseEnd)
		default:
			m.shares[keys[i]] = newRecord(g, epoch, float64(now), region.hot)
		}
		versions[i] = g.Version
	}
	region.epoch = epoch
	return versions, nil
}

// accepts returns the region record of a stripe, or why it takes no grants of a dataset
// and an epoch.
func (m *Model) accepts(stripe int, epoch Epoch, gen string) (*regionRecord, error) {
	region := m.regions[stripe]
	if region == nil {
		return nil, fmt.Errorf("stripe %d: %w", stripe, ErrUninitialised)
	}
	if region.gen != gen || epoch < region.epoch {
		return nil, fmt.Errorf("stripe %d: dataset %q at epoch %d: %w", stripe, region.gen, region.epoch, ErrFenced)
	}
	return region, nil
}

// older reports whether a grant of the leader with the given epoch is newer than the record.
func (r record) older(g Grant, epoch Epoch) bool {
	return epoch > r.epoch || epoch == r.epoch && float64(g.Version) > r.version
}

// Held returns the version and the share of the record with the given key; ok is
// false when there is none.
func (m *Model) Held(shareKey string) (version int64, share Share, ok bool) {
	r, ok := m.shares[shareKey]
	return int64(r.version), Share{Tokens(r.capacity), Tokens(r.refill)}, ok
}

// HeldPeriod returns the period that the refill of that share counts by.
func (m *Model) HeldPeriod(shareKey string) time.Duration {
	return fromMicros(m.shares[shareKey].period)
}

// Acquire decides an attempt as of now. The error is ErrUninitialised when the
// attempt has global quotas and the stripe no region record.
func (m *Model) Acquire(now int64, a Attempt) (Outcome, error) {
	t := float64(now)
	remembered := a.RequestID != "" && !a.Peek && a.Cost > 0
	if remembered {
		if r, ok := m.replies[a.RequestID]; ok {
			if len(r.outcome.Verdicts) != len(a.Entries) {
				return Outcome{}, ErrRequestID
			}
			r.outcome.Replayed = true
			r.outcome.Verdicts = slices.Clone(r.outcome.Verdicts)
			return r.outcome, nil
		}
	}
	if err := m.ready(a); err != nil {
		return Outcome{}, err
	}
	steps := make([]step, len(a.Entries))
	allowed := true
	for i, e := range a.Entries {
		if e.Algorithm == SlidingLog {
			steps[i] = m.decideLog(t, a, e)
		} else {
			steps[i] = m.decideBucket(t, a, e)
		}
		if steps[i].code != 1 && !e.Shadow {
			allowed = false
		}
	}
	out := Outcome{Allowed: allowed, At: now, Verdicts: make([]Verdict, len(steps))}
	charge := allowed && a.Cost > 0 && !a.Peek
	for i, s := range steps {
		charged := charge && s.code == 1
		level := s.spendable
		reset := s.reset(false)
		if charged {
			level -= float64(a.Cost)
			reset = s.reset(true)
			s.put()
		}
		out.Verdicts[i] = Verdict{
			Allowed: s.code == 1, NeverFits: s.code == -1,
			Level:      Tokens(level),
			RetryAfter: fromMicros(math.Min(s.wait, longestWait)), ResetAfter: fromMicros(math.Min(reset, longestWait)),
			Version: s.version, Tracked: s.tracked,
		}
		if a.Peek {
			out.Verdicts[i].Share = s.share
		}
	}
	if remembered && charge {
		kept := out
		kept.Verdicts = slices.Clone(out.Verdicts)
		m.replies[a.RequestID] = reply{outcome: kept, expires: t + micros(IdempotencyTTL)}
	}
	return out, nil
}

// ready fails when an attempt needs a region record that the stripe does not have.
func (m *Model) ready(a Attempt) error {
	for _, e := range a.Entries {
		if e.ShareKey != "" && m.regions[a.Stripe] == nil {
			return fmt.Errorf("stripe %d: %w", a.Stripe, ErrUninitialised)
		}
	}
	return nil
}

// Refund gives back tokens of one quota. An absent bucket is full and an absent log
// is empty, so nothing is given back to them.
func (m *Model) Refund(r Refund) {
	if r.RequestID != "" {
		delete(m.replies, r.RequestID)
	}
	key := r.Entry.Bucket
	if v, ok := m.logs[key]; ok && r.Entry.Algorithm == SlidingLog {
		v.entries = dropEntries(v.entries, int(r.Amount/Token), float64(r.At))
		if len(v.entries) == 0 {
			delete(m.logs, key)
		} else {
			m.logs[key] = v
		}
	}
	if v, ok := m.buckets[key]; ok && r.Entry.Algorithm == TokenBucket {
		v.level = math.Min(v.level+float64(r.Amount), float64(r.Entry.Limit.Capacity))
		m.buckets[key] = v
	}
}

// dropEntries removes up to n entries: those with the given instant or, when that is
// zero, the oldest.
func dropEntries(entries []float64, n int, at float64) []float64 {
	if at == 0 {
		return slices.Clone(entries[min(n, len(entries)):])
	}
	kept := make([]float64, 0, len(entries))
	for _, e := range entries {
		if n > 0 && e == at {
			n--
			continue
		}
		kept = append(kept, e)
	}
	return kept
}
