package faulttest

import (
	"fmt"
	"testing"
	"time"
)

// heal ends all faults and all demand.
func (w *world) heal() {
	w.setting, w.longest = calm, 25
	w.zombies, w.cutAll, w.storm = nil, 0, 0
	for _, r := range w.regions {
		r.cutTo, r.cutFrom, r.agentAway, r.nodesAway = 0, 0, 0, 0
		for i := range r.appetite {
			r.appetite[i] = appetite{demandAt: 1 << 62, takesAt: 1 << 62}
		}
	}
}

// After the faults end, every region gets what the split gives it, whatever came
// before, and then nothing is written or sent any more.
func TestEveryScheduleSettles(t *testing.T) {
	t.Parallel()
	for shard := range uint64(shards) {
		t.Run(fmt.Sprint("shard", shard), func(t *testing.T) {
			t.Parallel()
			for seed := shard; seed < uint64(schedules(100)); seed += shards {
				settles(t, seed)
			}
		})
	}
}

func settles(t *testing.T, seed uint64) {
	t.Helper()
	w := newWorld(seed, options{})
	w.play(40 * time.Second)
	w.heal()
	w.play(15 * time.Minute) // peaks of demand fade
	commits, grants := w.commits, w.grants
	w.play(time.Minute)
	if w.done() {
		t.Fatalf("schedule %d: %v %v", seed, w.err, w.found)
	}
	if w.commits != commits || w.grants != grants {
		t.Errorf("schedule %d: with nothing changing there were %d commits and %d grants", seed, w.commits-commits, w.grants-grants)
	}
	if why := w.unsettled(); why != "" {
		t.Errorf("schedule %d: %s", seed, why)
	}
}

// unsettled says what is not as the split wants it.
func (w *world) unsettled() string {
	s := w.leader.brain.Status(w.leader.clock.time(w.now))
	if s.Recovering {
		return "still recovering"
	}
	for _, q := range s.Quotas {
		if q.Removed {
			return fmt.Sprintf("%s was removed and is not forgotten: %+v", q.ID.Policy, q)
		}
		if !q.Effective {
			return fmt.Sprintf("the limit of %s is not in force: %+v", q.ID.Policy, q)
		}
		for _, share := range q.Regions {
			if share.Sent != share.Share || share.Bound != share.Sent || !share.PendingSince.IsZero() {
				return fmt.Sprintf("%s of %s is pending: %+v", share.Region, q.ID.Policy, share)
			}
			held, _ := w.held(w.region(share.Region), w.account(q.ID))
			if held.Version != share.Version || held.Share != share.Sent {
				return fmt.Sprintf("%s holds %+v of %s, the ledger says %+v", share.Region, held, q.ID.Policy, share)
			}
		}
	}
	for _, r := range s.Regions {
		if r.Leaving {
			return fmt.Sprintf("%s has left and is not forgotten", r.Region)
		}
	}
	return ""
}
