package faulttest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// mutant is one way to break the protocol. The suite must notice each. None is in the
// product: a mutant changes what goes in and out of a machine, a ledger or a store.
type mutant struct {
	// textbook pushes each interval's split; whatever arrives is in force.
	textbook bool
	// growBeforeShrink grants targets as soon as they are computed.
	growBeforeShrink bool
	// absentIsFull: a share that grows is full.
	absentIsFull bool
	// noDrain: regions report a log as drained when its share has shrunk.
	noDrain bool
	// noVersionCheck: regions apply whatever arrives last.
	noVersionCheck bool
	// noEpochCheck: regions go on listening to earlier leaders.
	noEpochCheck bool
	// volatileLedger: each leader starts on an empty ledger.
	volatileLedger bool
	// notDerated: refill and windows are counted as if clocks were exact.
	notDerated bool
	// lossRestoresShare: a region that lost its data goes on with an even part of the limit.
	lossRestoresShare bool
	// sendBeforePersist: a commit's result is not waited for, and the ledger keeps nothing of some.
	sendBeforePersist bool
	// ackOnReceipt: regions acknowledge grants that they apply later.
	ackOnReceipt bool
	// leaseFromReceipt: regions count a lease from when the answer arrives.
	leaseFromReceipt bool
	// leasesGoOn: a region has its lease extended although a share of it is being taken back.
	leasesGoOn bool
	// noDriftMargin: leases are over when their length has passed by the leader's clock.
	noDriftMargin bool
	// revocationGoesOn: a share that is being taken back is taken for gone when its time
	// has come, although the region has acknowledged that, and was given another since.
	revocationGoesOn bool
	// permByFormula: regions go on with half of a share when their lease is over.
	permByFormula bool
	// giftSurvives: what was given with a version that a lower limit replaced is given
	// with the next.
	giftSurvives bool
	// giftAgain: a gift is given to each dataset of a region.
	giftAgain bool
	// resendsOld: a region that loses its data while its share is being taken back is
	// sent what it had.
	resendsOld bool
}

// brain is the mind of a leader: the machine, or what the mutant makes of it.
func (m mutant) brain(w *world, l *leader, s coordinator.Snapshot) brain {
	if m.textbook {
		return newTextbook(slices.Clone(w.names), s.Epoch)
	}
	machine := coordinator.NewMachine(l.clock.time(w.now), time.Second, slices.Clone(w.names), s)
	machine.SetLeaseTTL(w.ttl)
	if m.noDriftMargin {
		return &hasty{machine, w.ttl}
	}
	if m.growBeforeShrink || m.giftSurvives || m.giftAgain || m.resendsOld || m.leasesGoOn {
		return &liar{Machine: machine, mutant: m, clock: func() time.Time { return l.clock.time(w.now) }, told: map[line]told{}, ttl: w.ttl}
	}
	return machine
}

// ownVersions is true of mutants whose stores number what they apply by themselves.
func (m mutant) ownVersions() bool { return m.noVersionCheck || m.noEpochCheck || m.textbook }

// refuses reports whether the mutant passes over a grant.
func (m mutant) refuses(s *stripe, a *account, g quota.Grant) bool {
	return m.noEpochCheck && g.Version <= s.versions[a.index]
}

// onGrant is what a region makes of a grant before it applies it.
func (m mutant) onGrant(s *stripe, g *quota.Grant) {
	if m.permByFormula {
		g.Permanent = quota.Share{Capacity: g.Share.Capacity / 2, Refill: g.Share.Refill / 2}.Max(g.Permanent)
	}
	if m.absentIsFull {
		g.Gift = g.Share.Capacity
	}
	if m.ownVersions() {
		s.applied++
		g.Version = s.applied
	}
}

// onReport is what a region makes of a line before it reports it.
func (m mutant) onReport(r *region, q *quota.QuotaReport) {
	if m.noDrain {
		q.Hold, q.Drained = 0, true
	}
	for _, in := range r.late {
		for _, g := range in.Grants {
			if g.ID == q.ID && g.Version > q.Version && !g.Drop {
				q.Version, q.Share, q.Period = g.Version, g.Share, g.Limit.Period
			}
		}
	}
}

// followLate follows what was acknowledged before.
func (w *world) followLate(r *region) {
	late := r.late
	r.late = nil
	for _, in := range late {
		if in.Gen == r.gen && in.Epoch >= r.epoch() {
			w.follow(r, in)
		}
	}
}

// floor is what a region begins with where it has no record.
func (m mutant) floor(r *region, a *account) quota.Share {
	if p := r.view[a.index]; m.lossRestoresShare && r.lost && p != nil {
		n := quota.Tokens(len(r.names))
		return quota.Share{Capacity: p.Limit.Capacity / n / quota.Token * quota.Token, Refill: p.Limit.Refill / n}
	}
	return r.floor(a)
}

// liar is a machine that grants something other than what is in its ledger, and takes
// its acknowledgement for that of what is.
type liar struct {
	*coordinator.Machine
	mutant mutant
	clock  func() time.Time
	told   map[line]told
	ttl    time.Duration
}

