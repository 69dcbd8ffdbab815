package regional

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/quota"
)

// maxSeenTracked bounds how many tracked keys a node remembers to have decided: those of
// four policies that have as many as may be.
const maxSeenTracked = 4 * ownKeys

// ownShares is what a node knows of keys that have a share of their own. The store's
// scripts need none of it; what is decided, or explained, without the store does.
type ownShares struct {
	// known are the shares by bucket, on the node whose agent looks after them; nil on
	// all others.
	known atomic.Pointer[map[string]quota.Share]
	// seen holds the buckets that the store has last decided by their own share.
	seen  sync.Map
	count atomic.Int64
}

// note takes in how the store has decided a key.
func (o *ownShares) note(bucket string, tracked bool) {
	switch {
	case tracked:
		if _, ok := o.seen.Load(bucket); !ok && o.count.Load() < maxSeenTracked {
			// A part of a longer string, which must not be kept for it.
			if _, loaded := o.seen.LoadOrStore(strings.Clone(bucket), struct{}{}); !loaded {
				o.count.Add(1)
			}
		}
	case o.count.Load() > 0:
		if _, loaded := o.seen.LoadAndDelete(bucket); loaded {
			o.count.Add(-1)
		}
	}
}

// share returns a key's own share where this node knows it.
func (o *ownShares) share(bucket string) (quota.Share, bool) {
	if known := o.known.Load(); known != nil {
		s, ok := (*known)[bucket]
		return s, ok
	}
	return quota.Share{}, false
}

// tracked reports whether this node knows a key to have a share of its own.
func (o *ownShares) tracked(bucket string) bool {
	if o.count.Load() > 0 {
		if _, ok := o.seen.Load(bucket); ok {
			return true
		}
	}
	_, ok := o.share(bucket)
	return ok
}

// withoutStore returns what the region may use of a key, as far as this node knows: of
// one with a share of its own that it does not know, the floor, which no split goes
// below. The policy's share may be more than the key's.
func (e *Engine) withoutStore(s *step) (share quota.Share, own bool) {
	if !e.own.tracked(s.bucket) {
		return s.state.currentShare(), false
	}
	if share, ok := e.own.share(s.bucket); ok {
		return share, true
	}
	return s.state.floor.Min(s.state.currentShare()), true
}

// publishKeys tells the engine of the shares of tracked keys, when they have changed.
func (a *Agent) publishKeys() {
	known := make(map[string]quota.Share, len(a.keys.held))
	for id, q := range a.keys.held {
		if bucket, _, err := quota.PlaceOf(id, a.engine.cfg.KeyPrefix, a.engine.cfg.Stripes); err == nil {
			known[bucket] = q.Share
		}
	}
	a.engine.own.known.Store(&known)
}
