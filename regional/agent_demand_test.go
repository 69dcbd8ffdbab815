package regional_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

func TestNextReportIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		co := &scribe{answer: func(_ int, r quota.Report) (quota.Instructions, error) {
			return quota.Instructions{Gen: r.Gen, Epoch: 1, NextReport: 200 * time.Millisecond}, nil
		}}
		b := setup(t, newMemStore().initialised(), []*quota.Policy{globalBucket("p", 1, 1)})
		startAgent(t, b, co, "n1")
		pass(2010 * time.Millisecond)
		if n := len(co.heard()); n != 11 {
			t.Fatalf("%d reports in 2 s, want 11", n)
		}
	})
}

// Demand is what was offered, summed over the nodes; the busiest key counts by
// its sum, and acknowledging reports repeat it.
func TestReportedDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 1000, 1)
		store, co := newMemStore().initialised(), &scribe{}
		const granting = 10
		co.answer = func(n int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1}
			if n == granting {
				in.Grants = []quota.Grant{grant(p, 1, 100)}
			}
			return in, nil
		}
		n1, n2 := setup(t, store, []*quota.Policy{p}), setup(t, store, []*quota.Policy{p})
		startAgent(t, n1, co, "n1")
		synctest.Wait()
		startAgent(t, n2, co, "n2")
		// Hot key: 20/s on each node; 5 others at 4/s on each. Floor: 100 per key.
		for range 200 {
			pass(50 * time.Millisecond)
			for _, n := range []*bundle{n1, n2} {
				n.mustCheck(t, request("user", "hot"))
			}
		}
		for range 40 {
			pass(250 * time.Millisecond)
			for _, n := range []*bundle{n1, n2} {
				for range 5 {
					n.mustCheck(t, request("user", "hot"))
				}
				for u := range 5 {
					n.mustCheck(t, request("user", fmt.Sprint("u", u)))
				}
			}
		}
		q, _ := lineOf(co.heard(), quota.ID{Policy: "p"})
		hot, _ := lineOf(co.heard(), keyID(t, p, "hot"))
		if !hot.Urgent || hot.Version != 0 {
			t.Errorf("the key that was denied is reported as %+v", hot)
		}
		for u := range 5 {
			if line, ok := lineOf(co.heard(), keyID(t, p, fmt.Sprint("u", u))); !ok || line.Admitted == 0 {
				t.Errorf("a key that has less than half left is reported as %+v (%t)", line, ok)
			}
		}
		near := func(name string, got, want float64) {
			if got < want*0.7 || got > want*1.3 {
				t.Errorf("%s is %.1f/s, want about %.0f", name, got, want)
			}
		}
		near("busiest", q.Demand, 40)
		near("flagged", hot.Demand, 40)
		near("total", q.Total, 80)
		near("admitted", q.Admitted, 40) // the hot key's 100 are long gone
		before, ack := co.heard()[granting].Quotas[0], co.heard()[granting+1].Quotas[0]
		if ack.Version != 1 || ack.Total != before.Total || before.Total == 0 {
			t.Errorf("the acknowledgement %+v tells of another demand than %+v", ack, before)
		}
		// What stops is reported once more, as nothing.
		pass(5 * time.Second)
		quiet := co.last(t)
		zero := false
		for _, r := range co.heard() {
			for _, q := range r.Quotas {
				if q.ID.Key == "" {
					zero = q.Total == 0
				}
			}
		}
		if len(quiet.Quotas) != 0 || !zero {
			t.Errorf("quiet region: last %+v, ended at zero %v", quiet, zero)
		}
	})
}

// Fault list 11, 30: demand waits for the store, added up by key, and all of it
// arrives.
func TestDemandSurvivesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := with(globalBucket("p", 1000, 1), func(p *quota.Policy) { p.OnStoreFailure = quota.FailOpen })
		store := newMemStore().initialised()
		b := setup(t, store, []*quota.Policy{p})
		startAgent(t, b, &scribe{}, "n1")
		pass(2 * time.Second)
		store.set(func(s *memStore) { s.failing, s.before = errBroken, broken })
		for range 600 {
			pass(100 * time.Millisecond)
			for i := range 10 {
				b.mustCheck(t, request("user", fmt.Sprint("u", i%5)))
			}
		}
		if got := b.metric(t, "weir_demand_flush_errors_total", nil); got < 100 {
			t.Errorf("counted %v failed flushes", got)
		}
		var total quota.Demand
		store.set(func(s *memStore) { s.failing = nil; clear(s.added) })
		pass(260 * time.Millisecond)
		store.set(func(s *memStore) {
			total = s.added[quota.ID{Policy: "p"}]
			if len(s.added) != 6 {
				t.Errorf("%d sums, want the total and five keys", len(s.added))
			}
		})
		if total.Offered != 6000*quota.Token || total.Admitted != 6000*quota.Token {
			t.Errorf("the store was told of %+v, want 6000", total)
		}
	})
}

// Before a share is known local fallback uses the floor; afterwards the share,
// on nodes too that are not the agent.
func TestLocalFallbackUsesTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := with(globalBucket("p", 100, 1), failing(quota.FailLocal))
		store, co := newMemStore().initialised(), &scribe{}
		n1, n2 := setup(t, store, []*quota.Policy{p}), setup(t, store, []*quota.Policy{p})
		co.answer = func(n int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1}
			if n == 0 {
				in.Grants = []quota.Grant{grant(p, 1, 60)}
			}
			return in, nil
		}
		fallback := func(b *bundle, user string) (admitted int) {
			store.set(func(s *memStore) { s.before = broken })
			defer store.set(func(s *memStore) { s.before = nil })
			for b.mustCheck(t, request("user", user)).Allowed {
				admitted++
			}
			return admitted
		}
		if got := fallback(n2, "a"); got != 10 {
			t.Errorf("without a share: %d, want the floor of 10", got)
		}
		startAgent(t, n1, co, "n1")
		synctest.Wait()
		startAgent(t, n2, co, "n2")
		pass(2 * time.Second)
		n2.mustCheck(t, request("user", "b")) // decided under version 1
		pass(2 * time.Second)
		if got := fallback(n2, "c"); got != 60 {
			t.Errorf("with a share: %d, want 60", got)
		}
	})
}
