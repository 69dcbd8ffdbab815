package coordinator_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// What fault schedules have found, each in as few steps as show it.

var noon = time.Unix(1_700_000_000, 0)

func windowed(n int64, floors float64) *quota.Policy {
	return &quota.Policy{
		ID: "log", Algorithm: quota.SlidingLog, Split: quota.Split{FloorPercent: &floors},
		Limit: quota.Limit{Capacity: quota.Tokens(n) * quota.Token, Period: 5 * time.Second},
	}
}

// settledRow is a share that was granted and acknowledged.
func settledRow(p *quota.Policy, region quota.Region, n int64) coordinator.Row {
	share := quota.Share{Capacity: quota.Tokens(n) * quota.Token}
	return coordinator.Row{
		ID: quota.ID{Policy: p.ID}, Region: region, Algorithm: p.Algorithm, Limit: p.Limit,
		Version: 5, AckVersion: 5, Acked: share, Sent: share, MaxSent: share,
	}
}

// report is what a region says that holds the row's share.
func report(row coordinator.Row, gen string, epoch quota.Epoch) quota.Report {
	return quota.Report{
		Region: row.Region, Gen: gen, Epoch: epoch, SentAt: 1, Full: true,
		Quotas: []quota.QuotaReport{{ID: row.ID, Version: row.Version, Share: row.Sent, Period: row.Limit.Period, Drained: true}},
	}
}

// A region that loses its data before it ever followed a leader has used its floors.
func TestASecondDatasetIsNotFresh(t *testing.T) {
	m := coordinator.NewMachine(noon, time.Second, three, coordinator.Snapshot{Epoch: 1})
	for _, gen := range []string{"first", "first", "second"} {
		rep := quota.Report{Region: three[0], Gen: gen, SentAt: 1, Full: true}
		if err := m.Report(noon, rep); err != nil {
			t.Fatal(err)
		}
		if fresh := m.Instructions(rep).Fresh; fresh != (gen == "first") {
			t.Errorf("dataset %s: fresh %v", gen, fresh)
		}
	}
}

// What a leader that was replaced has granted may be with others by now. It must not
// be granted again to a dataset that knows nothing of its successor.
func TestOnlyWhoCanCommitGrantsToANewDataset(t *testing.T) {
	p := windowed(30, 20)
	row := settledRow(p, three[0], 10)
	m := coordinator.NewMachine(noon, time.Second, three, coordinator.Snapshot{
		Epoch: 1, Rows: []coordinator.Row{row}, Regions: []coordinator.RegionRow{{Region: three[0], Gen: "first"}},
	})
	rep := quota.Report{Region: three[0], Gen: "second", Epoch: 1, SentAt: 1, Full: true}
	if err := m.Report(noon, rep); err != nil {
		t.Fatal(err)
	}
	b := m.Pending()
	m.Failed(b)
	if g := m.Instructions(rep).Grants; len(g) > 0 {
		t.Errorf("granted without a commit: %+v", g)
	}
	m.Committed(m.Pending())
	if g := m.Instructions(rep).Grants; len(g) != 1 {
		t.Errorf("granted after the commit: %+v", g)
	}
}

// While the floors of a region are raised and the others have not given up theirs, the
// region is not granted its floor, though its bound counts it.
func TestNoFloorIsGrantedThatOthersStillUse(t *testing.T) {
	p := windowed(38, 20)
	few, many := settledRow(p, three[0], 3), settledRow(p, three[1], 35)
	few.Floor = few.Sent
	m := coordinator.NewMachine(noon, time.Second, three[:2], coordinator.Snapshot{
		Epoch: 2, Rows: []coordinator.Row{few, many},
		Regions: []coordinator.RegionRow{{Region: three[0], Gen: "gen0", Lost: true}, {Region: three[1], Gen: "gen1"}},
	})
	if err := m.SetPolicies(noon, 2, []*quota.Policy{windowed(38, 60)}); err != nil {
		t.Fatal(err)
	}
	m.Committed(m.Pending())
	for i, row := range []coordinator.Row{few, few, many} {
		now := noon.Add(time.Duration(i+1) * time.Second)
		if err := m.Report(now, report(row, map[quota.Region]string{three[0]: "gen0", three[1]: "gen1"}[row.Region], 2)); err != nil {
			t.Fatal(err)
		}
		m.Tick(now)
		for _, changed := range m.Pending().Rows {
			if changed.Region == three[0] && changed.Sent.Capacity > few.Sent.Capacity {
				t.Errorf("%s are granted while the other region has %s of %s", changed.Sent.Capacity, many.Sent.Capacity, p.Limit.Capacity)
			}
		}
	}
}

