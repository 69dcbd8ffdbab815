package regional_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

func failing(mode quota.FailureMode) func(*quota.Policy) {
	return func(p *quota.Policy) { p.OnStoreFailure = mode }
}

// Fault list 57, 59: a store that hangs, refuses or has lost its data: every
// check is answered by its policy's mode within its deadline, and the node stays ready.
func TestFailureModes(t *testing.T) {
	stores := map[string]func(context.Context, quota.Attempt) error{
		"hangs":         hang(nil),
		"broken":        broken,
		"uninitialised": func(context.Context, quota.Attempt) error { return quota.ErrUninitialised },
	}
	modes := map[quota.FailureMode]struct {
		admitted int
		reason   quota.Reason
	}{
		quota.FailClosed: {0, quota.ReasonStoreUnavailable},
		quota.FailOpen:   {10, quota.ReasonNone},
		quota.FailLocal:  {3, quota.ReasonLimit},
	}
	for name, before := range stores {
		for mode, want := range modes {
			t.Run(fmt.Sprint(name, "/", mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newMemStore()
					store.before = before
					b := setup(t, store, []*quota.Policy{with(bucket("p", 3, 0), failing(mode))})
					admitted := 0
					for range 10 {
						start := time.Now()
						res := b.mustCheck(t, request())
						if took := time.Since(start); took > quota.DefaultStoreDeadline {
							t.Fatalf("a check took %v", took)
						}
						d := decision(t, res, "p")
						if d.Source != quota.SourceFallback {
							t.Fatalf("got %+v", d)
						}
						if res.Allowed {
							admitted++
						} else if d.Reason != want.reason {
							t.Fatalf("denied with %v, want %v", d.Reason, want.reason)
						}
					}
					if admitted != want.admitted {
						t.Errorf("admitted %d, want %d", admitted, want.admitted)
					}
					if h := b.Health(); !h.Ready || !h.Degraded {
						t.Errorf("health %+v, want ready and degraded", h)
					}
					if got := b.metric(t, "weir_decisions_total", map[string]string{"source": "fallback"}); got != 10 {
						t.Errorf("counted %v fallback decisions", got)
					}
					over := b.metric(t, "weir_decisions_total", map[string]string{"reason": "LIMIT_EXCEEDED"})
					if mode == quota.FailClosed && over != 0 {
						t.Errorf("%v denials counted as over limit", over)
					}
					if got := b.metric(t, "weir_degraded", nil); got != 1 {
						t.Errorf("degraded gauge is %v", got)
					}
					pass(11 * time.Second)
					if b.Health().Degraded {
						t.Error("still degraded 11 s later")
					}
				})
			})
		}
	}
}

func TestPolicyDeadlineOverridesDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.before = hang(nil)
		b := setup(t, store, []*quota.Policy{with(bucket("p", 3, 0), func(p *quota.Policy) { p.StoreDeadline = 40 * time.Millisecond })})
		start := time.Now()
		b.mustCheck(t, request())
		if took := time.Since(start); took != 40*time.Millisecond {
			t.Fatalf("took %v", took)
		}
	})
}

// A call lives as long as its check may wait for it and LateWait longer, however
// long the policy's deadline is, and no longer than that.
func TestCallOutlivesItsDeadline(t *testing.T) {
	for _, deadline := range []time.Duration{0, 40 * time.Millisecond, 3 * time.Second, quota.MaxStoreDeadline} {
		t.Run(deadline.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemStore()
				answer := make(chan time.Duration, 1)
				began := time.Now()
				store.before = func(ctx context.Context, _ quota.Attempt) error {
					<-ctx.Done()
					answer <- time.Since(began)
					return ctx.Err()
				}
				b := setup(t, store, []*quota.Policy{with(bucket("p", 3, 0), func(p *quota.Policy) { p.StoreDeadline = deadline })})
				b.mustCheck(t, request())
				wait := cmp.Or(deadline, quota.DefaultStoreDeadline)
				if took := time.Since(began); took != wait {
					t.Errorf("the check waited %v of its %v", took, wait)
				}
				least := wait + regional.DefaultLateWait
				if life := <-answer; life < least || life > least+200*time.Millisecond {
					t.Errorf("the call was cut off after %v, want %v", life, least)
				}
			})
		})
	}
}

