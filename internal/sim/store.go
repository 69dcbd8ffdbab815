package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/weirhq/weir/quota"
)

// The one quota that is simulated, and its names in a store of one stripe.
const (
	policyID  = "simulated"
	keyName   = "0000000000000000:" + policyID // as quota.TrackedKey has it, of stripe 0
	shareKey  = "rl:{0}@share:" + policyID
	bucketKey = "rl:{0}:" + policyID
)

// store is one region's store: a quota.Model and what is known of it.
type store struct {
	model *quota.Model
	entry []quota.Entry
	// level is what could be spent at once after the last attempt.
	level quota.Tokens
	// share is in force: the key's own when it is tracked, else that of the policy,
	// whole, which came with version. Before the first it is the floor.
	share   quota.Share
	whole   quota.Share
	version int64
	tracked bool
	epoch   quota.Epoch
	gen     string
	// hold is the largest share that entries of a log may still stem from, shrunk when
	// that ended to be the share.
	hold   quota.Tokens
	shrunk int64
	// onShare is called when another share is in force.
	onShare func()
}

// newStore returns a store that enforces shares of the policy, from its floor on.
func newStore(p *quota.Policy, floor quota.Share, onShare func()) *store {
	return &store{
		model: quota.NewModel(), share: floor, whole: floor, onShare: onShare,
		entry: []quota.Entry{{
			Bucket: bucketKey, ShareKey: shareKey, Algorithm: p.Algorithm, Limit: p.Limit, Base: p.Limit, Floor: floor,
		}},
	}
}

// newPlainStore returns a store of the kind that is told numbers and has no share
// records: an ordinary regional limit.
func newPlainStore(p *quota.Policy, share quota.Share, onShare func()) *store {
	s := &store{
		model: quota.NewModel(), onShare: onShare,
		entry: []quota.Entry{{Bucket: bucketKey, Algorithm: p.Algorithm, Limit: p.Limit, Base: p.Limit}},
	}
	s.set(share)
	return s
}

// set puts other numbers in force in a plain store.
func (s *store) set(share quota.Share) {
	if share.Refill == 0 && s.entry[0].Algorithm == quota.TokenBucket {
		share.Capacity = 0 // what never refills is not a limit
	}
	s.share = share
	s.entry[0].Limit.Capacity, s.entry[0].Limit.Refill = share.Capacity, share.Refill
	s.entry[0].Base = s.entry[0].Limit
	s.onShare()
}

// admit admits as many of n requests as there is room for, all at one instant.
func (s *store) admit(now int64, n int) (int, error) {
	if s.entry[0].ShareKey != "" && s.gen == "" {
		return 0, nil // before the region has its first dataset
	}
	a := quota.Attempt{Cost: quota.Tokens(n) * quota.Token, Entries: s.entry}
	out, err := s.model.Acquire(now, a)
	if err != nil {
		return 0, fmt.Errorf("acquire: %w", err)
	}
	s.level = out.Verdicts[0].Level
	if out.Allowed {
		return n, nil
	}
	a.Cost = quota.Tokens(s.level.Whole()) * quota.Token
	if a.Cost <= 0 {
		return 0, nil
	}
	if out, err = s.model.Acquire(now, a); err != nil {
		return 0, fmt.Errorf("acquire: %w", err)
	}
	if !out.Allowed {
		return 0, fmt.Errorf("%s tokens are denied at a level of %s", a.Cost, s.level)
	}
	s.level = out.Verdicts[0].Level
	return int(a.Cost / quota.Token), nil
}

// initialise makes the first dataset.
func (s *store) initialise(now int64, gen string, fresh bool) {
	s.model.Initialise(now, 0, gen, fresh)
	s.gen = gen
}

// apply applies grants as a region's agent does, those of the key first, and reads back
// what is in force.
func (s *store) apply(now int64, epoch quota.Epoch, grants []quota.Grant) error {
	var keys, whole []quota.Grant
	for _, g := range grants {
		if g.ID.Key != "" {
			keys = append(keys, g)
		} else {
			whole = append(whole, g)
		}
	}
	places := make([]quota.Place, len(keys))
	for i := range places {
		places[i] = quota.Place{Bucket: bucketKey, ShareKey: shareKey}
	}
	if _, err := s.model.Track(now, 0, epoch, s.gen, places, keys); err != nil {
		return fmt.Errorf("apply %d grants of the key: %w", len(keys), err)
	}
	names := make([]string, len(whole))
	for i := range names {
		names[i] = shareKey
	}
	if _, err := s.model.Apply(now, 0, epoch, s.gen, names, whole); err != nil {
		return fmt.Errorf("apply %d grants: %w", len(whole), err)
	}
	s.epoch = epoch
	if version, share, ok := s.model.Held(shareKey); ok {
		if share.Capacity < s.whole.Capacity {
			if now-s.shrunk >= s.window() {
				s.hold = 0
			}
			s.hold, s.shrunk = max(s.hold, s.whole.Capacity), now
		}
		s.whole, s.version, s.share = share, version, share
	}
	var key quota.KeyState
	if key, s.tracked = s.model.HeldKey(now, bucketKey); s.tracked {
		s.share = key.Share
	}
	s.onShare()
	return nil
}

// window is how long an entry of a log counts on a region's clock.
func (s *store) window() int64 {
	return int64(math.Ceil(float64(micros(s.entry[0].Base.Period)) * (1 + quota.Drift)))
}

// held is what the region reports of its share record, by the rules of lua.Store.Held:
// a log is taken to hold what its share was until a window has passed.
func (s *store) held(now int64) quota.QuotaReport {
	r := quota.QuotaReport{
		ID: quota.ID{Policy: policyID}, Version: s.version, Share: s.whole,
		Period: s.entry[0].Base.Period, Drained: true,
	}
	if s.entry[0].Algorithm == quota.SlidingLog && now-s.shrunk < s.window() && s.hold > s.whole.Capacity {
		r.Drained, r.Hold = false, s.hold
	}
	return r
}

// heldKey is what the region reports of the key when it has its own record, as
// lua.Store does: of a log the entries themselves are counted.
func (s *store) heldKey(now int64) (r quota.QuotaReport, ok bool) {
	key, ok := s.model.HeldKey(now, bucketKey)
	return quota.QuotaReport{
		ID: quota.ID{Policy: policyID, Key: keyName}, Version: key.Version, Share: key.Share, Period: s.entry[0].Base.Period,
		Drained: key.Hold <= key.Share.Capacity, Hold: key.Hold, Surrendered: key.Surrendered,
	}, ok
}

// flagged reports whether the key is near its limit here: it has less than half of its
// share left, or was denied.
func (s *store) flagged(denied bool) bool { return denied || s.level < s.share.Capacity/2 }

// starves reports whether a region should ask for more: it denies, or it is about
// to at the present rate, in tokens per second.
func (s *store) starves(rate float64, denied bool) bool {
	if denied {
		return true
	}
	if s.entry[0].Algorithm == quota.SlidingLog {
		return float64(s.level)/float64(quota.Token) < starvingLog.Seconds()*rate
	}
	return float64(s.level) < starvingBucket*float64(s.share.Capacity)
}

// When a region asks for more: its bucket holds less than this part of the share, or
// its log has free slots for less than this time.
const (
	starvingBucket = 0.35
	starvingLog    = 300 * time.Millisecond
)
