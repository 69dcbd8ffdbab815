package regional_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

const leaseTTL = 15 * time.Second

// strictBucket is one of a hundred tokens.
func strictBucket() *quota.Policy {
	return with(globalBucket("p", 100, 100), func(p *quota.Policy) {
		p.Split.OnPartition, p.OnStoreFailure = quota.Strict, quota.FailLocal
	})
}

// strictGrant is a share of sixty of which the floor is permanent, with all its tokens.
func strictGrant(p *quota.Policy) quota.Grant {
	g := grant(p, 1, 60)
	g.Permanent, g.Gift = floorOf(p), g.Share.Capacity-floorOf(p).Capacity
	return g
}

// lessor answers with leases, and with one grant until it is acknowledged.
func lessor(g quota.Grant, leases func() bool) func(int, quota.Report) (quota.Instructions, error) {
	return func(_ int, r quota.Report) (quota.Instructions, error) {
		in := quota.Instructions{Gen: r.Gen, Epoch: 1, Fresh: true}
		if leases() {
			in.Lease = quota.Lease{SentAt: r.SentAt, TTL: leaseTTL}
		}
		for _, q := range r.Quotas {
			if q.ID == g.ID && q.Version >= g.Version {
				return in, nil
			}
		}
		if len(r.Quotas) > 0 {
			in.Grants = []quota.Grant{g}
		}
		return in, nil
	}
}

func always() bool { return true }

// TestTheFirstGrantComesWithALease: its tokens can be spent at once.
func TestTheFirstGrantComesWithALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := strictBucket()
		b := setup(t, newMemStore(), []*quota.Policy{p})
		co := &scribe{}
		co.set(lessor(strictGrant(p), always))
		a := startAgent(t, b, co, "n1")
		pass(3 * time.Second)
		if got := b.remaining(t, request(), "p"); got != 60 {
			t.Errorf("remaining %d, want 60", got)
		}
		if left := time.Until(a.Status().LeaseUntil); left < leaseTTL*3/4 || left > leaseTTL {
			t.Errorf("the lease lasts %v", left)
		}
		if got := b.metric(t, "weir_lease_left_seconds", nil); got < 10 || got > 15 {
			t.Errorf("weir_lease_left_seconds %v", got)
		}
		if got := b.metric(t, "weir_lease_lapses_total", nil); got != 0 {
			t.Errorf("%v lapses before the first lease", got)
		}
		for _, r := range co.heard() {
			for _, q := range r.Quotas {
				if q.Version == 1 && q.Permanent != floorOf(p) {
					t.Errorf("reported a permanent part of %v", q.Permanent)
				}
			}
		}
	})
}

// TestTheLeaseEndsAndComesBack: the coordinator is away for longer than the lease, and
// then answers.
func TestTheLeaseEndsAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := strictBucket()
		b := setup(t, newMemStore(), []*quota.Policy{p})
		co := &scribe{}
		co.set(lessor(strictGrant(p), always))
		a := startAgent(t, b, co, "n1")
		pass(3 * time.Second)
		away := time.Now()
		co.set(func(int, quota.Report) (quota.Instructions, error) { return quota.Instructions{}, quota.ErrUnavailable })
		pass(leaseTTL - leaseTTL/4)
		if got := b.remaining(t, request(), "p"); got != 60 {
			t.Errorf("remaining %d under the lease, want 60", got)
		}
		pass(time.Until(away.Add(leaseTTL + time.Second)))
		if got := b.remaining(t, request(), "p"); got != 10 {
			t.Errorf("remaining %d without it, want the floor of 10", got)
		}
		if left := time.Until(a.Status().LeaseUntil); left > 0 {
			t.Errorf("the status says that %v are left", left)
		}
		ex, err := b.Explain(context.Background(), request())
		if err != nil {
			t.Fatal(err)
		}
		if pe := ex.Policies[0]; !pe.Leased || pe.LeaseLeft != 0 || pe.Share != floorOf(p) || pe.Permanent != floorOf(p) {
			t.Errorf("explained as %+v", pe)
		}
		co.set(lessor(strictGrant(p), always))
		pass(20 * time.Second) // the agent has backed off
		if got := b.metric(t, "weir_lease_lapses_total", nil); got != 1 {
			t.Errorf("%v lapses, want 1", got)
		}
		ex, err = b.Explain(context.Background(), request())
		if err != nil {
			t.Fatal(err)
		}
		if pe := ex.Policies[0]; pe.LeaseLeft <= 0 || pe.Share != strictGrant(p).Share {
			t.Errorf("explained as %+v", pe)
		}
	})
}