// An answer that comes just before a long deadline decides the check.
func TestAnswerBeforeALongDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.before = func(ctx context.Context, _ quota.Attempt) error {
			select {
			case <-time.After(8 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		b := setup(t, store, []*quota.Policy{with(bucket("p", 3, 0), func(p *quota.Policy) { p.StoreDeadline = 9 * time.Second })})
		if d := decision(t, b.mustCheck(t, request()), "p"); !d.Allowed || d.Source != quota.SourceStore {
			t.Errorf("decided by %s: %+v", d.Source, d)
		}
	})
}

func TestCallerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		release := make(chan struct{})
		store.before = hang(release)
		b := setup(t, store, []*quota.Policy{with(bucket("p", 3, 0), failing(quota.FailOpen))})
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := b.Check(ctx, request()); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		close(release) // the charge that comes now belongs to nobody
		synctest.Wait()
		store.set(func(s *memStore) { s.before = nil })
		if got := b.remaining(t, request(), "p"); got != 3 {
			t.Fatalf("%d left, want 3", got)
		}
	})
}

// An answer that comes after the deadline with a charge: it goes back when the
// caller was told "denied", and stands when the caller was let through.
func TestLateAnswers(t *testing.T) {
	for mode, left := range map[quota.FailureMode]int64{quota.FailClosed: 3, quota.FailOpen: 2, quota.FailLocal: 2} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemStore()
				release := make(chan struct{})
				store.before = hang(release)
				b := setup(t, store, []*quota.Policy{with(bucket("p", 3, 0), failing(mode))})
				if res := b.mustCheck(t, request()); res.Allowed == (mode == quota.FailClosed) {
					t.Fatalf("got %+v", res)
				}
				close(release)
				synctest.Wait()
				store.set(func(s *memStore) { s.before = nil })
				if got := b.remaining(t, request(), "p"); got != left {
					t.Fatalf("%d left, want %d", got, left)
				}
				if got := b.metric(t, "weir_store_late_answers_total", nil); got != 1 {
					t.Errorf("counted %v late answers", got)
				}
			})
		})
	}
}

// A late answer may also come while the check still waits for another stripe.
func TestLateAnswerWhileAnotherGroupWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.before = func(ctx context.Context, a quota.Attempt) error {
			d := 10 * time.Millisecond // past the quick one's deadline, before the slow one's
			if a.Entries[0].Algorithm == quota.SlidingLog {
				d = time.Hour
			}
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		quick := with(bucket("quick", 3, 0), failing(quota.FailOpen))
		slow := with(logPolicy("slow", 3, time.Hour), func(p *quota.Policy) {
			p.Key, p.StoreDeadline = []string{"ip"}, 50*time.Millisecond
		})
		b := setup(t, store, []*quota.Policy{quick, slow})
		res := b.mustCheck(t, request("ip", "203.0.113.7"))
		if res.Allowed || decision(t, res, "slow").Reason != quota.ReasonStoreUnavailable {
			t.Fatalf("got %+v", res)
		}
		synctest.Wait()
		store.set(func(s *memStore) { s.before = nil })
		if got := b.remaining(t, request("ip", "203.0.113.7"), "quick"); got != 3 {
			t.Fatalf("quick has %d left, want 3", got)
		}
	})
}

