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
	Revision   int64          `json:"revision"`
	Regions    []RegionStatus `json:"regions"`
	Quotas     []QuotaStatus  `json:"quotas"`
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
	// Pending is how many grants the region has not acknowledged.
	Pending int `json:"pending"`
}

// QuotaStatus is one quota.
type QuotaStatus struct {
	ID        quota.ID    `json:"id"`
	Algorithm string      `json:"algorithm"`
	Limit     quota.Limit `json:"limit"`
	Removed   bool        `json:"removed,omitempty"`
	// Effective is false while the regions may still use more than the limit,
	// because it was lowered and not all have acknowledged that.
	Effective   bool          `json:"effective"`
	Unallocated quota.Share   `json:"unallocated"`
	Regions     []ShareStatus `json:"regions"`
}

// ShareStatus is one region's part of a quota.
type ShareStatus struct {
	Region quota.Region `json:"region"`
	// Demand is the offered load of the busiest key in tokens per second.
	Demand float64 `json:"demand"`
	// Share is what the split gives the region, Sent what it has been told,
	// Acked what it has acknowledged, Bound the most it can be using.
	Share   quota.Share `json:"share"`
	Sent    quota.Share `json:"sent"`
	Acked   quota.Share `json:"acked"`
	Bound   quota.Share `json:"bound"`
	Floor   quota.Share `json:"floor"`
	Version int64       `json:"version"`
	// PendingSince is when the last version was issued, if it is not acknowledged.
	PendingSince time.Time `json:"pendingSince,omitzero"`
}

// Status returns a copy of what the machine knows.
func (m *Machine) Status(now time.Time) Status {
	s := Status{At: now, Epoch: m.epoch, Recovering: m.recovering, Revision: m.revision}
	for _, r := range m.regions {
		if r.gone {
			continue
		}
		rs := RegionStatus{
			Region: r.name, Age: now.Sub(r.last), Silent: now.Sub(r.last) > silentAfter, Leaving: r.leaving,
			Gen: r.gen, Epoch: r.epoch, Revision: r.revision, Pending: r.pending(),
		}
		if r.last != m.started {
			rs.LastReport = r.last
		}
		s.Regions = append(s.Regions, rs)
	}
	s.Quotas = make([]QuotaStatus, 0, len(m.order))
	n := len(m.regions)
	shares := make([]ShareStatus, 0, n*len(m.order))
	for _, q := range m.order {
		sum := m.allocated(q)
		qs := QuotaStatus{
			ID: q.id, Algorithm: q.algorithm.String(), Limit: q.limit, Removed: q.removed,
			Effective: sum.Within(q.limit.Share()) && !m.recovering && !q.within(now, m.recovered), Unallocated: positive(q.limit.Share().Sub(sum)),
		}
		first := len(shares)
		for i := range q.rows {
			if m.regions[i].gone {
				continue
			}
			shares = append(shares, m.shareStatus(q, i, now))
		}
		qs.Regions = shares[first:len(shares):len(shares)]
		s.Quotas = append(s.Quotas, qs)
	}
	return s
}

func (m *Machine) shareStatus(q *splitQuota, i int, now time.Time) ShareStatus {
	row := &q.rows[i]
	s := ShareStatus{
		Region: m.regions[i].name, Demand: row.load.fast, Share: m.want(q, i, now), Sent: row.Sent, Acked: row.Acked,
		Bound: m.bound(q, i), Floor: row.Floor, Version: row.Version,
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

// totals is the sum of what the metrics show.
type totals struct {
	// fullest is the largest part of any limit that is allocated.
	fullest     float64
	unallocated quota.Tokens
	pending     int
	quotas      int
}

func (m *Machine) totals() (t totals) {
	for _, q := range m.order {
		if q.removed {
			continue
		}
		t.quotas++
		sum := m.allocated(q)
		t.unallocated += max(0, q.limit.Capacity-sum.Capacity)
		if q.limit.Capacity > 0 {
			t.fullest = max(t.fullest, float64(sum.Capacity)/float64(q.limit.Capacity))
		}
		if q.limit.Refill > 0 {
			t.fullest = max(t.fullest, float64(sum.Refill)/float64(q.limit.Refill))
		}
	}
	for _, r := range m.regions {
		t.pending += r.pending()
	}
	return t
}
