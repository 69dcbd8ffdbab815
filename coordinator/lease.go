package coordinator

import (
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	// DefaultLeaseTTL is how long a region may use what its lease covers, from when
	// it sent the report that was answered with the lease.
	DefaultLeaseTTL = 15 * time.Second
	// MinLeaseTTL leaves a region time for a few reports.
	MinLeaseTTL = time.Second
	// leaseMargin is what the coordinator waits beyond what the clocks demand.
	leaseMargin = 500 * time.Millisecond
)

// SetLeaseTTL sets the length of leases. It must be called before the first report.
// All coordinators that follow one another must use the same: who takes over waits
// for leases of its own length.
func (m *Machine) SetLeaseTTL(ttl time.Duration) {
	m.leaseTTL = ttl
	for _, q := range m.order {
		for i := range q.rows {
			m.restoreLease(&q.rows[i], m.started)
		}
	}
}

// slowest returns how long a time of another clock, which the other counts to its
// end, takes on this one at most: each clock's rate is within rho of true time, so it
// is d*(1+rho)/(1-rho).
func slowest(d time.Duration) time.Duration {
	return d + d/1e6*(2*clockDrift) + d/1e6*(2*clockDrift)*clockDrift/(1e6-clockDrift) + time.Microsecond
}

// leaseWait is after which silence a region's lease is over: TTL*(1+rho)/(1-rho) and
// the margin.
func (m *Machine) leaseWait() time.Duration { return slowest(m.leaseTTL) + leaseMargin }

// drainWait is how much later the entries are gone that a log admitted while its
// region had a lease. The window is the region's, w*(1+rho), and lossMargin stands for
// what may be under way.
func (q *splitQuota) drainWait() time.Duration {
	if q.algorithm != quota.SlidingLog {
		return 0
	}
	w := q.limit.Period
	for i := range q.rows { // entries of an earlier window may still be inside it
		w = max(w, q.rows[i].Limit.Period)
	}
	return slowest(slowest(w) + lossMargin)
}

// permanent is the one place where the permanent part of a share is chosen: what a
// region may go on using when its lease is over. It travels in the grant and is kept
// in the ledger, and neither side ever computes it from a share again (F2).
//
// Partition mode hold needs no lease: the whole share is permanent. In strict it is
// the floor, which the region could use without any share as well.
func (m *Machine) permanent(q *splitQuota, i int, share quota.Share) quota.Share {
	switch {
	case q.removed:
		// No policy says anything any more; only less than before is safe.
		return convertDown(q.rows[i].Perm, q.rows[i].Limit.Period, q.limit.Period).Min(share)
	case q.strict():
		return q.floors[i].Min(share)
	}
	return share
}

// permit gives a version that is about to be issued its permanent part. The row's
// Limit is still that of the version before.
func (m *Machine) permit(row *row, step quota.Share) {
	q, i := row.quota, row.region.index
	perm := m.permanent(q, i, step)
	row.PermAcked = convert(row.PermAcked, row.Limit.Period, q.limit.Period)
	if row.AckVersion == 0 && !q.removed {
		row.PermAcked = row.PermAcked.Max(row.floor)
		if q.parent != nil { // until it is pinned, the key follows the default share
			whole := &q.parent.rows[i]
			row.PermAcked = row.PermAcked.Max(convert(whole.Permanent(), whole.Limit.Period, q.limit.Period))
		}
	}
	row.PermMax = convert(row.PermMax, row.Limit.Period, q.limit.Period).Max(perm)
	row.Perm = perm
}

// strict reports whether the policy of a quota is one of partition mode strict.
func (q *splitQuota) strict() bool {
	return !q.removed && q.parent == nil && q.split.OnPartition == quota.Strict
}

// permitted notes that the region is known to hold the last version, with its
// permanent part and no other, and uses acked at most. It reports whether that is new.
//
// What a log still holds above its share is freed by time in strict alone: in hold
// P = U, so that nothing is.
func (r *row) permitted(acked quota.Share) bool {
	perm := r.Perm
	if r.Perm == r.Sent && !r.quota.strict() {
		perm = acked
	}
	if r.PermAcked == perm && r.PermMax == r.Perm && !r.Reclaimed {
		return false
	}
	r.PermAcked, r.PermMax, r.Reclaimed = perm, r.Perm, false
	return true
}

// foundPermanent notes the permanent part of what a region holds and the ledger has
// lost. A region that does not tell may keep all of it. before is P without it.
func (r *row) foundPermanent(q *quota.QuotaReport, before quota.Share) {
	r.Perm, r.Reclaimed = r.Sent, false
	r.PermAcked = r.Acked
	if q.Permanent != q.Share {
		r.Perm = convert(q.Permanent, q.Period, r.Limit.Period).Min(r.Sent)
		r.PermAcked = before.Max(r.Perm)
	}
	r.PermMax = r.PermAcked
}

// leases reports whether a quota has to do with leases: its policy says so, or a
// region may still hold a share that does.
func (q *splitQuota) leases() bool {
	if q.strict() {
		return true
	}
	for i := range q.rows {
		if r := &q.rows[i]; r.Reclaimed || r.Perm != r.Sent || r.PermAcked != r.Acked {
			return true
		}
	}
	return false
}

// countLeases finds out whether any quota has to do with leases. Without one, none is
// granted, written or waited for.
func (m *Machine) countLeases() {
	m.leasing = false
	for _, q := range m.order {
		if q.leases() {
			m.leasing = true
			return
		}
	}
}

