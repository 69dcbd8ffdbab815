package coordinator_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// What one in thousands of fault schedules finds, each in as few steps as show it.

// take gives the machine a report and commits what follows from it.
func take(t *testing.T, m *coordinator.Machine, now time.Time, rep quota.Report) quota.Instructions {
	t.Helper()
	if err := m.Report(now, rep); err != nil {
		t.Fatal(err)
	}
	m.Committed(m.Pending())
	return m.Instructions(rep)
}

// holding is what a region reports that has applied a grant.
func holding(g quota.Grant) []quota.QuotaReport {
	return []quota.QuotaReport{{ID: g.ID, Version: g.Version, Share: g.Share, Permanent: g.Permanent, Period: g.Limit.Period, Drained: true}}
}

// boundOf is what the machine takes for the most a region may be using of its first quota.
func boundOf(m *coordinator.Machine, now time.Time, region quota.Region) quota.Share {
	for _, s := range m.Status(now).Quotas[0].Regions {
		if s.Region == region {
			return s.Bound
		}
	}
	return quota.Share{}
}

// A region may have used its floor, and lost the dataset that knows of it, before any
// report reached the present leader. It takes the window of a log until that is over.
func TestADatasetThatWasNotTheFirstMayHaveAdmittedTheFloor(t *testing.T) {
	p := windowed(30, 50)
	for _, first := range []bool{true, false} {
		snapshot := coordinator.Snapshot{Epoch: 2}
		if !first { // an earlier leader has divided the limit: the region is not fresh
			row := settledRow(p, three[0], 5)
			row.Version, row.AckVersion, row.Floor = 1, 0, row.Sent
			snapshot.Rows = []coordinator.Row{row}
		}
		m := coordinator.NewMachine(noon, time.Second, three[:2], snapshot)
		if err := m.SetPolicies(noon, 2, []*quota.Policy{p}); err != nil {
			t.Fatal(err)
		}
		m.Committed(m.Pending())
		rep := quota.Report{Region: three[0], Gen: "gen", SentAt: 1, Full: true}
		if fresh := take(t, m, noon, rep).Fresh; fresh != first {
			t.Fatalf("fresh %v, want %v", fresh, first)
		}
		rep.Epoch, rep.SentAt = 2, 2
		for _, g := range take(t, m, noon, rep).Grants {
			rep.Quotas = holding(g)
		}
		// The policy goes, and the region gives up its share.
		if err := m.SetPolicies(noon, 3, nil); err != nil {
			t.Fatal(err)
		}
		for rep.SentAt < 10 {
			rep.SentAt++
			rep.Revision = 3
			for _, g := range take(t, m, noon, rep).Grants {
				rep.Quotas = holding(g)
			}
		}
		if len(rep.Quotas) != 1 || rep.Quotas[0].Share.Capacity != 0 {
			t.Fatalf("the region holds %+v, want a share of nothing", rep.Quotas)
		}
		if left := boundOf(m, noon, three[0]); (left == quota.Share{}) != first {
			t.Errorf("first dataset %v: bound %v as soon as the share is given up", first, left)
		}
		later := noon.Add(p.Limit.Period + 2*time.Second)
		rep.SentAt++
		take(t, m, later, rep)
		if left := boundOf(m, later, three[0]); left != (quota.Share{}) {
			t.Errorf("first dataset %v: bound %v when every window has passed", first, left)
		}
	}
}

// A share of which nothing is permanent, found in a region whose lease is over, must not
// become usable because the ledger that knew is lost.
func TestNothingMayBePermanentOfAFoundShare(t *testing.T) {
	p := windowed(30, 0)
	p.Split.OnPartition = quota.Strict
	m := coordinator.NewMachine(noon, time.Second, three[:2], coordinator.Snapshot{Epoch: 7, Lossy: true})
	if err := m.SetPolicies(noon, 1, []*quota.Policy{p}); err != nil {
		t.Fatal(err)
	}
	// What the first gave up when its lease was over, the second was given.
	var reports []quota.Report
	for i, n := range []int64{10, 30} {
		rep := report(settledRow(p, three[i], n), "gen", 7)
		rep.Quotas[0].Permanent = quota.Share{}
		take(t, m, noon, rep)
		reports = append(reports, rep)
	}
	for _, rep := range reports {
		rep.SentAt++
		in := take(t, m, noon, rep)
		if in.Lease.TTL > 0 {
			t.Errorf("%s has its lease extended: %v", rep.Region, in.Lease)
		}
		for _, g := range in.Grants {
			if g.Permanent.Capacity > 0 {
				t.Errorf("%s is granted %v for good, with 40 of 30 in the regions", rep.Region, g.Permanent)
			}
		}
	}
}

