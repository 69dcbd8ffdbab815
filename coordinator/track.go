package coordinator

import (
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	// MaxTrackedKeys bounds how many keys of one policy have a split of their own.
	// Regions send the busiest; an attacker who makes up keys fills no more than this.
	MaxTrackedKeys = 4096
	// calmPart is the part of a region's default share under which the demand for a
	// key must stay in every region for the key to be calm. Half of what makes a
	// region flag one.
	calmPart = 0.25
	// calmFor is how long a tracked key must be calm before it goes back under the
	// default split.
	calmFor = 5 * time.Minute
	// longestHoldUp is how long a default share may wait for keys to be pinned before
	// no more keys are tracked until it has grown.
	longestHoldUp = 10 * time.Second
)

// Policies of partition mode strict have no tracked keys: a region settles its share
// records before it extends a lease that was over, and a key's own record is not among
// them. When a policy becomes strict, its keys go back under the default split, and keep
// their shares as in mode hold until they have.

// flag takes in that a region finds a key near its limit there (D1): the key gets a
// split of its own, by its own demand. All other keys stay under the default split,
// and lose nothing by that: their demand is below their part of it in every region.
func (m *Machine) flag(now time.Time, r *region, line *quota.QuotaReport) {
	whole := m.quotas[quota.ID{Policy: line.ID.Policy}]
	if whole == nil || whole.removed || whole.strict() || m.recovering || !m.configured || line.Demand < idle {
		return
	}
	if len(whole.keys) >= MaxTrackedKeys || !m.trackable(whole, now) {
		m.flagsLeft++
		return
	}
	q := m.quota(line.ID)
	m.inherit(q)
	for i := range q.rows {
		// What the region's busiest key was offered is at least what this one was.
		q.rows[i].load = whole.rows[i].load
	}
	q.rows[r.index].load = load{}
	q.rows[r.index].load.observe(line.Demand, now)
	copy(q.targets, whole.targets)
	q.rouse(now)
	m.borrow(q, now)
}

// trackable reports whether keys of a policy may be given splits of their own now. A
// default share cannot grow in a region that has yet to pin a key (see loose), and a
// stream of new keys must not hold it up for ever. And a key's record is a copy of the
// default one: where that is not there yet, the tokens which the first grant brings
// would miss the key.
func (m *Machine) trackable(whole *splitQuota, now time.Time) bool {
	for i, r := range m.regions {
		row := &whole.rows[i]
		if !r.leaving && (row.AckVersion == 0 || !row.heldUpAt.IsZero() && now.Sub(row.heldUpAt) > longestHoldUp) {
			return false
		}
	}
	return true
}

// heldUp notes that a default share waits for keys to be pinned, and since when.
func (r *row) heldUp(waits bool, now time.Time) {
	switch {
	case !waits:
		r.heldUpAt = time.Time{}
	case r.heldUpAt.IsZero():
		r.heldUpAt = now
	}
}

// rouse keeps a key that is near its limit again from going back under the default split.
func (q *splitQuota) rouse(now time.Time) {
	if q.parent != nil && !q.parent.strict() {
		q.busyAt, q.leaving = now, false
	}
}

// inherit gives a key the numbers of its policy.
func (m *Machine) inherit(q *splitQuota) {
	whole := q.parent
	for i := range q.rows {
		// A region without the key's record may use its policy's floor (F3).
		floor := convert(q.rows[i].floor, q.limit.Period, whole.limit.Period)
		q.rows[i].floor = floor.Max(whole.floors[i])
	}
	q.algorithm, q.limit, q.split = whole.algorithm, whole.limit, whole.split
	q.removed, q.removedIn, q.removedAt = whole.removed, whole.removedIn, whole.removedAt
	copy(q.floors, whole.floors)
}

// inheritAll does so for all keys of a policy whose numbers have changed.
func (m *Machine) inheritAll(whole *splitQuota, now time.Time) {
	for _, q := range whole.keys {
		limit, algorithm := q.limit, q.algorithm
		m.inherit(q)
		switch {
		case limit.Capacity == 0 && m.hasRows(q): // found in a region, by a lossy ledger
			m.keep(q)
		case limit != q.limit || algorithm != q.algorithm || !m.meetsFloors(q):
			m.retarget(q, now, false)
		}
	}
}

