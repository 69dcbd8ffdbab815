package coordinator_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// check looks at every quota: what the regions may act on, and for logs what they
// have admitted inside the window, never exceeds the envelope.
func (w *world) check() {
	for _, q := range w.machine.Status(w.now).Quotas {
		if p := w.policies[q.ID.Policy]; p != nil && q.Effective && !q.Removed && !w.machine.Recovering() &&
			w.now.Sub(w.added[p.ID]) > 2*p.Limit.Period {
			w.envelope[q.ID.Policy] = envelope{float64(p.Limit.Capacity), float64(p.Limit.Refill) / p.Limit.Period.Seconds()}
		}
	}
	for id, e := range w.envelope {
		var capacity, rate float64
		for _, name := range w.names {
			r := w.regions[name]
			share, period := w.acting(r, quota.ID{Policy: id})
			c := share.Capacity
			if id == "log" {
				c = max(c, r.count())
			}
			capacity += float64(c)
			if period > 0 {
				rate += float64(share.Refill) / period.Seconds()
			}
		}
		if capacity > e.capacity || rate > e.rate*(1+1e-9)+1e-6 {
			w.fail("%s: in use %v (%v/s), envelope %v (%v/s)", id, capacity, rate, e.capacity, e.rate)
		}
	}
}

// checkCommit looks at what a commit grants: where it raises a bound by a new
// version, the sum is within the limit of that version (L2).
func (w *world) checkCommit(b coordinator.Batch) {
	type raise struct {
		limit            quota.Limit
		capacity, refill bool
	}
	raised := map[quota.ID]raise{}
	for _, row := range b.Rows {
		key := coordinator.RowKey{ID: row.ID, Region: row.Region}
		old := w.rows[key]
		w.rows[key] = row
		// What was found in a region, or counted by another period, is not granted.
		if row.Version == row.AckVersion || (row.AckVersion > 0 && !row.Acked.Within(old.Bound())) || (old.Version > 0 && row.Limit.Period != old.Limit.Period) {
			continue
		}
		r := raised[row.ID]
		r.limit = row.Limit
		r.capacity = r.capacity || row.Sent.Capacity > old.Bound().Capacity
		r.refill = r.refill || row.Sent.Refill > old.Bound().Refill
		raised[row.ID] = r
	}
	for _, key := range b.DropRows {
		delete(w.rows, key)
	}
	for id, r := range raised {
		var sum quota.Share
		for key, row := range w.rows {
			if key.ID == id && row.Limit.Period == r.limit.Period {
				sum = sum.Add(row.Bound())
			}
		}
		if w.overtaken {
			continue // versions of an earlier limit are in this commit as well
		}
		if (r.capacity && sum.Capacity > r.limit.Capacity) || (r.refill && sum.Refill > r.limit.Refill) {
			w.fail("commit grows %s to %v, limit %v", id.Policy, sum, r.limit)
		}
	}
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// schedules is how many random fault schedules a run of the suite tries.
func schedules(n int) int {
	if s, err := strconv.Atoi(os.Getenv("WEIR_FUZZ_SCHEDULES")); err == nil {
		return s
	}
	return n
}

// run plays one schedule and returns what it found.
func run(seed uint64, steps int, mu mutant) (*world, error) {
	w := newWorld(seed, 2+int(seed%4), seed%2 == 0, mu)
	for range steps {
		w.step()
		if w.err != nil {
			return w, w.err
		}
	}
	return w, nil
}

func TestNoScheduleBreaksTheLimit(t *testing.T) {
	for seed := range uint64(schedules(500)) {
		if w, err := run(seed, 1200, mutant{}); err != nil {
			t.Fatalf("seed %d, %v into it: %v", seed, w.now.Sub(time.Unix(1_700_000_000, 0)), err)
		}
	}
}

// After the faults end, every region gets what the split gives it, whatever came
// before, and then nothing is written or sent any more.
func TestEveryScheduleSettles(t *testing.T) {
	for seed := range uint64(schedules(30)) {
		w, err := run(seed, 400, mutant{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		w.faults = false
		for _, r := range w.regions {
			r.demand = 0
		}
		for range 8000 { // about a quarter of an hour: peaks fade
			w.step()
		}
		commits, grants := w.commits, w.grants
		for range 500 {
			w.step()
		}
		if w.err != nil {
			t.Fatalf("seed %d: %v", seed, w.err)
		}
		if w.commits != commits || w.grants != grants {
			t.Errorf("seed %d: with nothing changing there were %d commits and %d grants", seed, w.commits-commits, w.grants-grants)
		}
		if why := w.unsettled(); why != "" {
			t.Errorf("seed %d: %s", seed, why)
		}
	}
}

// unsettled says what is not as the split wants it.
func (w *world) unsettled() string {
	s := w.machine.Status(w.now)
	if s.Recovering {
		return "still recovering"
	}
	for _, q := range s.Quotas {
		if q.Removed {
			return fmt.Sprintf("%s was removed and is not forgotten: %+v", q.ID.Policy, q)
		}
		for _, share := range q.Regions {
			if share.Sent != share.Share || share.Bound != share.Sent || !share.PendingSince.IsZero() {
				return fmt.Sprintf("%s of %s is pending: %+v", share.Region, q.ID.Policy, share)
			}
			if rec := w.regions[share.Region].records[q.ID]; rec == nil || rec.share != share.Sent {
				return fmt.Sprintf("%s holds %+v of %s, the ledger says %+v", share.Region, rec, q.ID.Policy, share)
			}
		}
	}
	return ""
}

// Each way to break the protocol is noticed by the schedules that the protocol passes.
func TestTheSchedulesNoticeMutants(t *testing.T) {
	for _, mu := range []mutant{
		{name: "grow before shrink", growBeforeShrink: true},
		{name: "no version check", noVersionCheck: true},
		{name: "no epoch check", noEpochCheck: true},
		{name: "volatile ledger treated as empty", volatileIsEmpty: true},
		{name: "log freed without drain", noDrain: true},
		{name: "acknowledged before applied", ackOnReceipt: true},
		{name: "data loss restores an even share", lossRestoresShare: true},
		{name: "sent before persisted", sendBeforePersist: true},
	} {
		t.Run(mu.name, func(t *testing.T) {
			for seed := range uint64(schedules(1500)) {
				if _, err := run(seed, 1200, mu); err != nil {
					t.Logf("noticed by schedule %d: %v", seed, err)
					return
				}
			}
			t.Error("no schedule notices it")
		})
	}
}
