package faulttest

import (
	"github.com/weirhq/weir/quota"
)

// mutant is one way to break the protocol. The suite must notice each.
type mutant struct {
	// noVersionCheck: regions apply whatever arrives last.
	noVersionCheck bool
	// noEpochCheck: regions go on listening to earlier leaders.
	noEpochCheck bool
	// noDrain: regions report a log as drained when its share has shrunk.
	noDrain bool
	// lossRestoresShare: a region that lost its data goes on with an even part of the limit.
	lossRestoresShare bool
	// sendBeforePersist: a commit's result is not waited for, and the ledger keeps nothing of some.
	sendBeforePersist bool
	// notDerated: refill and windows are counted as if clocks were exact.
	notDerated bool
	// absentIsFull: a share that grows is full.
	absentIsFull bool
}

// onGrant is what a region makes of a grant before it applies it.
func (m mutant) onGrant(s *stripe, g *quota.Grant) {
	if m.absentIsFull {
		g.Gift = g.Share.Capacity
	}
	if m.noVersionCheck || m.noEpochCheck {
		s.applied++
		g.Version = s.applied
	}
}

func (m mutant) floor(r *region, a *account) quota.Share {
	if p := r.view[a.index]; m.lossRestoresShare && r.lost && p != nil {
		n := quota.Tokens(len(r.names))
		return quota.Share{Capacity: p.Limit.Capacity / n / quota.Token * quota.Token, Refill: p.Limit.Refill / n}
	}
	return r.floor(a)
}