// In a group that fails each policy takes its own mode, and all or nothing holds.
func TestMixedModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.before = broken
		policies := []*quota.Policy{
			with(bucket("open", 3, 0), failing(quota.FailOpen)),
			with(bucket("local", 2, 0), failing(quota.FailLocal)),
			with(bucket("shut", 9, 0), func(p *quota.Policy) {
				p.Match = []quota.Condition{{Attribute: "route", Pattern: "POST /login"}}
			}),
		}
		b := setup(t, store, policies)
		for range 5 {
			res := b.mustCheck(t, request("route", "POST /login"))
			if res.Allowed || !decision(t, res, "open").Allowed || decision(t, res, "shut").Reason != quota.ReasonStoreUnavailable {
				t.Fatalf("got %+v", res)
			}
			if d := decision(t, res, "local"); !d.Allowed || d.Remaining != 2 {
				t.Fatalf("local must not be charged: %+v", d)
			}
		}
		for i := range 3 {
			if got := b.mustCheck(t, request()).Allowed; got != (i < 2) {
				t.Fatalf("check %d: without the closed policy the local bucket of 2 decides, got %v", i, got)
			}
		}
	})
}

// A later local denial gives back what an earlier local bucket gave.
func TestLocalBucketsAllOrNothing(t *testing.T) {
	store := newMemStore()
	store.before = broken
	a := with(bucket("a", 5, 0), failing(quota.FailLocal))
	c := with(bucket("c", 2, 0), failing(quota.FailLocal))
	b := setup(t, store, []*quota.Policy{a, c})
	for range 10 {
		b.mustCheck(t, request())
	}
	r := request()
	r.Policies = []string{"a"}
	admitted := 0
	for range 10 {
		if b.mustCheck(t, r).Allowed {
			admitted++
		}
	}
	if admitted != 3 {
		t.Fatalf("a admits %d more, want 5 - 2", admitted)
	}
}

func TestOverloadTakesFailureModeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.before = hang(nil)
		b := setup(t, store, []*quota.Policy{with(bucket("p", 3, 0), failing(quota.FailOpen))},
			func(c *regional.Config) { c.MaxInFlight = 64; c.LateWait = time.Minute })
		for i := range 10 {
			start := time.Now()
			b.mustCheck(t, request())
			if took := time.Since(start); i >= 2 && took != 0 { // 64/32 calls of one lane are inside
				t.Fatalf("check %d waited %v in front of a full store", i, took)
			}
		}
		if n := store.countCalls(); n != 2 {
			t.Errorf("%d calls inside, want 2", n)
		}
		if got := b.metric(t, "weir_store_failures_total", map[string]string{"kind": "overloaded"}); got != 8 {
			t.Errorf("counted %v", got)
		}
		pass(2 * time.Minute) // let the calls run into their own end
	})
}

// Fault list 147: with the store gone, the nodes of a region together stay within
// max(share, one token per node) at once, plus the share's refill.
func TestLocalModeIsThisNodesPart(t *testing.T) {
	for _, c := range []struct {
		nodes           int
		capacity, burst quota.Tokens // of the region's share
	}{{4, 100, 100}, {3, 100, 99}, {50, 100, 100}, {50, 30, 50}, {7, 7, 7}} {
		t.Run(fmt.Sprintf("%d nodes share %d", c.nodes, c.capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemStore()
				store.before = broken
				p := with(bucket("p", c.capacity, 600), failing(quota.FailLocal))
				admitted := func(n int, d time.Duration) (total quota.Tokens) {
					nodes := make([]*bundle, n)
					for i := range nodes {
						nodes[i] = setup(t, store, []*quota.Policy{p}, func(cfg *regional.Config) { cfg.Nodes = func() int { return n } })
					}
					for end := time.Now().Add(d); ; pass(100 * time.Millisecond) {
						for _, node := range nodes {
							for node.mustCheck(t, request()).Allowed {
								total++
							}
						}
						if !time.Now().Before(end) {
							return total
						}
					}
				}
				if got := admitted(c.nodes, 0); got != c.burst {
					t.Errorf("admitted %d at once, want %d", got, c.burst)
				}
				if got := admitted(c.nodes, time.Minute); got > c.burst+600 || got < c.burst+500 {
					t.Errorf("admitted %d in a minute, want %d plus at most 600", got, c.burst)
				}
			})
		})
	}
}

