package coordinator_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// answering is a machine whose regions can be made to report one by one.
type answering struct {
	t   *testing.T
	m   *coordinator.Machine
	now time.Time
	n   int64
}

func newAnswering(t *testing.T, regions []quota.Region, policies ...*quota.Policy) *answering {
	t.Helper()
	a := &answering{t: t, now: time.Unix(1_700_000_000, 0)}
	a.m = coordinator.NewMachine(a.now, time.Second, regions, coordinator.Snapshot{Epoch: 1})
	require.NoError(t, a.m.SetPolicies(a.now, 1, policies))
	a.m.Committed(a.m.Pending())
	return a
}

// report has a region say that it holds what it was sent last; with hold it says of
// logs that entries beyond its share are left.
func (a *answering) report(region quota.Region, hold quota.Tokens) {
	a.t.Helper()
	a.n++
	rep := quota.Report{Region: region, Gen: "g-" + string(region), Epoch: 1, SentAt: a.n, Revision: 1, Full: true}
	for _, q := range a.m.Status(a.now).Quotas {
		for _, s := range q.Regions {
			if s.Region == region && s.Version > 0 {
				rep.Quotas = append(rep.Quotas, quota.QuotaReport{
					ID: q.ID, Version: s.Version, Share: s.Sent, Period: q.Limit.Period, Drained: hold <= s.Sent.Capacity, Hold: hold,
				})
			}
		}
	}
	require.NoError(a.t, a.m.Report(a.now, rep))
	a.m.Instructions(rep)
	a.m.Committed(a.m.Pending())
}

func (a *answering) after(d time.Duration) {
	a.now = a.now.Add(d)
	a.m.Tick(a.now)
	a.m.Committed(a.m.Pending())
}

func ids(page []coordinator.QuotaStatus) (out []string) {
	for _, q := range page {
		out = append(out, q.ID.Policy)
	}
	return out
}

func (a *answering) meeting(c coordinator.Condition) []string {
	page, _ := a.m.Splits(a.now, coordinator.SplitQuery{Any: []coordinator.Condition{c}})
	return ids(page)
}

func logOf(id string, n int64, window time.Duration) *quota.Policy {
	return &quota.Policy{
		ID: id, Algorithm: quota.SlidingLog,
		Limit: quota.Limit{Capacity: quota.Tokens(n) * quota.Token, Period: window},
	}
}

func TestOverviewFollowsAGrant(t *testing.T) {
	a := newAnswering(t, three, perMinute("api", 1000), perMinute("tiny", 5))
	for _, r := range three {
		a.report(r, 0)
	}
	o := a.m.Overview(a.now)
	require.Equal(t, coordinator.LedgerComplete, o.Ledger)
	require.Equal(t, 2, o.Totals.Quotas)
	require.Zero(t, o.Totals.Pending)
	require.Zero(t, o.Totals.NotEffective)
	require.Equal(t, 1, o.Totals.Small)
	require.Equal(t, []string{"tiny"}, a.meeting(coordinator.Small))
	require.InDelta(t, 1.0, o.Totals.Fullest, 0)
	require.Empty(t, a.meeting(coordinator.Pending))

	a.after(3 * time.Second)
	page, more := a.m.Splits(a.now, coordinator.SplitQuery{Policy: "api", Region: "eu-west"})
	require.False(t, more)
	require.Len(t, page, 1)
	require.Len(t, page[0].Regions, 1)
	share := page[0].Regions[0]
	require.Equal(t, share.Version, share.AckVersion)
	require.Equal(t, a.now.Add(-3*time.Second), share.AckedAt, "the age of the share")
	require.Equal(t, page[0].Limit.Share(), page[0].Allocated, "the sum of all regions, also of those left out")

	// A lowered limit is not effective until the regions have said so.
	require.NoError(t, a.m.SetPolicies(a.now, 2, []*quota.Policy{perMinute("api", 300), perMinute("tiny", 5)}))
	a.m.Committed(a.m.Pending())
	a.now = a.now.Add(2 * time.Second)
	require.Equal(t, []string{"api"}, a.meeting(coordinator.Pending))
	require.Equal(t, []string{"api"}, a.meeting(coordinator.NotEffective))
	o = a.m.Overview(a.now)
	require.Equal(t, 1, o.Totals.Pending)
	require.Equal(t, 1, o.Totals.NotEffective)
	require.Equal(t, 2*time.Second, o.Totals.OldestGrant)
	require.Equal(t, coordinator.GrantAges{0, 3, 0, 0}, o.Totals.Ages)
	require.Greater(t, o.Totals.Fullest, 3.0)
	for _, r := range o.Regions {
		require.Equal(t, 1, r.Pending)
	}
	for _, r := range three {
		a.report(r, 0)
	}
	require.Empty(t, a.meeting(coordinator.NotEffective))
}