// TestLocalDecisionsObeyTheLease: with the store away nobody can extend it, and the node
// knows by itself when it is over.
func TestLocalDecisionsObeyTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := strictBucket()
		b := setup(t, newMemStore(), []*quota.Policy{p})
		co := &scribe{}
		co.set(lessor(strictGrant(p), always))
		startAgent(t, b, co, "n1")
		pass(3 * time.Second)
		b.mustCheck(t, request())
		pass(3 * time.Second) // the node has read the share that the check was decided under
		b.store.set(func(s *memStore) { s.failing, s.before = errBroken, broken })
		admitted := func(user string) (n int) {
			for range 100 {
				if b.mustCheck(t, request("user", user)).Allowed {
					n++
				}
			}
			return n
		}
		if got := admitted("a"); got != 60 {
			t.Errorf("%d admitted under the lease, want the share of 60", got)
		}
		pass(leaseTTL)
		if got := admitted("b"); got != 10 {
			t.Errorf("%d admitted without it, want the floor of 10", got)
		}
	})
}

// TestHoldNeverAsksForALease: no clocks are read and nothing is written.
func TestHoldNeverAsksForALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 100)
		b := setup(t, newMemStore(), []*quota.Policy{p})
		co := &scribe{}
		co.set(lessor(grant(p, 1, 60), always))
		a := startAgent(t, b, co, "n1")
		pass(time.Minute)
		b.store.set(func(s *memStore) {
			if s.renewals != 0 || s.clocks != 0 {
				t.Errorf("%d clocks read, %d leases extended", s.clocks, s.renewals)
			}
		})
		if !a.Status().LeaseUntil.IsZero() {
			t.Errorf("the status has a lease until %v", a.Status().LeaseUntil)
		}
		if got := b.metric(t, "weir_lease_left_seconds", nil); got != -1 {
			t.Errorf("weir_lease_left_seconds %v, want -1", got)
		}
	})
}

// TestALeaseIsNotWrittenAtEachReport: five times in its length will do.
func TestALeaseIsNotWrittenAtEachReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := strictBucket()
		b := setup(t, newMemStore(), []*quota.Policy{p})
		co := &scribe{}
		co.set(lessor(strictGrant(p), always))
		startAgent(t, b, co, "n1")
		pass(4 * leaseTTL)
		b.store.set(func(s *memStore) {
			if s.renewals < 12 || s.renewals > 22 {
				t.Errorf("%d extensions in %v", s.renewals, 4*leaseTTL)
			}
		})
	})
}

// TestALeaseForAnotherReportExtendsNothing: neither one whose report was another, nor
// one of a leader that was replaced, or for another dataset.
func TestALeaseForAnotherReportExtendsNothing(t *testing.T) {
	for name, wrong := range map[string]func(*quota.Instructions){
		"report":  func(in *quota.Instructions) { in.Lease.SentAt-- },
		"epoch":   func(in *quota.Instructions) { in.Epoch = 0 },
		"dataset": func(in *quota.Instructions) { in.Gen = "other" },
		"length":  func(in *quota.Instructions) { in.Lease.TTL = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := strictBucket()
				b := setup(t, newMemStore(), []*quota.Policy{p})
				co := &scribe{}
				co.set(lessor(strictGrant(p), always))
				startAgent(t, b, co, "n1")
				pass(3 * time.Second)
				good := lessor(strictGrant(p), always)
				co.set(func(n int, r quota.Report) (quota.Instructions, error) {
					in, err := good(n, r)
					wrong(&in)
					return in, err
				})
				pass(leaseTTL + time.Second)
				if got := b.remaining(t, request(), "p"); got != 10 {
					t.Errorf("remaining %d, want the floor of 10", got)
				}
			})
		})
	}
}
