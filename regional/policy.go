package regional

import (
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
)

// view is one policy revision with the engine's state beside it. A check uses
// one view from beginning to end.
type view struct {
	index    *quota.Index
	policies map[string]*policyState
}

// policyState is what the engine keeps of one policy across revisions.
type policyState struct {
	policy *quota.Policy
	floor  quota.Share
	// demand is nil for policies whose demand nobody asks for.
	demand   *demandCell
	counters *policyCounters
	// share is the region's share record as last read.
	share *atomic.Pointer[heldShare]
	// seen is the version that the newest decision was made under.
	seen *atomic.Int64
	// lease is the region's.
	lease *leaseClock
}

// heldShare is a share record as last seen.
type heldShare struct {
	// perm is what is left of share when the region's lease is over.
	share, perm quota.Share
	version     int64
	since       time.Time
}

// SetIndex makes a revision live. It is applied whole: checks under way finish
// with the revision they began with, later ones see only the new one.
func (e *Engine) SetIndex(ix *quota.Index) {
	e.swap.Lock()
	defer e.swap.Unlock()
	old := e.view.Load()
	next := &view{index: ix, policies: make(map[string]*policyState, ix.Len())}
	for p := range ix.Policies() {
		next.policies[p.ID] = e.stateOf(p, old)
	}
	e.view.Store(next)
	if old == nil {
		return
	}
	for id, s := range old.policies {
		if next.policies[id] == nil {
			e.metrics.forget(id, s.counters)
			e.local.forget(id)
		}
	}
}

func (e *Engine) stateOf(p *quota.Policy, old *view) *policyState {
	s := &policyState{policy: p, lease: &e.lease}
	var prev *policyState
	if old != nil {
		prev = old.policies[p.ID]
	}
	if prev != nil {
		s.demand, s.counters, s.share, s.seen = prev.demand, prev.counters, prev.share, prev.seen
		if prev.policy.Limit != p.Limit || prev.policy.Algorithm != p.Algorithm {
			// The old share is a part of another limit.
			s.share = new(atomic.Pointer[heldShare])
		}
	} else {
		s.counters = new(policyCounters)
		s.share, s.seen = new(atomic.Pointer[heldShare]), new(atomic.Int64)
	}
	if !e.split(p) {
		s.demand = nil
		return s
	}
	s.floor = e.cfg.Floor(p)
	if s.demand == nil {
		s.demand = newDemandCell()
	}
	return s
}

// split reports whether the policy's limit is divided between regions.
func (e *Engine) split(p *quota.Policy) bool {
	return p.Scope == quota.Global && !e.cfg.Standalone && !p.Unlimited
}

// sawShare remembers the region's share record.
func (s *policyState) sawShare(share, perm quota.Share, version int64) {
	held := s.share.Load()
	if held == nil || held.version != version || held.share != share || held.perm != perm {
		s.share.Store(&heldShare{share: share, perm: perm, version: version, since: time.Now()})
	}
}

// behind reports whether a decision was made under another version than is
// remembered. Decisions carry the version only; the agent's loop reads the rest.
func (s *policyState) behind() bool {
	held, seen := s.share.Load(), s.seen.Load()
	return seen > 0 && (held == nil || held.version != seen)
}

// currentShare returns what the region may use as last seen: its share, or what is
// permanent of it when the lease is over; its floor before that.
func (s *policyState) currentShare() quota.Share {
	held := s.share.Load()
	switch {
	case held == nil:
		return s.floor
	case held.perm != held.share && s.lease.left() == 0:
		return held.share.Min(held.perm)
	}
	return held.share
}