// Fault list 33: local mode admits the same whatever the number of processors.
func TestLocalModeOnManyProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 4, 32} {
		runtime.GOMAXPROCS(procs)
		store := newMemStore()
		store.before = broken
		b := setup(t, store, []*quota.Policy{with(bucket("p", 100, 0), failing(quota.FailLocal))})
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for range 20 {
					if res, err := b.Check(context.Background(), request()); err == nil && res.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if got := admitted.Load(); got != 100 {
			t.Errorf("GOMAXPROCS %d: admitted %d, want 100", procs, got)
		}
	}
}

// A regional policy's limit is divided by the nodes; a cost that fits the limit
// and not the node's part is the absence of the store, not "over limit".
func TestLocalModeCostAbovePart(t *testing.T) {
	store := newMemStore()
	store.before = broken
	b := setup(t, store, []*quota.Policy{with(bucket("p", 8, 0), failing(quota.FailLocal))},
		func(c *regional.Config) { c.Nodes = func() int { return 4 } })
	r := request()
	r.Cost = 5 * quota.Token
	if d := decision(t, b.mustCheck(t, r), "p"); d.Allowed || d.Reason != quota.ReasonStoreUnavailable || d.RetryAfter != 0 {
		t.Fatalf("got %+v", d)
	}
}

func TestFailedGiveBackIsCountedAndErrsOnTheSideOfTheLimit(t *testing.T) {
	policies := []*quota.Policy{bucket("full", 0, 0), bucket("other", 5, 0)}
	policies[0].Limit.Capacity = quota.Token
	policies[1].Key = []string{"ip"}
	for name, c := range map[string]struct {
		err   error
		tries int
		left  int64
	}{
		"unknown outcome is not repeated": {errBroken, 1, 3},
		"certainly not run is repeated":   {fmt.Errorf("queue: %w", quota.ErrOverloaded), 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemStore()
				b := setup(t, store, policies)
				r := request("ip", "203.0.113.7")
				b.mustCheck(t, r)
				store.set(func(s *memStore) { s.refund = func(int) error { return c.err } })
				if b.mustCheck(t, r).Allowed {
					t.Fatal("want denied")
				}
				pass(time.Second)
				if got := b.remaining(t, r, "other"); got != c.left {
					t.Errorf("%d left, want %d", got, c.left)
				}
				store.set(func(s *memStore) {
					if s.refunds != c.tries {
						t.Errorf("%d tries, want %d", s.refunds, c.tries)
					}
				})
				if got := b.metric(t, "weir_give_backs_total", map[string]string{"result": "failed"}); got != 1 {
					t.Errorf("counted %v", got)
				}
			})
		})
	}
}

// However often the store comes and goes, store and local buckets together admit
// at most twice the share's bound; the argument is in doc.go.
func TestFlappingStoreStaysWithinTwiceTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		p := with(bucket("p", 20, 60), failing(quota.FailLocal))
		nodes := make([]*bundle, 2)
		for i := range nodes {
			nodes[i] = setup(t, store, []*quota.Policy{p}, func(c *regional.Config) { c.Nodes = func() int { return 2 } })
		}
		admitted, start := 0, time.Now()
		for i := range 300 {
			store.set(func(s *memStore) {
				s.before = nil
				if i%7 < 3 || i > 100 && i < 200 {
					s.before = broken
				}
			})
			for _, node := range nodes {
				for node.mustCheck(t, request()).Allowed {
					admitted++
				}
			}
			pass(time.Second)
			if bound := 2 * (20 + int(time.Since(start).Seconds())); admitted > bound {
				t.Fatalf("after %v admitted %d, bound %d", time.Since(start), admitted, bound)
			}
		}
		if admitted < 300 {
			t.Errorf("admitted only %d", admitted)
		}
	})
}