// Where some stripes of a dataset were lost the others go on with what they hold, also
// of a policy that is not there, which the ledger has lost as well.
func TestAPieceOfADatasetIsFound(t *testing.T) {
	p := windowed(30, 20)
	for _, ahead := range []int64{0, 1} {
		m := coordinator.NewMachine(noon, time.Second, three[:1], coordinator.Snapshot{Epoch: 7, Lossy: true})
		if err := m.SetPolicies(noon, 1, nil); err != nil {
			t.Fatal(err)
		}
		rep := report(settledRow(p, three[0], 25), "gen", 7)
		rep.Revision, rep.Quotas[0].Version = 1+ahead, 0
		in := take(t, m, noon, rep)
		if ahead > 0 { // it may be a policy that only the region has heard of
			if len(in.Grants) > 0 {
				t.Errorf("granted %+v of a policy that is yet to come", in.Grants)
			}
			continue
		}
		if bound := boundOf(m, noon, three[0]); bound.Capacity < 25*quota.Token {
			t.Errorf("bound %v of a region that holds 25", bound)
		}
		rep.SentAt++
		if in := take(t, m, noon, rep); len(in.Grants) != 1 || in.Grants[0].Share.Capacity != 0 {
			t.Errorf("granted %+v, want that it is taken back", in.Grants)
		}
	}
}

// A share that is taken back while its region drains it was acknowledged already. The
// region comes back with another dataset, and gets nothing above what stays of the share
// before it has acknowledged that again: the bound will be that, as soon as what it
// admitted has left the window.
func TestNothingGrowsWhileItIsTakenBack(t *testing.T) {
	p := windowed(30, 0)
	p.Split.OnPartition = quota.Strict
	row := settledRow(p, three[0], 0)
	row.Acked.Capacity = 10 * quota.Token
	m := coordinator.NewMachine(noon, time.Second, three[:2], coordinator.Snapshot{
		Epoch: 2, Rows: []coordinator.Row{row}, Regions: []coordinator.RegionRow{{Region: three[0], Gen: "first"}, {Region: three[1], Gen: "other"}},
	})
	if err := m.SetPolicies(noon, 2, []*quota.Policy{p}); err != nil {
		t.Fatal(err)
	}
	m.Committed(m.Pending())
	rep := report(row, "first", 2)
	rep.Quotas[0].Hold, rep.Quotas[0].Drained = 10*quota.Token, false
	take(t, m, noon, rep)
	now := noon.Add(coordinator.DefaultLeaseTTL + 2*time.Second)
	m.Tick(now)
	m.Committed(m.Pending())

	rep.Gen, rep.Quotas = "second", []quota.QuotaReport{{ID: row.ID, Period: p.Limit.Period, Demand: 100, Total: 100, Drained: true}}
	for range 3 {
		now = now.Add(time.Second)
		rep.SentAt++
		in := take(t, m, now, rep)
		if m.Tick(now); len(in.Grants) != 1 || in.Grants[0].Share.Capacity > 0 {
			t.Errorf("granted %+v before it has acknowledged what stays", in.Grants)
		}
	}
	rep.Quotas[0].Version = row.Version
	grown := false
	for range 10 {
		now = now.Add(time.Second)
		rep.SentAt++
		for _, g := range take(t, m, now, rep).Grants {
			grown = grown || g.Share.Capacity > 0
			rep.Quotas[0].Version, rep.Quotas[0].Share, rep.Quotas[0].Permanent = g.Version, g.Share, g.Permanent
		}
		m.Tick(now)
	}
	if !grown {
		t.Error("and nothing afterwards")
	}
}
