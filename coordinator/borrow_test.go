package coordinator_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// lending is a machine whose regions report one policy, "api" of 100/s, as they are told.
type lending struct {
	*testing.T
	m        *coordinator.Machine
	now      time.Time
	sent     int64
	interval time.Duration
}

func newLending(t *testing.T) *lending {
	t.Helper()
	l := &lending{T: t, now: time.Unix(1_700_000_000, 0), interval: time.Minute}
	l.m = coordinator.NewMachine(l.now, l.interval, three, coordinator.Snapshot{Epoch: 1})
	require.NoError(t, l.m.SetPolicies(l.now, 1, []*quota.Policy{perMinute("api", 6000)}))
	l.m.Committed(l.m.Pending())
	for range 3 {
		for _, r := range three {
			l.report(r, 10, false)
		}
		l.now = l.now.Add(time.Second)
	}
	return l
}

// report has a region acknowledge what it was sent, tell its demand in tokens per
// second, and ask for more.
func (l *lending) report(region quota.Region, demand float64, urgent bool) quota.Instructions {
	l.Helper()
	l.sent++
	s := l.of(region)
	rep := quota.Report{
		Region: region, Gen: "g-" + string(region), Epoch: 1, SentAt: l.sent, Revision: 1, Full: true,
		Quotas: []quota.QuotaReport{{
			ID: quota.ID{Policy: "api"}, Version: s.Version, Share: s.Sent, Period: time.Minute, Drained: true,
			Demand: demand, Total: demand, Admitted: min(demand, float64(s.Sent.Refill)/60_000), Urgent: urgent,
		}},
	}
	require.NoError(l, l.m.Report(l.now, rep))
	l.m.Committed(l.m.Pending())
	return l.m.Instructions(rep)
}

func (l *lending) of(region quota.Region) coordinator.ShareStatus {
	for _, s := range l.m.Status(l.now).Quotas[0].Regions {
		if s.Region == region {
			return s
		}
	}
	l.Fatalf("no share of %s", region)
	return coordinator.ShareStatus{}
}

func perSecond(s quota.Share) float64 { return float64(s.Refill) / 60_000 }

func TestUrgentRegionDoesNotWaitForTheRebalance(t *testing.T) {
	l := newLending(t)
	in := l.report(three[0], 80, true)
	require.GreaterOrEqual(t, perSecond(l.of(three[0]).Share), 80.0, "the target, at once")
	require.Less(t, perSecond(l.of(three[0]).Sent), 80.0, "but no share before others have given theirs up")
	require.Positive(t, in.NextReport)
	for _, r := range three[1:] {
		require.LessOrEqual(t, l.report(r, 10, false).NextReport, 250*time.Millisecond, "who gives is not asked a second later")
		l.report(r, 10, false) // acknowledges
	}
	l.report(three[0], 80, false)
	require.GreaterOrEqual(t, perSecond(l.of(three[0]).Sent), 80.0)
	require.True(t, l.now.Before(l.m.Next()), "the rebalance is still to come")
	l.now = l.now.Add(100 * time.Millisecond)
	l.report(three[0], 80, false)
	require.Equal(t, []time.Duration{100 * time.Millisecond}, l.m.Served())
}

// Two regions that ask at once are answered together, one gap later.
func TestUrgentSplitsKeepTheirDistance(t *testing.T) {
	l := newLending(t)
	l.report(three[0], 50, true)
	target := l.of(three[1]).Share
	l.report(three[1], 40, true)
	require.Equal(t, target, l.of(three[1]).Share, "too soon")
	due := l.m.Next()
	require.Equal(t, 200*time.Millisecond, due.Sub(l.now))
	l.now = due
	_, rebalanced := l.m.Tick(l.now)
	require.False(t, rebalanced)
	require.GreaterOrEqual(t, perSecond(l.of(three[1]).Share), 40.0)
	require.Equal(t, coordinator.Borrows{Asked: 2, Moved: 2}, l.m.Borrows())
}

// In saturation asking brings nothing, and regions that go on asking are heard less and less.
func TestSaturationIsNoEmergency(t *testing.T) {
	l := newLending(t)
	for range 240 { // a minute
		for _, r := range three {
			l.report(r, 300, true)
		}
		l.now = l.now.Add(250 * time.Millisecond)
		l.m.Tick(l.now)
		l.m.Committed(l.m.Pending())
	}
	b := l.m.Borrows()
	require.Less(t, b.Asked, int64(3*10), "each region at 0, 1, 3, 7, 15, 31 and 47 s, and when a rebalance has moved it")
	require.Greater(t, b.Rested, int64(600))
}

// What a log's default split gives up is free a window later: nothing can be lent at once.
func TestDefaultSplitOfALogIsNotLent(t *testing.T) {
	a := newAnswering(t, three, logOf("log", 600, time.Minute))
	a.report(three[0], 0)
	rep := quota.Report{Region: three[0], Gen: "g-" + string(three[0]), Epoch: 1, SentAt: 99, Revision: 1}
	s := a.m.Status(a.now).Quotas[0].Regions[0]
	rep.Quotas = []quota.QuotaReport{{
		ID: quota.ID{Policy: "log"}, Version: s.Version, Share: s.Sent, Period: time.Minute, Drained: true, Demand: 10, Urgent: true,
	}}
	require.NoError(t, a.m.Report(a.now, rep))
	require.Zero(t, a.m.Borrows())
}

// A region that floods for a minute does not become a large one by that, and one that
// was large for days is one also while another floods.
func TestWeightsFollowWhatWasAdmittedSlowly(t *testing.T) {
	l := newLending(t)
	day := []float64{60, 20, 10}
	for range 24 * 60 {
		for i, r := range three {
			l.report(r, day[i], false)
		}
		l.now = l.now.Add(time.Minute)
		l.m.Tick(l.now)
		l.m.Committed(l.m.Pending())
	}
	for range 20 {
		for i, r := range three {
			l.report(r, []float64{60, 20, 500}[i], false)
		}
		l.now = l.now.Add(30 * time.Second)
		l.m.Tick(l.now)
		l.m.Committed(l.m.Pending())
	}
	require.GreaterOrEqual(t, perSecond(l.of(three[0]).Share), 59.0, "the large region keeps what it asks for")
	require.GreaterOrEqual(t, perSecond(l.of(three[1]).Share), 20.0)
	require.Less(t, perSecond(l.of(three[2]).Share), 21.0)
}