// hasty is a machine that takes a lease back without what it adds to the lease's length
// and, of a log, to the window after it: fixed margins, and as much as clocks that are
// off by rho can make of the time.
type hasty struct {
	*coordinator.Machine
	ttl time.Duration
}

func (h *hasty) Tick(now time.Time) (coordinator.Rebalance, bool) {
	const leaseMargin, lossMargin = 500 * time.Millisecond, 1100 * time.Millisecond // the machine's
	lease := leaseMargin + drift(h.ttl)
	ahead := lease
	for _, q := range h.Status(now).Quotas {
		for _, s := range q.Regions {
			if s.Reclaimed { // from here on it is the window that counts
				ahead = max(ahead, lease+lossMargin+2*drift(q.Limit.Period))
			}
		}
	}
	return h.Machine.Tick(now.Add(ahead))
}

// drift is by how much two clocks can differ about a time.
func drift(d time.Duration) time.Duration { return d * 2 * rho / (clockDiv - rho) }

// revocations are the rows of the ledger that were ever reclaimed.
type revocations map[line]*revocation

type revocation struct {
	row  coordinator.Row // as it was committed last
	rest quota.Share     // what stays of it
	due  int64           // when the entries of its log have left their window
	open bool
}

// follow takes in what was committed.
func (r revocations) follow(now int64, rows []coordinator.Row) {
	for _, row := range rows {
		of := r[line{row.Region, row.ID}]
		if of == nil {
			of = &revocation{}
			r[line{row.Region, row.ID}] = of
		}
		if row.Reclaimed && !of.row.Reclaimed {
			of.rest, of.open = row.Permanent(), true
			of.due = now + (row.Limit.Period + 1200*time.Millisecond + 2*drift(row.Limit.Period)).Microseconds()
		}
		of.row = row
	}
}

// complete returns a row of which a revocation ends now that was acknowledged long since.
func (r revocations) complete(now int64) *coordinator.Row {
	for _, key := range slices.SortedFunc(maps.Keys(r), func(x, y line) int {
		return cmp.Or(cmp.Compare(x.region, y.region), cmp.Compare(x.id.Policy, y.id.Policy))
	}) {
		of := r[key]
		if !of.open || now < of.due {
			continue
		}
		of.open = false
		if row := of.row; !row.Reclaimed && !row.Drop && row.Version > 0 && !row.Bound().Within(of.rest) {
			row.Acked, row.MaxSent, row.PermAcked, row.PermMax = of.rest, of.rest, of.rest, of.rest
			return &row
		}
	}
	return nil
}

type line struct {
	region quota.Region
	id     quota.ID
}

// told is what a region was told last, and what the ledger says it was.
type told struct {
	version     int64
	gen         string
	truth, said quota.Share
	// acked is what it had before, gift what it was given and has not acknowledged.
	acked quota.Share
	gift  quota.Tokens
}

func (l *liar) Report(now time.Time, rep quota.Report) error {
	rep.Quotas = slices.Clone(rep.Quotas)
	for i := range rep.Quotas {
		q := &rep.Quotas[i]
		key := line{rep.Region, q.ID}
		t, known := l.told[key]
		if !known || q.Version != t.version || q.Version == 0 {
			continue
		}
		if q.Share == t.said {
			q.Share = t.truth
		}
		t.acked = q.Share
		if !l.mutant.giftAgain {
			t.gift = 0
		}
		l.told[key] = t
	}
	return l.Machine.Report(now, rep)
}

func (l *liar) Instructions(rep quota.Report) quota.Instructions {
	in := l.Machine.Instructions(rep)
	if l.mutant.leasesGoOn && !l.Recovering() {
		in.Lease = quota.Lease{SentAt: rep.SentAt, TTL: l.ttl}
	}
	for i := range in.Grants {
		g := &in.Grants[i]
		t := l.told[line{rep.Region, g.ID}]
		truth := g.Share
		switch {
		case g.Drop:
		case l.mutant.growBeforeShrink:
			g.Share = l.target(rep.Region, *g)
		case l.mutant.resendsOld && t.gen != "" && t.gen != rep.Gen:
			g.Share = g.Share.Max(t.acked)
		case l.mutant.giftSurvives || l.mutant.giftAgain:
			g.Gift = max(g.Gift, t.gift)
		}
		g.Permanent = g.Share
		gen := rep.Gen
		if l.mutant.resendsOld && t.version == g.Version && t.said != t.truth {
			gen = t.gen // and again until it is acknowledged
		}
		l.told[line{rep.Region, g.ID}] = told{g.Version, gen, truth, g.Share, t.acked, max(g.Gift, t.gift)}
	}
	return in
}

func (l *liar) target(region quota.Region, g quota.Grant) quota.Share {
	for _, q := range l.Status(l.clock()).Quotas {
		for _, s := range q.Regions {
			if q.ID == g.ID && s.Region == region {
				return s.Share
			}
		}
	}
	return g.Share
}
