package regional_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

// scribe is a coordinator that writes reports down and answers what it is told to.
type scribe struct {
	mu      sync.Mutex
	reports []quota.Report
	at      []time.Time
	answer  func(n int, r quota.Report) (quota.Instructions, error) // n counts from 0
}

func (s *scribe) Report(_ context.Context, r quota.Report) (quota.Instructions, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.reports)
	s.reports, s.at = append(s.reports, r), append(s.at, time.Now())
	if s.answer != nil {
		return s.answer(n, r)
	}
	return quota.Instructions{Gen: r.Gen, Epoch: 1, Fresh: true}, nil
}

func (s *scribe) set(f func(n int, r quota.Report) (quota.Instructions, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports, s.at, s.answer = nil, nil, f
}

func (s *scribe) heard() []quota.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reports)
}

func (s *scribe) last(tb testing.TB) quota.Report {
	tb.Helper()
	got := s.heard()
	if len(got) == 0 {
		tb.Fatal("no report")
	}
	return got[len(got)-1]
}

func globalBucket(id string, capacity, perMinute quota.Tokens) *quota.Policy {
	return with(bucket(id, capacity, perMinute), func(p *quota.Policy) { p.Scope = quota.Global })
}

func grant(p *quota.Policy, version int64, capacity quota.Tokens) quota.Grant {
	share := quota.Share{Capacity: capacity * quota.Token, Refill: p.Limit.Refill * capacity * quota.Token / p.Limit.Capacity}
	return quota.Grant{
		ID: quota.ID{Policy: p.ID}, Version: version, Share: share, Permanent: share,
		Algorithm: p.Algorithm, Limit: p.Limit, Floor: floorOf(p),
	}
}

// startAgent runs an agent for the rest of the test.
func startAgent(tb testing.TB, b *bundle, co regional.Coordinator, node string) *regional.Agent {
	tb.Helper()
	a, err := regional.NewAgent(regional.AgentConfig{Engine: b.Engine, Dataset: b.store, Coordinator: co, Region: "eu-west", Node: node})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return a
}

func TestNewDatasetIsFreshOnlyOnTheCoordinatorsWord(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(int, quota.Report) (quota.Instructions, error)
		fresh  bool
	}{
		"fresh": {nil, true},
		"had another": {func(_ int, r quota.Report) (quota.Instructions, error) {
			return quota.Instructions{Gen: r.Gen, Epoch: 1}, nil
		}, false},
		"speaks of another": {func(int, quota.Report) (quota.Instructions, error) {
			return quota.Instructions{Gen: "other", Epoch: 1, Fresh: true}, nil
		}, false},
		"away": {func(int, quota.Report) (quota.Instructions, error) { return quota.Instructions{}, quota.ErrUnavailable }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, co := newMemStore(), &scribe{answer: c.answer}
				b := setup(t, store, []*quota.Policy{globalBucket("p", 100, 100)})
				startAgent(t, b, co, "n1")
				synctest.Wait()
				first := co.heard()[0]
				if first.Gen == "" || !first.Full || len(first.Quotas) != 0 || first.Region != "eu-west" {
					t.Fatalf("first report %+v", first)
				}
				store.set(func(s *memStore) {
					for i := range testStripes {
						if s.regions[i] != first.Gen || s.fresh[i] != c.fresh {
							t.Errorf("stripe %d has gen %q fresh %v, want %q %v", i, s.regions[i], s.fresh[i], first.Gen, c.fresh)
						}
					}
				})
			})
		})
	}
}

// A deployment that starts for the first time is fresh as a whole: a region asks again,
// under the same id, until the coordinator has heard all of them.
func TestSettledOnceTheSharesAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 100)
		store := newMemStore().initialised()
		var agent atomic.Pointer[regional.Agent]
		co := &scribe{answer: func(n int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 3}
			if n <= 2 { // the second time it is not known yet that the first was applied
				in.Grants = []quota.Grant{grant(p, 7, 60)}
				if a := agent.Load(); a != nil && a.Status().Settled {
					t.Error("settled before the shares are held")
				}
			}
			return in, nil
		}}
		b := setup(t, store, []*quota.Policy{p})
		a := startAgent(t, b, co, "n1")
		agent.Store(a)
		<-time.After(3 * time.Second)
		if !a.Status().Settled {
			t.Error("not settled though the coordinator has no more shares to give")
		}
	})
}

func TestFirstDatasetWaitsForTheOtherRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		co := &scribe{answer: func(n int, r quota.Report) (quota.Instructions, error) {
			return quota.Instructions{Gen: r.Gen, Epoch: 1, Undecided: n <= 3, Fresh: n > 3}, nil
		}}
		b := setup(t, store, []*quota.Policy{globalBucket("p", 100, 100)})
		startAgent(t, b, co, "n1")
		synctest.Wait()
		store.set(func(s *memStore) {
			if len(s.regions) > 0 {
				t.Error("a dataset was made before the coordinator knew whether it is fresh")
			}
		})
		begun := time.Now()
		<-time.After(2 * time.Second)
		heard := co.heard()
		store.set(func(s *memStore) {
			for i := range testStripes {
				if s.regions[i] != heard[0].Gen || !s.fresh[i] {
					t.Errorf("stripe %d has gen %q fresh %v, want %q and fresh", i, s.regions[i], s.fresh[i], heard[0].Gen)
				}
			}
		})
		if len(heard) < 4 || time.Since(begun) > 3*time.Second {
			t.Errorf("asked %d times in %s", len(heard), time.Since(begun))
		}
	})
}

func TestGrantsAreAppliedAndAcknowledgedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 100)
		store, co := newMemStore().initialised(), &scribe{}
		b := setup(t, store, []*quota.Policy{p})
		co.answer = func(n int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 3}
			if n == 1 {
				in.Grants = []quota.Grant{grant(p, 7, 60)}
			}
			return in, nil
		}
		a := startAgent(t, b, co, "n1")
		pass(1500 * time.Millisecond)
		synctest.Wait()
		got := co.heard()
		if len(got) != 3 {
			t.Fatalf("%d reports, want first, second and acknowledgement", len(got))
		}
		if !got[0].Full || got[0].Quotas[0].Version != 0 {
			t.Errorf("first report %+v", got[0])
		}
		ack := got[2]
		if wait := co.at[2].Sub(co.at[1]); wait != 0 {
			t.Errorf("acknowledged after %v", wait)
		}
		if len(ack.Quotas) != 1 || ack.Quotas[0].Version != 7 || ack.Quotas[0].Share.Capacity != 60*quota.Token || ack.Epoch != 3 {
			t.Errorf("acknowledgement %+v", ack)
		}
		if s := a.Status(); !s.Holder || s.Gen != "gen-0" || s.Epoch != 3 || s.Err != nil || s.LastReport.IsZero() {
			t.Errorf("status %+v", s)
		}
		// The share is what is enforced now: 10 tokens of the floor were there, and
		// growing gives room, not tokens.
		ex, err := b.Explain(context.Background(), request())
		if err != nil || ex.Policies[0].Share.Capacity != 60*quota.Token || ex.Policies[0].Version != 7 {
			t.Errorf("explained %+v, %v", ex, err)
		}
	})
}

func TestOldEpochsAndOtherDatasetsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 100)
		store, co := newMemStore().initialised(), &scribe{}
		b := setup(t, store, []*quota.Policy{p})
		co.answer = func(n int, r quota.Report) (quota.Instructions, error) {
			switch n {
			case 0: // a newer leader says hello without grants
				return quota.Instructions{Gen: r.Gen, Epoch: 9}, nil
			case 1:
				return quota.Instructions{Gen: r.Gen, Epoch: 8, Grants: []quota.Grant{grant(p, 50, 99)}}, nil
			case 2:
				return quota.Instructions{Gen: "other", Epoch: 9, Grants: []quota.Grant{grant(p, 51, 99)}}, nil
			}
			return quota.Instructions{Gen: r.Gen, Epoch: 9}, nil
		}
		startAgent(t, b, co, "n1")
		pass(5 * time.Second)
		store.set(func(s *memStore) {
			if s.epoch != 9 || len(s.held) != 0 || !slices.Equal(s.applied, []quota.Epoch{9}) {
				t.Errorf("epoch %d, held %v, the store was asked for epochs %v", s.epoch, s.held, s.applied)
			}
		})
		if got := b.metric(t, "weir_agent_instructions_refused_total", nil); got != 2 {
			t.Errorf("counted %v refusals", got)
		}
	})
}

func TestCoordinatorAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 6000)
		store, co := newMemStore().initialised(), &scribe{}
		b := setup(t, store, []*quota.Policy{p})
		co.answer = func(n int, r quota.Report) (quota.Instructions, error) {
			if n == 0 {
				return quota.Instructions{Gen: r.Gen, Epoch: 1, Grants: []quota.Grant{grant(p, 1, 50)}}, nil
			}
			return quota.Instructions{Gen: r.Gen, Epoch: 1}, nil
		}
		a := startAgent(t, b, co, "n1")
		pass(3 * time.Second)
		co.set(func(int, quota.Report) (quota.Instructions, error) {
			return quota.Instructions{}, fmt.Errorf("dial: %w", quota.ErrUnavailable)
		})
		admitted := 0
		for range 600 { // ten minutes
			pass(time.Second)
			start := time.Now()
			for b.mustCheck(t, request()).Allowed {
				admitted++
			}
			if took := time.Since(start); took != 0 {
				t.Fatalf("checks waited %v for an absent coordinator", took)
			}
		}
		// 6000 a minute, half of it this region's, for ten minutes; a bucket of one
		// second's refill that is emptied once a second loses what overflows.
		if admitted < 29_400 || admitted > 30_050 {
			t.Errorf("admitted %d, want the share of 30000", admitted)
		}
		if n := len(co.heard()); n < 270 || n > 630 {
			t.Errorf("%d reports in ten minutes, want one each second or two", n)
		}
		if !errors.Is(a.Status().Err, quota.ErrUnavailable) {
			t.Errorf("status %+v", a.Status())
		}
		co.set(nil)
		pass(16 * time.Second)
		got := co.heard()
		if len(got) == 0 || !got[0].Full || a.Status().Err != nil {
			t.Fatalf("after the return: %d reports, status %+v", len(got), a.Status())
		}
	})
}

// A log whose share shrank is reported as not drained, with what it may still
// hold, until a window has passed, and four times a second. A new agent on
// another node finds the same.
func TestShrunkLogDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := with(logPolicy("log", 100, 10*time.Second), func(p *quota.Policy) { p.Scope = quota.Global })
		store, co := newMemStore().initialised(), &scribe{}
		b := setup(t, store, []*quota.Policy{p})
		co.answer = func(n int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1}
			switch n {
			case 0:
				in.Grants = []quota.Grant{grant(p, 1, 80)}
			case 2:
				in.Grants = []quota.Grant{grant(p, 2, 30)}
			}
			return in, nil
		}
		ctx, cancel := context.WithCancel(context.Background())
		first, err := regional.NewAgent(regional.AgentConfig{Engine: b.Engine, Dataset: store, Coordinator: co, Region: "eu-west", Node: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- first.Run(ctx) }()
		pass(3 * time.Second)
		q := co.last(t).Quotas[0]
		if q.Version != 2 || q.Drained || q.Hold != 80*quota.Token {
			t.Fatalf("after the shrink: %+v", q)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		co.set(nil)
		other := setup(t, store, []*quota.Policy{p})
		startAgent(t, other, co, "n2") // at once: the first let the lock go
		synctest.Wait()
		if q := co.last(t).Quotas[0]; q.Drained || q.Hold != 80*quota.Token {
			t.Fatalf("told by the next agent: %+v", q)
		}
		pass(2 * time.Second)
		if n := len(co.heard()); n < 8 {
			t.Errorf("%d reports in 2 s of draining, want 8", n)
		}
		pass(8 * time.Second)
		last := quota.QuotaReport{}
		for _, r := range co.heard() {
			for _, q := range r.Quotas {
				last = q
			}
		}
		if !last.Drained || last.Hold != 0 {
			t.Fatalf("a window later: %+v", last)
		}
	})
}

func TestOneAgentAtATimeAndTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, co := newMemStore(), &scribe{}
		policies := []*quota.Policy{globalBucket("p", 100, 100)}
		var agents []*regional.Agent
		for i := range 3 {
			agents = append(agents, startAgent(t, setup(t, store, policies), co, fmt.Sprint("n", i)))
			synctest.Wait()
		}
		pass(5 * time.Second)
		holders := 0
		for _, a := range agents {
			if a.Status().Holder {
				holders++
			}
		}
		if holders != 1 {
			t.Fatalf("%d agents", holders)
		}
		if n := len(co.heard()); n < 5 || n > 9 {
			t.Errorf("%d reports in 5 s, want one a second", n)
		}
	})
}

func TestLostStripesStartAsLostAndShareIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 100)
		store, co := newMemStore().initialised(), &scribe{}
		b := setup(t, store, []*quota.Policy{p})
		co.answer = func(n int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1, Fresh: true}
			if n == 0 {
				in.Grants = []quota.Grant{grant(p, 4, 60)}
			}
			return in, nil
		}
		startAgent(t, b, co, "n1")
		pass(2 * time.Second)
		if q := co.heard()[1].Quotas[0]; q.Version != 4 {
			t.Fatalf("not acknowledged: %+v", q)
		}
		store.lose(3, 5)
		pass(2 * time.Second)
		if q := co.last(t).Quotas; len(co.last(t).Quotas) > 0 && q[0].Version != 0 {
			t.Fatalf("version %d is reported although two stripes lost it", q[0].Version)
		}
		store.set(func(s *memStore) {
			if s.regions[3] == "gen-0" || s.regions[3] != s.regions[4] || s.fresh[3] || s.fresh[5] || !s.fresh[4] {
				t.Errorf("regions %v fresh %v", s.regions, s.fresh)
			}
		})
		zero := false
		for _, r := range co.heard()[2:] {
			for _, q := range r.Quotas {
				zero = zero || q.Version == 0
			}
		}
		if !zero {
			t.Error("the coordinator never learnt that the share is gone")
		}
	})
}

// A standalone region has the limits in full, needs no share record, and looks
// after its own dataset.
func TestStandalone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		b := setup(t, store, []*quota.Policy{globalBucket("p", 20, 60)}, func(c *regional.Config) { c.Standalone, c.Floor = true, nil })
		startAgent(t, b, nil, "n1")
		synctest.Wait()
		store.set(func(s *memStore) {
			if !s.fresh[0] || s.regions[0] == "" {
				t.Error("the dataset is not initialised")
			}
		})
		admitted := 0
		for range 40 {
			if b.mustCheck(t, request()).Allowed {
				admitted++
			}
		}
		if admitted != 20 {
			t.Errorf("admitted %d, want 20", admitted)
		}
		pass(5 * time.Second)
		store.set(func(s *memStore) {
			if s.adds != 0 {
				t.Error("demand is counted that nobody asks for")
			}
		})
	})
}

// A check that meets a stripe without a record wakes the agent.
func TestUninitialisedStripeWakesTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, co := newMemStore().initialised(), &scribe{}
		b := setup(t, store, []*quota.Policy{globalBucket("p", 100, 100)})
		startAgent(t, b, co, "n1")
		pass(100 * time.Millisecond)
		all := make([]int, testStripes)
		for i := range all {
			all[i] = i
		}
		store.lose(all...)
		if d := decision(t, b.mustCheck(t, request()), "p"); d.Reason != quota.ReasonStoreUnavailable {
			t.Fatalf("got %+v", d)
		}
		synctest.Wait()
		if st, _ := store.State(context.Background()); !st.Complete {
			t.Fatal("no time has passed, and the agent has not repaired the dataset")
		}
	})
}
