package coordinator

import (
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

// Overview is what a coordinator knows without the single quotas. It is of the same
// size however many there are.
type Overview struct {
	At       time.Time      `json:"at"`
	Epoch    quota.Epoch    `json:"epoch"`
	Revision int64          `json:"revision"`
	Ledger   LedgerState    `json:"ledger"`
	Regions  []RegionStatus `json:"regions"`
	Totals   Totals         `json:"totals"`
}

// LedgerState is how far the ledger is believed.
type LedgerState string

// The states of a ledger.
const (
	// LedgerComplete holds every bound.
	LedgerComplete LedgerState = "complete"
	// LedgerLossy may have lost commits once, by itself or by the word of an operator.
	// Every region has reported since; nobody has vouched for it.
	LedgerLossy LedgerState = "lossy"
	// LedgerRecovering waits for regions that have to report all they hold. Nothing grows.
	LedgerRecovering LedgerState = "recovering"
)

// Totals are sums over all quotas that are in a policy.
type Totals struct {
	Quotas int `json:"quotas"`
	// Pending, Draining, NotEffective and Small are how many quotas meet each condition.
	Pending      int `json:"pending"`
	Draining     int `json:"draining"`
	NotEffective int `json:"notEffective"`
	Small        int `json:"small"`
	// Fullest is the largest part of any limit that regions may be using.
	Fullest float64 `json:"fullest"`
	// Unallocated is the capacity that no region may use.
	Unallocated quota.Tokens `json:"unallocated"`
	// Ages counts grants that are not acknowledged, by age; OldestGrant is the age of
	// the oldest of them.
	Ages        GrantAges     `json:"-"`
	OldestGrant time.Duration `json:"oldestGrant"`
	// DrainingShares is how many regions keep part of a log until its entries leave, and
	// OldestDrain how long the longest has kept one since it took the smaller share.
	DrainingShares int           `json:"drainingShares"`
	OldestDrain    time.Duration `json:"oldestDrain"`
	// ReclaimedShares is how many were taken back because a lease was over, and are
	// with others until the region has returned.
	ReclaimedShares int `json:"reclaimedShares"`
	// TrackedKeys is how many of the quotas are single keys. Parked are tokens that
	// shrinks of theirs have surrendered and no grow has brought along yet.
	TrackedKeys int          `json:"trackedKeys"`
	Parked      quota.Tokens `json:"parked"`
	// Borrows counts what came of asking for more between rebalances, KeysRefused
	// the flagged keys that were not tracked, both since this coordinator leads.
	Borrows     Borrows `json:"-"`
	KeysRefused int64   `json:"-"`
}

// GrantAges counts grants by how long they have not been acknowledged.
type GrantAges [4]int

// grantAges are the ages that GrantAges tells apart: below each, and above the last.
var grantAges = [len(GrantAges{}) - 1]time.Duration{time.Second, 10 * time.Second, time.Minute}

func (a *GrantAges) add(age time.Duration) {
	for i, below := range grantAges {
		if age < below {
			a[i]++
			return
		}
	}
	a[len(a)-1]++
}

// Condition is a state of a quota that somebody may look for.
type Condition string

// The conditions.
const (
	// Pending: a region has not acknowledged the last version.
	Pending Condition = "pending"
	// Draining: a region keeps part of a log until its entries leave.
	Draining Condition = "draining"
	// NotEffective: the regions may still use more than the limit.
	NotEffective Condition = "not-effective"
	// Small: the limit has fewer than two tokens for each region.
	Small Condition = "small"
)

// SplitQuery selects splits. The zero value selects all.
type SplitQuery struct {
	// Policy is matched exactly, Search must occur in the policy's id or in the key.
	Policy, Search string
	// Region leaves out the shares of all others.
	Region quota.Region
	// Any wants one of these conditions; empty wants none.
	Any []Condition
	// After is the last quota of the page before.
	After quota.ID
	// Limit is the size of the page; zero means DefaultSplits.
	Limit int
}

// DefaultSplits is the size of a page when the query does not say.
const DefaultSplits = 100

// Overview returns what the machine knows without the single quotas. It looks at every
// quota once.
func (m *Machine) Overview(now time.Time) Overview {
	return Overview{
		At: now, Epoch: m.epoch, Revision: m.revision, Ledger: m.ledgerState(),
		Regions: m.regionStatus(now), Totals: m.totals(now),
	}
}

func (m *Machine) ledgerState() LedgerState {
	switch {
	case m.recovering:
		return LedgerRecovering
	case m.lossy:
		return LedgerLossy
	}
	return LedgerComplete
}

func (m *Machine) regionStatus(now time.Time) []RegionStatus {
	out := make([]RegionStatus, 0, len(m.regions))
	for _, r := range m.regions {
		if r.gone {
			continue
		}
		s := RegionStatus{
			Region: r.name, Age: now.Sub(r.last), Silent: now.Sub(r.last) > silentAfter, Leaving: r.leaving,
			Gen: r.gen, Epoch: r.epoch, Revision: r.revision, Pending: r.pending(), Draining: r.draining,
			Awaited: m.recovering && !r.known && !r.leaving, LeaseLeft: m.leaseLeft(r, now),
		}
		if r.last != m.started {
			s.LastReport = r.last
		}
		out = append(out, s)
	}
	return out
}

// Splits returns the quotas that a query selects, by policy and key, and whether there
// are more. A page costs what it lists and what it passes over, not what follows.
func (m *Machine) Splits(now time.Time, q SplitQuery) (page []QuotaStatus, more bool) {
	limit := q.Limit
	if limit <= 0 {
		limit = DefaultSplits
	}
	first := 0
	if q.After.Policy != "" {
		at, found := slices.BinarySearchFunc(m.order, q.After, func(q *splitQuota, id quota.ID) int { return compareIDs(q.id, id) })
		if first = at; found {
			first++
		}
	}
	for _, sq := range m.order[first:] {
		if !m.selects(&q, sq, now) {
			continue
		}
		if len(page) == limit {
			return page, true
		}
		page = append(page, m.quotaStatus(sq, now, q.Region))
	}
	return page, false
}

func (m *Machine) selects(q *SplitQuery, sq *splitQuota, now time.Time) bool {
	if q.Policy != "" && sq.id.Policy != q.Policy || !strings.Contains(sq.id.Policy, q.Search) && !strings.Contains(sq.id.Key, q.Search) {
		return false
	}
	return len(q.Any) == 0 || slices.ContainsFunc(q.Any, func(c Condition) bool { return m.meets(sq, c, now) })
}

func (m *Machine) meets(q *splitQuota, c Condition, now time.Time) bool {
	switch c {
	case Pending:
		return anyRow(q, func(r *row) bool { return !r.settled() })
	case Draining:
		return anyRow(q, func(r *row) bool { return r.draining })
	case NotEffective:
		return !m.effective(q, m.allocated(q), now)
	case Small:
		return m.small(q)
	}
	return false
}

func anyRow(q *splitQuota, is func(*row) bool) bool {
	for i := range q.rows {
		if r := &q.rows[i]; r.exists() && !r.region.gone && is(r) {
			return true
		}
	}
	return false
}

// effective reports whether the regions are known to use no more than the limit.
func (m *Machine) effective(q *splitQuota, sum quota.Share, now time.Time) bool {
	return sum.Within(q.limit.Share()) && !m.recovering && !q.within(now, m.recovered)
}

// SmallLimit reports whether a policy's limit is divided between so many regions and
// has fewer than two tokens for each of them. Its whole tokens go to the regions that
// ask most; the others have none, and deny, until the next split.
func SmallLimit(p *quota.Policy, regions int) bool { return splits(p) && isSmall(p.Limit, regions) }

// isSmall leaves out what is small and none the worse for it: a limit of nothing, and
// one that no second region has a part of.
func isSmall(l quota.Limit, regions int) bool {
	return l.Capacity > 0 && regions > 1 && splitter.Small(l, regions)
}

// small is SmallLimit of a quota that is split.
func (m *Machine) small(q *splitQuota) bool {
	n := 0
	for _, r := range m.regions {
		n += count(!r.leaving)
	}
	return !q.removed && isSmall(q.limit, n)
}

func (m *Machine) totals(now time.Time) (t Totals) {
	t.Borrows, t.KeysRefused = m.borrows, m.flagsLeft
	for _, q := range m.order {
		if q.removed {
			continue
		}
		t.Quotas++
		t.TrackedKeys += count(q.parent != nil)
		t.Parked += q.parked
		sum := m.allocated(q)
		t.Unallocated += max(0, q.limit.Capacity-sum.Capacity)
		if q.limit.Capacity > 0 {
			t.Fullest = max(t.Fullest, float64(sum.Capacity)/float64(q.limit.Capacity))
		}
		if q.limit.Refill > 0 {
			t.Fullest = max(t.Fullest, float64(sum.Refill)/float64(q.limit.Refill))
		}
		t.Pending += count(m.meets(q, Pending, now))
		t.Draining += count(m.meets(q, Draining, now))
		t.Small += count(m.small(q))
		t.NotEffective += count(!m.effective(q, sum, now))
		for i := range q.rows {
			r := &q.rows[i]
			t.ReclaimedShares += count(r.Reclaimed)
			if r.draining {
				t.OldestDrain = max(t.OldestDrain, now.Sub(r.ackedAt))
			}
		}
	}
	for _, r := range m.regions {
		t.DrainingShares += r.draining
		for _, row := range r.outbox {
			if !row.settled() {
				age := now.Sub(row.issuedAt)
				t.Ages.add(age)
				t.OldestGrant = max(t.OldestGrant, age)
			}
		}
	}
	return t
}
