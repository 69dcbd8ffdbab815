package coordinator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// manyPolicies is a machine with n policies and some tracked keys over five regions
// that follow it.
func manyPolicies(tb testing.TB, n, keys int) (*coordinator.Machine, []quota.Report, time.Time) {
	tb.Helper()
	now := time.Unix(1_700_000_000, 0)
	var names []quota.Region
	for i := range 5 {
		names = append(names, quota.Region(fmt.Sprint("r", i)))
	}
	m := coordinator.NewMachine(now, time.Second, names, coordinator.Snapshot{Epoch: 1})
	policies := make([]*quota.Policy, n)
	for i := range policies {
		policies[i] = perMinute(fmt.Sprintf("p%05d", i), 1000)
	}
	if err := m.SetPolicies(now, 1, policies); err != nil {
		tb.Fatal(err)
	}
	m.Committed(m.Pending())
	follow(tb, m, now, names)
	for i := range keys {
		id := quota.ID{Policy: policies[i%n].ID, Key: fmt.Sprintf("%016x:t:%d:%s", i, i, policies[i%n].ID)}
		rep := quota.Report{Region: names[0], Gen: "g", Epoch: 1, SentAt: int64(i) + 1000, Quotas: []quota.QuotaReport{{ID: id, Demand: 12, Drained: true}}}
		if err := m.Report(now, rep); err != nil {
			tb.Fatal(err)
		}
	}
	m.Committed(m.Pending())
	for range 2 {
		follow(tb, m, now, names)
	}
	return m, follow(tb, m, now, names), now
}

// follow has all regions acknowledge what they were sent, with some demand for each
// quota that fits, and returns their reports.
func follow(tb testing.TB, m *coordinator.Machine, now time.Time, names []quota.Region) (reports []quota.Report) {
	tb.Helper()
	for _, name := range names {
		rep := quota.Report{Region: name, Gen: "g", Epoch: 1, SentAt: 1_000_000, Full: true}
		for _, q := range m.Status(now).Quotas {
			for _, s := range q.Regions {
				if s.Region == name {
					rep.Quotas = append(rep.Quotas, quota.QuotaReport{ID: q.ID, Version: s.Version, Share: s.Sent, Period: time.Minute, Drained: true, Demand: 3})
				}
			}
		}
		if err := m.Report(now, rep); err != nil {
			tb.Fatal(err)
		}
		m.Instructions(rep)
		reports = append(reports, rep)
		m.Committed(m.Pending())
	}
	return reports
}

func TestTenThousandPoliciesAreSplitInTime(t *testing.T) {
	m, _, now := manyPolicies(t, 10_000, 5_000)
	start := time.Now()
	result, done := m.Tick(now.Add(time.Second))
	if !done || result.Quotas != 15_000 {
		t.Fatalf("%v, %d quotas", done, result.Quotas)
	}
	// BenchmarkRebalance has the time that it takes; the race detector takes ten times that.
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("one rebalance took %v", took)
	}
	if !m.Pending().Empty() {
		t.Error("demand that fits is written to the ledger")
	}
}

func BenchmarkRebalance(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("policies=%d,keys=%d", n, n/2), func(b *testing.B) {
			m, _, now := manyPolicies(b, n, n/2)
			for b.Loop() {
				now = now.Add(time.Second)
				m.Tick(now)
			}
		})
	}
}

func BenchmarkReportOfOneQuotaAmong10k(b *testing.B) {
	m, reports, now := manyPolicies(b, 10_000, 0)
	rep := reports[0]
	rep.Full, rep.Quotas = false, rep.Quotas[:1]
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		if err := m.Report(now, rep); err != nil {
			b.Fatal(err)
		}
		m.Instructions(rep)
	}
}
