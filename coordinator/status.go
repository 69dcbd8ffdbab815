package coordinator

import (
	"time"

	"github.com/weirhq/weir/quota"
)

// Status is what a coordinator knows, for people and for pages.
type Status struct {
	At    time.Time   `json:"at"`
	Epoch quota.Epoch `json:"epoch"`
	// Recovering is true while nothing is granted because the ledger may be incomplete.
	Recovering bool           `json:"recovering"`
	Ledger     LedgerState    `json:"ledger"`
	Revision   int64          `json:"revision"`
	Regions    []RegionStatus `json:"regions"`
	Quotas     []QuotaStatus  `json:"quotas"`
	// More is true when Quotas are not all.
	More bool `json:"more,omitempty"`
}

// RegionStatus is one region.
type RegionStatus struct {
	Region quota.Region `json:"region"`
	// LastReport is zero, and Age is counted from the start, when the region never reported.
	LastReport time.Time     `json:"lastReport,omitzero"`
	Age        time.Duration `json:"age"`
	Silent     bool          `json:"silent"`
	Leaving    bool          `json:"leaving,omitempty"`
	Gen        string        `json:"gen"`
	Epoch      quota.Epoch   `json:"epoch"`
	Revision   int64         `json:"revision"`
	// Pending is how many grants the region has not acknowledged, Draining how many
	// shares of logs it keeps until their entries leave.
	Pending  int `json:"pending"`
	Draining int `json:"draining"`
	// Awaited is true while the ledger waits for the region to report all it holds.
	Awaited bool `json:"awaited,omitempty"`
	// LeaseLeft is how long the region's lease lasts at most, if any policy needs one.
	LeaseLeft *time.Duration `json:"leaseLeft,omitempty"`
}

// QuotaStatus is one quota.
type QuotaStatus struct {
	ID        quota.ID    `json:"id"`
	Algorithm string      `json:"algorithm"`
	Limit     quota.Limit `json:"limit"`
	Removed   bool        `json:"removed,omitempty"`
	// Effective is false while the regions may still use more than the limit,
	// because it was lowered and not all have acknowledged that.
	Effective bool `json:"effective"`
	// Small is true of a limit that has fewer than two tokens for each region: it goes
	// in whole tokens to the regions that ask most, and the others have none.
	Small bool `json:"small,omitempty"`
	// Allocated is what all regions together may be using, Unallocated what is left.
	Allocated   quota.Share `json:"allocated"`
	Unallocated quota.Share `json:"unallocated"`
	// Parked are tokens that shrinks of a tracked key have surrendered, to be passed on.
	Parked  quota.Tokens  `json:"parked,omitempty"`
	Regions []ShareStatus `json:"regions"`
}

// ShareStatus is one region's part of a quota.
type ShareStatus struct {
	Region quota.Region `json:"region"`
	// Demand is the offered load of the busiest key in tokens per second.
	Demand float64 `json:"demand"`
	// Share is what the split gives the region, Sent what it has been told,
	// Acked what it has acknowledged, Bound the most it can be using.
	Share quota.Share `json:"share"`
	Sent  quota.Share `json:"sent"`
	Acked quota.Share `json:"acked"`
	Bound quota.Share `json:"bound"`
	Floor quota.Share `json:"floor"`
	// Permanent is the part of Sent that the region keeps when its lease is over: all of
	// it in partition mode hold. Reclaimed is true when it was over, and the rest taken back.
	Permanent quota.Share `json:"permanent"`
	Reclaimed bool        `json:"reclaimed,omitempty"`
	// Version is the one issued last, AckVersion the last one acknowledged.
	Version    int64 `json:"version"`
	AckVersion int64 `json:"ackVersion"`
	// AckedAt is when AckVersion was acknowledged; zero when that was to an earlier leader.
	AckedAt  time.Time `json:"ackedAt,omitzero"`
	Draining bool      `json:"draining,omitempty"`
	// PendingSince is when the last version was issued, if it is not acknowledged.
	PendingSince time.Time `json:"pendingSince,omitzero"`
}

// Status returns a copy of what the machine knows, with every quota. Overview and
// Splits are for those who may meet many.
func (m *Machine) Status(now time.Time) Status {
	return m.statusOf(now, max(1, len(m.order)))
}

// statusOf is Status with the first quotas only.
func (m *Machine) statusOf(now time.Time, most int) Status {
	s := Status{
		At: now, Epoch: m.epoch, Recovering: m.recovering, Ledger: m.ledgerState(), Revision: m.revision,
		Regions: m.regionStatus(now),
	}
	s.Quotas, s.More = m.Splits(now, SplitQuery{Limit: most})
	return s
}

func (m *Machine) quotaStatus(q *splitQuota, now time.Time, only quota.Region) QuotaStatus {
	sum := m.allocated(q)
	qs := QuotaStatus{
		ID: q.id, Algorithm: q.algorithm.String(), Limit: q.limit, Removed: q.removed, Small: m.small(q),
		Effective: m.effective(q, sum, now), Allocated: sum, Unallocated: positive(q.limit.Share().Sub(sum)), Parked: q.parked,
		Regions: make([]ShareStatus, 0, len(q.rows)),
	}
	for i := range q.rows {
		if r := m.regions[i]; !r.gone && (only == "" || only == r.name) {
			qs.Regions = append(qs.Regions, m.shareStatus(q, i, now))
		}
	}
	return qs
}

func (m *Machine) shareStatus(q *splitQuota, i int, now time.Time) ShareStatus {
	row := &q.rows[i]
	s := ShareStatus{
		Region: m.regions[i].name, Demand: row.load.fast, Share: m.want(q, i, now), Sent: row.Sent, Acked: row.Acked,
		Bound: m.bound(q, i), Floor: row.Floor, Version: row.Version, AckVersion: row.AckVersion, AckedAt: row.ackedAt,
		Draining: row.draining, Permanent: row.Perm, Reclaimed: row.Reclaimed,
	}
	if !row.settled() {
		s.PendingSince = row.issuedAt
	}
	return s
}

// allocated returns the sum of all bounds.
func (m *Machine) allocated(q *splitQuota) (sum quota.Share) {
	for i := range q.rows {
		sum = sum.Add(m.bound(q, i))
	}
	return sum
}

// pending counts the grants that the region has not acknowledged.
func (r *region) pending() (n int) {
	for _, row := range r.outbox {
		if !row.settled() {
			n++
		}
	}
	return n
}