// A region that gave up part of a log keeps it until its entries leave, and that shows.
func TestOverviewShowsDrains(t *testing.T) {
	a := newAnswering(t, three, logOf("log", 300, time.Minute))
	for _, r := range three {
		a.report(r, 0)
	}
	require.NoError(t, a.m.SetPolicies(a.now, 2, []*quota.Policy{logOf("log", 30, time.Minute)}))
	a.m.Committed(a.m.Pending())
	a.report("us-east", 100*quota.Token)
	a.now = a.now.Add(4 * time.Second)
	o := a.m.Overview(a.now)
	require.Equal(t, 1, o.Totals.DrainingShares)
	require.Equal(t, 4*time.Second, o.Totals.OldestDrain)
	require.Equal(t, []string{"log"}, a.meeting(coordinator.Draining))
	for _, r := range o.Regions {
		require.Equal(t, r.Region == "us-east", r.Draining == 1)
	}
	a.report("us-east", 0)
	require.Empty(t, a.meeting(coordinator.Draining))
}

func TestLedgerStateNamesWhoIsAwaited(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m := coordinator.NewMachine(now, time.Second, three, coordinator.Snapshot{Epoch: 7, Lossy: true})
	require.NoError(t, m.SetPolicies(now, 1, []*quota.Policy{perMinute("api", 1000)}))
	awaited := func() (out []quota.Region) {
		for _, r := range m.Overview(now).Regions {
			if r.Awaited {
				out = append(out, r.Region)
			}
		}
		return out
	}
	require.Equal(t, coordinator.LedgerRecovering, m.Overview(now).Ledger)
	require.Len(t, awaited(), 3)
	require.Equal(t, 1, m.Overview(now).Totals.NotEffective)
	for i, r := range three {
		require.NoError(t, m.Report(now, quota.Report{Region: r, Gen: "g", Epoch: 7, SentAt: 1, Full: true}))
		require.Len(t, awaited(), 2-i)
	}
	require.Equal(t, coordinator.LedgerLossy, m.Overview(now).Ledger)
}

// Pages go through all splits once, in order, whatever their size.
func TestSplitsInPages(t *testing.T) {
	m, _, now := manyPolicies(t, 257, 0)
	for _, size := range []int{1, 10, 128, 257, 1000} {
		var all []string
		q := coordinator.SplitQuery{Limit: size}
		for {
			page, more := m.Splits(now, q)
			require.LessOrEqual(t, len(page), size)
			all = append(all, ids(page)...)
			if !more {
				break
			}
			q.After = page[len(page)-1].ID
		}
		require.Len(t, all, 257)
		require.True(t, slices.IsSorted(all))
	}
	page, more := m.Splits(now, coordinator.SplitQuery{Search: "p0001"})
	require.False(t, more)
	require.Len(t, page, 10)
	// A page goes on behind a quota that is no more.
	page, _ = m.Splits(now, coordinator.SplitQuery{After: quota.ID{Policy: "p00010x"}, Limit: 1})
	require.Equal(t, []string{"p00011"}, ids(page))
}