// lease returns what an answer to a report extends the region's lease by; nothing
// where there is none to extend. It is counted from the sending of the report, by the
// region's clock, so it does not matter how late the answer is.
//
// The time of the report is what a reclaim waits from (see reclaim), so a lease that
// is returned here is covered even if the answer never arrives.
func (m *Machine) lease(r *region, rep quota.Report) quota.Lease {
	if !m.leasing || m.recovering || m.revoked(r) {
		return quota.Lease{}
	}
	return quota.Lease{SentAt: rep.SentAt, TTL: m.leaseTTL}
}

// revoked reports whether any share of a region was reclaimed that the region may
// still hold. Until it has acknowledged what takes its place it gets no lease.
func (m *Machine) revoked(r *region) bool {
	if !r.revoked {
		return false
	}
	for _, q := range m.order {
		if q.rows[r.index].Reclaimed {
			return true
		}
	}
	r.revoked = false
	return false
}

// reclaim takes back what regions may use only under a lease that is over.
//
// A region is silent for longer than leaseWait: no report that it sent later than that
// was answered, so its lease is over. Its shares then become their permanent parts,
// by a version that it has to acknowledge before it gets another lease. From there on
// it uses no more than P whatever it holds and whatever still arrives, and U := P; of
// a log when the entries that its share has admitted are gone as well.
func (m *Machine) reclaim(now time.Time) {
	if m.recovering || !m.configured {
		return
	}
	if m.countLeases(); !m.leasing {
		return
	}
	for _, q := range m.order {
		freed := false
		for i := range q.rows {
			row := &q.rows[i]
			if m.reclaimable(row) && !now.Before(row.region.last.Add(m.leaseWait())) {
				m.revoke(row, now, now)
				m.reclaims++
			}
			freed = m.free(row, now) || freed
		}
		if freed {
			if !q.removed {
				m.retarget(q, now, true)
			}
			m.plan(q, now)
		}
	}
}

// reclaimable reports whether the end of the region's lease frees anything.
func (m *Machine) reclaimable(row *row) bool {
	return row.exists() && !row.Reclaimed && !row.Bound().Within(row.Permanent())
}

// revoke ends the leases of a region until it has acknowledged that the row's share
// is its permanent part. over is when the present lease is known to have ended.
func (m *Machine) revoke(row *row, over, now time.Time) {
	row.Reclaimed, row.region.revoked, m.leasing = true, true, true
	row.freeAt = over.Add(row.quota.drainWait())
	part := row.Permanent().Min(row.Sent)
	if part != row.Sent {
		m.issueReclaimed(row, part, now)
	}
	m.touch(row)
}

// issueReclaimed makes the version that a region gets in place of a share that was
// reclaimed: share = perm = P, in the units of the row. Targets follow, so that the
// region grows again by a new split and not by itself.
func (m *Machine) issueReclaimed(row *row, part quota.Share, now time.Time) {
	row.gift = 0
	row.MaxSent, row.PermMax = row.MaxSent.Max(part), row.PermMax.Max(part)
	row.Sent, row.Perm, row.Floor = part, part, row.Floor.Min(part)
	row.Version++
	row.confirmed, row.issuedAt = false, now
	if q := row.quota; !q.removed {
		q.targets[row.region.index] = convertDown(part, row.Limit.Period, q.limit.Period)
	}
	m.enqueue(row)
}

// free puts U to P when the time for it has come, and reports whether it did.
func (m *Machine) free(row *row, now time.Time) bool {
	p := row.Permanent()
	if !row.Reclaimed || now.Before(row.freeAt) || row.Bound().Within(p) {
		return false
	}
	row.Acked, row.MaxSent = p, p
	row.PermAcked, row.PermMax = p, p
	m.touch(row)
	return true
}

// restoreLease takes in what the ledger says of leases. An earlier leader granted none
// for a reclaimed row, but the one before it may just have; so the wait begins anew.
func (m *Machine) restoreLease(row *row, now time.Time) {
	if row.Reclaimed {
		row.region.revoked = true
		row.freeAt = now.Add(m.leaseWait() + row.quota.drainWait())
	}
}

// distrustLeases is for a ledger that has lost rows. Regions report what they hold,
// but not what was reclaimed from them and given to others: where shares sum to more
// than the limit, all that depends on a lease is taken back. No lease was granted
// since this machine has begun, so those of others end leaseWait later.
func (m *Machine) distrustLeases(q *splitQuota, now time.Time) {
	if m.allocated(q).Within(q.limit.Share()) {
		return
	}
	for i := range q.rows {
		if row := &q.rows[i]; m.reclaimable(row) {
			m.revoke(row, m.started.Add(m.leaseWait()), now)
		}
	}
}

// nextReclaim returns the first instant at which reclaim has something to do, and
// whether there is one.
func (m *Machine) nextReclaim() (at time.Time, ok bool) {
	if !m.leasing || m.recovering {
		return at, false
	}
	for _, q := range m.order {
		for i := range q.rows {
			row := &q.rows[i]
			var due time.Time
			switch {
			case m.reclaimable(row):
				due = row.region.last.Add(m.leaseWait())
			case row.Reclaimed && !row.Bound().Within(row.Permanent()):
				due = row.freeAt
			default:
				continue
			}
			if !ok || due.Before(at) {
				at, ok = due, true
			}
		}
	}
	return at, ok
}

// leaseLeft returns how long a region's lease lasts at most, for people; nil when nothing
// needs one.
func (m *Machine) leaseLeft(r *region, now time.Time) *time.Duration {
	if !m.leasing {
		return nil
	}
	left := max(0, m.leaseTTL-now.Sub(r.last))
	if m.recovering || m.revoked(r) {
		left = 0
	}
	return &left
}
