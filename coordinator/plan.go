package coordinator

import (
	"math"
	"math/bits"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

// plan issues the versions that bring a quota towards its targets: shrinks at
// once, grows as far as the limit is not bound (L2). It is called whenever a
// bound or a target may have changed, and does nothing when none has.
func (m *Machine) plan(q *splitQuota, now time.Time) {
	if m.recovering || !m.configured {
		return
	}
	r := room{total: q.limit.Share(), newborn: q.parent == nil && !q.past && !m.hasRows(q)}
	if q.algorithm != quota.TokenBucket {
		r.total.Refill = 0
	}
	r.free = r.total.Sub(m.allocated(q))
	for i := range q.rows {
		if q.rows[i].settled() {
			r.need = r.need.Add(positive(m.want(q, i, now).Sub(m.bound(q, i))))
		}
	}
	if q.within(now, m.recovered) {
		// A region may have lost entries that the ledger has lost as well.
		r.free = r.free.Min(quota.Share{Capacity: -1})
	}
	q.parked = min(q.parked, max(0, r.free.Capacity))
	r.left = positive(r.free)
	for i := range q.rows {
		m.planRow(q, i, &r, now)
	}
}

// room is what one plan has to give.
type room struct {
	total quota.Share
	// free is the limit less all bounds, below zero while too much is out. need is
	// what settled regions want above their bounds, left what is not given yet.
	free, need, left quota.Share
	newborn          bool
}

func (m *Machine) planRow(q *splitQuota, i int, r *room, now time.Time) {
	row := &q.rows[i]
	want, dropping := m.want(q, i, now), m.dropping(q, i, now)
	defer func() { m.observe(row, want) }()
	if !row.exists() && (dropping || q.removed || q.leaving) {
		return
	}
	// A region that has yet to acknowledge gets no more than it was sent last; nor does
	// one whose share was reclaimed, of which U will be P whatever it is sent meanwhile.
	reach := convertDown(row.Sent, row.Limit.Period, q.limit.Period)
	if row.settled() && !row.Reclaimed {
		reach = m.reach(q, i, r.free)
		part := quota.Share{}
		if !q.removed && !dropping {
			part = portion(positive(want.Sub(reach)), r.need, positive(r.free)).Min(r.left)
		}
		loose := part != quota.Share{} && q.loose(i)
		if row.heldUp(loose, now); !loose {
			r.left = r.left.Sub(part)
			reach = reach.Add(part)
		}
	}
	step, drop := m.step(q, want, reach), m.drops(row, i, now)
	if row.exists() && step == row.Sent && drop == row.Drop && !m.stale(q, i) {
		return
	}
	if m.worth(row, step, want, r.total, drop) {
		m.issue(row, step, drop, r.newborn, now)
	}
}

// reach returns what a settled region may be granted without raising the sum of
// bounds: its own, and a new floor only where others no longer use it. While the sum
// is above the limit it is what the region has: bounds may then count floors that are
// not in use and that others still use.
func (m *Machine) reach(q *splitQuota, i int, free quota.Share) quota.Share {
	row := q.follows(i)
	s := convertDown(row.Bound(), row.Limit.Period, q.limit.Period)
	if q.removed {
		return s
	}
	has := convertDown(row.Sent, row.Limit.Period, q.limit.Period)
	if s.Capacity = max(s.Capacity, q.floors[i].Capacity); free.Capacity < 0 {
		s.Capacity = has.Capacity
	}
	if s.Refill = max(s.Refill, q.floors[i].Refill); free.Refill < 0 {
		s.Refill = has.Refill
	}
	return s
}

// step returns what of want can be granted now.
func (m *Machine) step(q *splitQuota, want, reach quota.Share) quota.Share {
	s := want.Min(reach)
	if s.Capacity != want.Capacity {
		s.Capacity -= s.Capacity % quota.Token
	}
	s = splitter.Fit(q.algorithm, q.limit, s)
	if q.algorithm != quota.TokenBucket {
		s.Refill = 0
	}
	return s
}

// want is what a region should have.
func (m *Machine) want(q *splitQuota, i int, now time.Time) quota.Share {
	switch {
	case m.dropping(q, i, now):
		return quota.Share{}
	case q.removed:
		return q.rows[i].Sent
	case q.leaving:
		return convertDown(q.parent.rows[i].Sent, q.parent.rows[i].Limit.Period, q.limit.Period)
	}
	return q.targets[i]
}

// dropping reports whether a region's share of a quota is to be taken back for
// good: the region is leaving, or the policy is gone and the region knows.
func (m *Machine) dropping(q *splitQuota, i int, now time.Time) bool {
	r := m.regions[i]
	if r.leaving {
		return true
	}
	return q.removed && (r.revision >= q.removedIn || now.Sub(q.removedAt) >= removalGrace)
}

// drops reports whether the record of a share that was taken back can be removed.
func (m *Machine) drops(row *row, i int, now time.Time) bool {
	if m.returnable(row, i, now) {
		return true
	}
	if !m.dropping(row.quota, i, now) || !row.exists() {
		return false
	}
	return row.Drop || (row.settled() && row.Bound() == quota.Share{} && now.Sub(row.ackedAt) >= messageLife)
}

// bound is U of a row in the present units of the quota: what the ledger holds,
// and the floor, which a region may use before it has any share. An earlier,
// larger floor counts until a share was acknowledged (F3).
func (m *Machine) bound(q *splitQuota, i int) quota.Share {
	u := convert(q.rows[i].Bound(), q.rows[i].Limit.Period, q.limit.Period)
	if !q.removed && !m.regions[i].leaving {
		u = u.Max(q.rows[i].floor)
	}
	if q.parent != nil && !q.rows[i].pinned() {
		u = u.Max(m.bound(q.parent, i))
	}
	return u
}

// stale reports whether the last version was issued under other numbers.
func (m *Machine) stale(q *splitQuota, i int) bool {
	row := &q.rows[i]
	if q.removed || m.regions[i].leaving {
		return false
	}
	return row.Limit != q.limit || row.Algorithm != q.algorithm || row.Floor != q.floors[i].Min(row.Sent) ||
		row.Perm != m.permanent(q, i, row.Sent)
}

// worth holds back grows that are a small part of what is wanted: the rest will
// be free soon, and every version has to be acknowledged.
func (m *Machine) worth(row *row, step, want, total quota.Share, drop bool) bool {
	if !row.exists() || drop || step == want || m.stale(row.quota, row.region.index) || !row.Sent.Within(step) {
		return true
	}
	gain := step.Sub(row.Sent)
	return gain.Refill > total.Refill/64 || gain.Capacity >= quota.Token+total.Capacity/64
}

// issue makes a new version of a row. It counts from now on, and is sent when it is committed.
func (m *Machine) issue(row *row, step quota.Share, drop, newborn bool, now time.Time) {
	q := row.quota
	row.gift = 0
	if newborn && q.algorithm == quota.TokenBucket {
		// Nobody can have spent anything of a quota that never was, but for the
		// floor that a region may use before it is told.
		row.gift = max(0, step.Capacity-q.floors[row.region.index].Capacity)
	} else {
		row.gift = q.present(row, step)
	}
	if row.Drop && !drop {
		row.AckVersion = 0 // the region may have gone back to its default share
	}
	row.Acked = convert(row.Acked, row.Limit.Period, q.limit.Period)
	if row.AckVersion == 0 && !q.removed {
		row.Acked = row.Acked.Max(row.floor)
		if q.parent != nil {
			row.Acked = row.Acked.Max(m.bound(q.parent, row.region.index))
		}
	}
	row.MaxSent = convert(row.MaxSent, row.Limit.Period, q.limit.Period).Max(step)
	m.permit(row, step)
	row.Sent, row.Drop = step, drop
	if !row.exists() {
		row.Version = m.base
	}
	row.Version++
	row.Algorithm, row.Limit, row.Floor = q.algorithm, q.limit, q.floors[row.region.index].Min(step)
	row.confirmed, row.issuedAt = false, now
	m.touch(row)
	m.enqueue(row)
}

// observe keeps the counts of regions that wait and of regions that drain.
func (m *Machine) observe(row *row, want quota.Share) {
	draining := row.settled() && row.Bound() != row.Sent && row.exists()
	wanting := want != row.Sent
	row.region.draining += count(draining) - count(row.draining)
	row.region.wanting += count(wanting) - count(row.wanting)
	row.draining, row.wanting = draining, wanting
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func positive(s quota.Share) quota.Share { return s.Max(quota.Share{}) }

// portion returns the part of free that goes to one of several needs.
func portion(mine, all, free quota.Share) quota.Share {
	one := func(mine, all, free quota.Tokens) quota.Tokens {
		if all <= free {
			return mine
		}
		return quota.Tokens(math.Floor(float64(mine) * (float64(free) / float64(all))))
	}
	return quota.Share{
		Capacity: one(mine.Capacity, all.Capacity, free.Capacity),
		Refill:   one(mine.Refill, all.Refill, free.Refill),
	}
}

// unbounded is above every limit, and small enough that many of it can be added.
const unbounded = quota.Tokens(1 << 56)

// convert returns a share that was counted by one period in terms of another,
// rounded up: the way to convert a bound.
func convert(s quota.Share, from, to time.Duration) quota.Share {
	if from == to || from <= 0 || to <= 0 {
		return s
	}
	whole, exact := scale(s.Refill, from, to)
	if !exact {
		whole++
	}
	s.Refill = whole
	return s
}

// convertDown is convert, rounded down: the way to convert a share that stays.
func convertDown(s quota.Share, from, to time.Duration) quota.Share {
	if from == to || from <= 0 || to <= 0 {
		return s
	}
	s.Refill, _ = scale(s.Refill, from, to)
	return s
}

// scale returns t*to/from, at most unbounded, and whether that is exact.
func scale(t quota.Tokens, from, to time.Duration) (whole quota.Tokens, exact bool) {
	hi, lo := bits.Mul64(uint64(t), uint64(to))
	if hi >= uint64(from) {
		return unbounded, true
	}
	x, rest := bits.Div64(hi, lo, uint64(from))
	if x >= uint64(unbounded) {
		return unbounded, true
	}
	return quota.Tokens(x), rest == 0
}