// What a status page asks each second, over very many quotas.
func BenchmarkStatus(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		m, _, now := manyPolicies(b, n, 0)
		b.Run(fmt.Sprintf("overview/%d", n), func(b *testing.B) {
			for b.Loop() {
				m.Overview(now)
			}
		})
		b.Run(fmt.Sprintf("lastPage/%d", n), func(b *testing.B) {
			q := coordinator.SplitQuery{After: quota.ID{Policy: fmt.Sprintf("p%05d", n-101)}}
			for b.Loop() {
				m.Splits(now, q)
			}
		})
		b.Run(fmt.Sprintf("findNone/%d", n), func(b *testing.B) {
			q := coordinator.SplitQuery{Any: []coordinator.Condition{coordinator.Pending, coordinator.NotEffective}}
			for b.Loop() {
				m.Splits(now, q)
			}
		})
	}
}

// Metrics have the same series however many quotas there are, and say how old what is
// not settled is.
func TestTotalsAsMetrics(t *testing.T) {
	var now time.Time
	begin := time.Unix(1_700_000_000, 0)
	now = begin
	series := 0
	for _, n := range []int{2, 500} {
		reg := prometheus.NewRegistry()
		now = begin
		c := newCoordinator(t, coordinator.Config{Registerer: reg, Now: func() time.Time { return now }})
		policies := []*quota.Policy{perMinute("tiny", 5)}
		for i := range n {
			policies = append(policies, perMinute(fmt.Sprintf("p%03d", i), 1000))
		}
		require.NoError(t, c.SetPolicies(1, policies))
		now = begin.Add(30 * time.Second)
		want := fmt.Sprintf(`# HELP weir_coordinator_oldest_pending_grant_seconds Age of the oldest grant that its region has not acknowledged.
# TYPE weir_coordinator_oldest_pending_grant_seconds gauge
weir_coordinator_oldest_pending_grant_seconds 30
# HELP weir_coordinator_pending_grants Grants that their region has not acknowledged yet, by age.
# TYPE weir_coordinator_pending_grants gauge
weir_coordinator_pending_grants{age="older"} 0
weir_coordinator_pending_grants{age="under_10s"} 0
weir_coordinator_pending_grants{age="under_1m"} %d
weir_coordinator_pending_grants{age="under_1s"} 0
# HELP weir_coordinator_quotas Quotas that are split between regions.
# TYPE weir_coordinator_quotas gauge
weir_coordinator_quotas %d
# HELP weir_coordinator_small_quotas Quotas whose limit has fewer than two tokens for each region.
# TYPE weir_coordinator_small_quotas gauge
weir_coordinator_small_quotas 1
`, 3*(n+1), n+1)
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "weir_coordinator_oldest_pending_grant_seconds",
			"weir_coordinator_pending_grants", "weir_coordinator_quotas", "weir_coordinator_small_quotas"))
		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		require.Empty(t, problems)
		count, err := testutil.GatherAndCount(reg)
		require.NoError(t, err)
		if series == 0 {
			series = count
		}
		require.Equal(t, series, count)
	}
}

// What a silent region has lost to others shows until it has returned.
func TestOverviewShowsWhatWasReclaimed(t *testing.T) {
	p := strictly(perMinute("api", 900))
	w := newLeaseWorld(t, p)
	w.settle(three...)
	share := func() coordinator.ShareStatus {
		page, _ := w.machine.Splits(w.now, coordinator.SplitQuery{Region: "us-east"})
		return page[0].Regions[0]
	}
	require.False(t, share().Reclaimed)
	require.Equal(t, floorOf(p), share().Permanent)
	require.Zero(t, w.machine.Overview(w.now).Totals.ReclaimedShares)
	w.pass(time.Minute, "eu-west", "ap-south")
	require.True(t, share().Reclaimed)
	require.Equal(t, 1, w.machine.Overview(w.now).Totals.ReclaimedShares)
	w.pass(time.Minute, three...)
	require.False(t, share().Reclaimed)
	require.Zero(t, w.machine.Overview(w.now).Totals.ReclaimedShares)
}