// A region that joins limits which others share already begins with nothing.
func TestARegionThatJoinsIsNotFresh(t *testing.T) {
	p := windowed(30, 20)
	m := coordinator.NewMachine(noon, time.Second, three, coordinator.Snapshot{
		Epoch: 2, Rows: []coordinator.Row{settledRow(p, three[0], 30)}, Regions: []coordinator.RegionRow{{Region: three[0], Gen: "gen0"}},
	})
	rep := quota.Report{Region: three[1], Gen: "first", SentAt: 1, Full: true}
	if err := m.Report(noon, rep); err != nil {
		t.Fatal(err)
	}
	if m.Instructions(rep).Fresh {
		t.Error("its floors would begin full, which others have spent")
	}
}

// A floor that was raised is in the ledger before the region is granted it: it may be
// in use when a leader comes that knows of a smaller one.
func TestARaisedFloorIsInTheLedger(t *testing.T) {
	p := windowed(38, 20)
	few, many := settledRow(p, three[0], 3), settledRow(p, three[1], 35)
	few.Floor = few.Sent
	m := coordinator.NewMachine(noon, time.Second, three[:2], coordinator.Snapshot{
		Epoch: 2, Rows: []coordinator.Row{few, many},
		Regions: []coordinator.RegionRow{{Region: three[0], Gen: "gen0"}, {Region: three[1], Gen: "gen1"}},
	})
	raised := windowed(38, 60)
	if err := m.SetPolicies(noon, 2, []*quota.Policy{raised}); err != nil {
		t.Fatal(err)
	}
	floor := coordinator.Floor(three[:2], three[0], raised)
	for _, row := range m.Pending().Rows {
		if row.Region == three[0] && floor.Within(row.Bound()) {
			return
		}
	}
	t.Errorf("a floor of %s is not covered by what is to be committed", floor.Capacity)
}

// When a ledger is lost and no region holds anything of a quota, it may still have been
// granted, to a dataset that was lost as well. Its first tokens are not given again.
func TestNothingIsGivenTwiceWhenTheLedgerIsLost(t *testing.T) {
	p := &quota.Policy{ID: "bucket", Algorithm: quota.TokenBucket, Limit: quota.Limit{Capacity: 30 * quota.Token, Refill: 30 * quota.Token, Period: time.Second}}
	for _, past := range []bool{false, true} {
		m := coordinator.NewMachine(noon, time.Second, three[:1], coordinator.Snapshot{Epoch: 7, Lossy: true})
		if err := m.SetPolicies(noon, 1, []*quota.Policy{p}); err != nil {
			t.Fatal(err)
		}
		rep := quota.Report{Region: three[0], Gen: "gen", SentAt: 1, Full: true}
		if past {
			rep.Epoch = 3 // of the leader whose ledger is lost
		}
		for range 2 {
			if err := m.Report(noon, rep); err != nil {
				t.Fatal(err)
			}
			m.Committed(m.Pending())
			rep.Epoch = 7
		}
		grants := m.Instructions(rep).Grants
		if len(grants) != 1 || (grants[0].Gift > 0) == past {
			t.Errorf("a region with a past %v is granted %+v", past, grants)
		}
	}
}

// What a log still holds above its share is found in a region, and not granted to it.
func TestWhatALogHoldsIsNotGrantedWhenTheLedgerIsLost(t *testing.T) {
	p := windowed(27, 20)
	m := coordinator.NewMachine(noon, time.Second, three[:1], coordinator.Snapshot{Epoch: 7, Lossy: true})
	if err := m.SetPolicies(noon, 1, []*quota.Policy{p}); err != nil {
		t.Fatal(err)
	}
	rep := report(settledRow(p, three[0], 5), "gen", 7)
	rep.Quotas[0].Hold, rep.Quotas[0].Drained = 26*quota.Token, false
	if err := m.Report(noon, rep); err != nil {
		t.Fatal(err)
	}
	for _, row := range m.Pending().Rows {
		if row.Sent.Capacity != 5*quota.Token || row.Bound().Capacity < 26*quota.Token {
			t.Errorf("share %s and bound %s, want 5 and at least 26", row.Sent.Capacity, row.Bound().Capacity)
		}
	}
	if len(m.Pending().Rows) == 0 {
		t.Error("nothing is written")
	}
}