// pinned reports whether the region is known to follow the key's own record. Until it
// is, and once it may have been dropped, the key follows the region's default share.
func (r *row) pinned() bool { return r.AckVersion > 0 && !r.Drop }

// follows returns the row whose share a region uses for a quota: that of the policy
// where a key has no row yet.
func (q *splitQuota) follows(i int) *row {
	if q.parent != nil && !q.rows[i].exists() {
		return &q.parent.rows[i]
	}
	return &q.rows[i]
}

// loose reports whether any key of a policy follows the default share of a region, or
// may do so. That share must not grow then: the bound of such a key is that of the
// default share (D3), and the key's own sum has no room for more.
func (q *splitQuota) loose(i int) bool {
	for _, key := range q.keys {
		if !key.rows[i].pinned() {
			return true
		}
	}
	return false
}

// withheld reports whether a region must not be told its default share yet: its
// present dataset does not have the record of a key that it had before. With the
// default share it would use more for that key than the key's row covers.
func (r *row) withheld() bool {
	for _, key := range r.quota.keys {
		if row := &key.rows[r.region.index]; row.pinned() && row.heldGen != r.region.gen {
			return true
		}
	}
	return false
}

// review notes which keys are busy, and sends those that are not for a while back
// under the default split: their shares become those of the default split, and a
// minute after that is acknowledged the record goes.
func (m *Machine) review(q *splitQuota, now time.Time) {
	if q.parent == nil {
		return
	}
	if q.parent.strict() {
		q.leaving = true
		return
	}
	if !m.calm(q, now) {
		q.rouse(now)
		return
	}
	if now.Sub(q.busyAt) >= calmFor {
		q.leaving = true
	}
}

// calm reports whether no region is offered much of a key, in terms of the default
// share that it would have.
func (m *Machine) calm(q *splitQuota, now time.Time) bool {
	for i := range q.rows {
		l := &q.rows[i].load
		l.settle(now)
		share, period := q.parent.rows[i].Sent, q.parent.rows[i].Limit.Period
		rate := share.Refill
		if q.algorithm == quota.SlidingLog {
			rate = share.Capacity
		}
		if l.peak > calmPart*float64(rate)/float64(quota.Token)/max(period.Seconds(), 1e-3) && l.peak > idle {
			return false
		}
	}
	return true
}

// returnable reports whether a key's record can be dropped in a region: it has said
// just what the default record says, for so long that nothing else is under way.
func (m *Machine) returnable(row *row, i int, now time.Time) bool {
	q := row.quota
	if !q.leaving || q.removed || !row.exists() {
		return false
	}
	if row.Drop {
		return true
	}
	whole := &q.parent.rows[i]
	return row.resting() && whole.resting() && row.Sent == whole.Sent && (row.Perm == whole.Perm || q.parent.strict()) && row.Limit == whole.Limit &&
		now.Sub(row.ackedAt) >= messageLife
}

// resting reports whether a row says of its region nothing but its last version.
func (r *row) resting() bool {
	return r.settled() && r.Bound() == r.Sent && r.Permanent() == r.Perm && !r.Reclaimed
}

// returned reports whether nothing is left of a key that has gone back.
func (m *Machine) returned(q *splitQuota) bool {
	if q.parent == nil || !q.leaving || q.removed || m.hasRows(q) {
		return false
	}
	for i := range q.rows {
		if q.rows[i].dirty || q.rows[i].inOutbox {
			return false
		}
	}
	return true
}

// surrender parks what a shrink has cut off a key's level, to be passed on (L6).
func (m *Machine) surrender(row *row, q *quota.QuotaReport) {
	if row.quota.parent != nil && row.quota.algorithm == quota.TokenBucket && row.AckVersion != q.Version && q.Version == row.Version {
		row.quota.parked += q.Surrendered
	}
}

// present takes parked tokens that a grow may bring along. What is parked never
// exceeds the capacity that is allocated to nobody, and a gift never the capacity that
// its grow adds, so levels and gifts together stay within the limit.
func (q *splitQuota) present(row *row, step quota.Share) quota.Tokens {
	if q.parent == nil || q.algorithm != quota.TokenBucket || q.parked <= 0 || !row.pinned() || !row.settled() {
		return 0
	}
	had := convertDown(row.Acked, row.Limit.Period, q.limit.Period).Capacity
	gift := min(q.parked, max(0, step.Capacity-had))
	q.parked -= gift
	return gift
}
