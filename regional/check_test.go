package regional_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

func TestCheckChargesAndDenies(t *testing.T) {
	b := setup(t, newMemStore(), []*quota.Policy{bucket("p", 2, 1)})
	for want := int64(1); want >= 0; want-- {
		res := b.mustCheck(t, request())
		d := decision(t, res, "p")
		if !res.Allowed || !d.Allowed || d.Remaining != want || d.Limit != 2 || d.Source != quota.SourceStore {
			t.Fatalf("want admitted with %d left: %+v", want, res)
		}
	}
	res := b.mustCheck(t, request())
	d := decision(t, res, "p")
	if res.Allowed || d.Reason != quota.ReasonLimit || d.RetryAfter < 59*time.Second || d.RetryAfter > 61*time.Second {
		t.Fatalf("want denied for about a minute: %+v", res)
	}
	if got := b.metric(t, "weir_decisions_total", map[string]string{"policy": "p", "decision": "allowed", "source": "store"}); got != 2 {
		t.Errorf("counted %v admitted, want 2", got)
	}
	if got := b.metric(t, "weir_decisions_total", map[string]string{"reason": "LIMIT_EXCEEDED"}); got != 1 {
		t.Errorf("counted %v denied, want 1", got)
	}
}

func TestNothingMatchesAllows(t *testing.T) {
	p := with(bucket("p", 0, 0), func(p *quota.Policy) { p.Match = []quota.Condition{{Attribute: "plan", Pattern: "free"}} })
	b := setup(t, newMemStore(), []*quota.Policy{p})
	if res := b.mustCheck(t, request()); !res.Allowed || len(res.Decisions) != 0 || res.Revision != 1 {
		t.Fatalf("got %+v", res)
	}
}

// Fault list 27: when one of several policies denies, the others are not charged,
// whether one script decides both or two stripes do.
func TestDenialLeavesOthersUncharged(t *testing.T) {
	t.Run("one stripe", func(t *testing.T) {
		full, free := bucket("full", 1, 1), bucket("free", 10, 1)
		denialLeavesOthersUncharged(t, full, free)
	})
	t.Run("two stripes", func(t *testing.T) {
		full, free := bucket("full", 1, 1), with(bucket("free", 10, 1), func(p *quota.Policy) { p.Key = []string{"ip"} })
		denialLeavesOthersUncharged(t, full, free)
	})
	t.Run("two stripes, log", func(t *testing.T) {
		full, free := bucket("full", 1, 1), with(logPolicy("free", 10, time.Minute), func(p *quota.Policy) { p.Key = []string{"ip"} })
		denialLeavesOthersUncharged(t, full, free)
	})
}

func denialLeavesOthersUncharged(t *testing.T, full, free *quota.Policy) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, newMemStore(), []*quota.Policy{full, free})
		r := request("ip", "203.0.113.7")
		if !b.mustCheck(t, r).Allowed {
			t.Fatal("first check denied")
		}
		for range 20 {
			res := b.mustCheck(t, r)
			if res.Allowed || decision(t, res, "full").Reason != quota.ReasonLimit {
				t.Fatalf("want denied by full: %+v", res)
			}
			if d := decision(t, res, "free"); !d.Allowed || d.Remaining != 9 {
				t.Fatalf("free must be allowed and untouched: %+v", d)
			}
		}
		synctest.Wait()
		if got := b.remaining(t, r, "free"); got != 9 {
			t.Fatalf("free has %d left, want 9", got)
		}
	})
}

// Fault list 28: three rules on one request, four nodes, 10,000 in parallel: no
// rule above its limit and none charged for a check that another denied.
func TestManyNodesStackedRules(t *testing.T) {
	store := newMemStore()
	policies := []*quota.Policy{
		bucket("small", 50, 0),
		with(bucket("middle", 80, 0), func(p *quota.Policy) { p.Key = []string{"ip"} }),
		with(logPolicy("large", 120, time.Hour), func(p *quota.Policy) { p.Key = []string{"route"} }),
	}
	for _, p := range policies {
		p.StoreDeadline = 10 * time.Second // the machine may be slow; this is not about deadlines
	}
	var nodes []*bundle
	for range 4 {
		nodes = append(nodes, setup(t, store, policies))
	}
	r := request("ip", "203.0.113.7", "route", "GET /")
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for w := range 100 {
		wg.Go(func() {
			for i := range 100 {
				res, err := nodes[(w+i)%len(nodes)].Check(context.Background(), r)
				if err != nil {
					t.Error(err)
					return
				}
				if res.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	n := admitted.Load()
	if n > 50 || n == 0 {
		t.Fatalf("admitted %d, want 1 to 50", n)
	}
	for id, limit := range map[string]int64{"small": 50, "middle": 80, "large": 120} {
		if got := nodes[0].remaining(t, r, id); got != limit-n {
			t.Errorf("%s has %d left, want %d - %d", id, got, limit, n)
		}
	}
}

// Fault list 13: one client, one node: what remains never rises but by refill,
// and every answer carries it.
func TestRemainingOnlyFalls(t *testing.T) {
	b := setup(t, newMemStore(), []*quota.Policy{bucket("p", 100, 0)})
	last := int64(100)
	for range 150 {
		d := decision(t, b.mustCheck(t, request()), "p")
		if d.Remaining > last || d.Limit != 100 {
			t.Fatalf("remaining went from %d to %d", last, d.Remaining)
		}
		last = d.Remaining
	}
	if last != 0 {
		t.Fatalf("ended at %d", last)
	}
}

// Fault list 24: one policy that 100 routes match is one bucket per key, in the
// store and in local mode.
func TestOnePolicyManyRoutesOneBucket(t *testing.T) {
	for _, mode := range []string{"store", "local"} {
		t.Run(mode, func(t *testing.T) {
			store := newMemStore()
			if mode == "local" {
				store.before = broken
			}
			p := with(bucket("p", 30, 0), func(p *quota.Policy) {
				p.OnStoreFailure = quota.FailLocal
				p.Match = []quota.Condition{{Attribute: "route", Pattern: "*"}}
			})
			b := setup(t, store, []*quota.Policy{p})
			admitted := 0
			for i := range 100 {
				if b.mustCheck(t, request("route", fmt.Sprint("GET /", i))).Allowed {
					admitted++
				}
			}
			if admitted != 30 {
				t.Fatalf("admitted %d, want 30", admitted)
			}
		})
	}
}

// Fault list 77, 78, 82: limit 0, cost above capacity, costs out of range.
func TestNumbersAtTheEdge(t *testing.T) {
	for _, storeUp := range []bool{true, false} {
		store := newMemStore()
		if !storeUp {
			store.before = broken
		}
		block := with(bucket("block", 0, 0), func(p *quota.Policy) {
			p.Match = []quota.Condition{{Attribute: "plan", Pattern: "banned"}}
			p.OnStoreFailure = quota.FailOpen // even then 0 means never
		})
		b := setup(t, store, []*quota.Policy{block, with(bucket("p", 5, 0), func(p *quota.Policy) { p.OnStoreFailure = quota.FailOpen })})
		for _, cost := range []quota.Tokens{0, quota.Token} {
			r := request("plan", "banned")
			r.Cost = cost
			res := b.mustCheck(t, r)
			if d := decision(t, res, "block"); res.Allowed || d.Reason != quota.ReasonNeverFits || d.RetryAfter != 0 || d.Remaining != 0 {
				t.Errorf("store up %v, cost %v: limit 0 must deny always: %+v", storeUp, cost, res)
			}
		}
		r := request()
		r.Cost = 10 * quota.Token
		res := b.mustCheck(t, r)
		if d := decision(t, res, "p"); res.Allowed || d.Reason != quota.ReasonNeverFits || d.RetryAfter != 0 || storeUp && d.Remaining != 5 {
			t.Errorf("store up %v: cost above capacity must never fit: %+v", storeUp, res)
		}
		if storeUp {
			if got := b.remaining(t, request(), "p"); got != 5 {
				t.Errorf("remaining is %d, want it untouched", got)
			}
		}
		for _, cost := range []quota.Tokens{-1, -quota.Token, quota.MaxTokens + 1, 1 << 62, -1 << 63} {
			r.Cost = cost
			_, err := b.Check(context.Background(), r)
			if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), "cost") {
				t.Errorf("cost %d: got %v, want an invalid cost", int64(cost), err)
			}
		}
	}
}

func TestCostZeroAsksOnly(t *testing.T) {
	b := setup(t, newMemStore(), []*quota.Policy{bucket("p", 1, 0)})
	r := request()
	r.Cost = 0
	for range 3 {
		if res := b.mustCheck(t, r); !res.Allowed || decision(t, res, "p").Remaining != 1 {
			t.Fatalf("got %+v", res)
		}
	}
}

// Fault list 87: an unlimited policy touches neither store nor coordinator.
func TestUnlimitedTouchesNothing(t *testing.T) {
	store := newMemStore()
	b := setup(t, store, []*quota.Policy{{ID: "p", Unlimited: true, OnStoreFailure: quota.FailClosed}})
	for range 10 {
		res := b.mustCheck(t, request())
		if d := decision(t, res, "p"); !res.Allowed || !d.Unlimited || d.Source != quota.SourceNone {
			t.Fatalf("got %+v", res)
		}
	}
	if n := store.countCalls(); n != 0 {
		t.Fatalf("%d store calls", n)
	}
}

func TestMissingKey(t *testing.T) {
	keyed := func(m quota.MissingKey) *quota.Policy {
		return with(bucket("p", 1, 0), func(p *quota.Policy) { p.Key, p.MissingKey = []string{"apiKey"}, m })
	}
	t.Run("skip", func(t *testing.T) {
		b := setup(t, newMemStore(), []*quota.Policy{keyed(quota.MissingSkip)})
		for range 3 {
			if res := b.mustCheck(t, request()); !res.Allowed || len(res.Decisions) != 0 {
				t.Fatalf("got %+v", res)
			}
		}
	})
	t.Run("deny", func(t *testing.T) {
		b := setup(t, newMemStore(), []*quota.Policy{keyed(quota.MissingDeny), bucket("other", 5, 0)})
		res := b.mustCheck(t, request())
		if d := decision(t, res, "p"); res.Allowed || d.Reason != quota.ReasonMissingKey || d.Source != quota.SourceNone {
			t.Fatalf("got %+v", res)
		}
		if d := decision(t, res, "other"); !d.Allowed || d.Remaining != 5 {
			t.Fatalf("other must be reported and untouched: %+v", d)
		}
	})
	t.Run("shared", func(t *testing.T) {
		b := setup(t, newMemStore(), []*quota.Policy{keyed(quota.MissingShared)})
		if !b.mustCheck(t, request("user", "a")).Allowed || b.mustCheck(t, request("user", "b")).Allowed {
			t.Fatal("requests without the attribute must share one quota")
		}
	})
}

func TestShadowIsReportedAndNotEnforced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shadow := with(bucket("shadow", 1, 0), func(p *quota.Policy) { p.Shadow, p.Key = true, []string{"ip"} })
		b := setup(t, newMemStore(), []*quota.Policy{shadow, bucket("p", 3, 0)})
		r := request("ip", "203.0.113.7")
		b.mustCheck(t, r)
		res := b.mustCheck(t, r)
		if d := decision(t, res, "shadow"); !res.Allowed || d.Allowed || !d.Shadow || d.Reason != quota.ReasonLimit {
			t.Fatalf("got %+v", res)
		}
		synctest.Wait()
		if got := b.remaining(t, r, "p"); got != 1 {
			t.Fatalf("p has %d left, want 1: a shadow's denial gives nothing back", got)
		}
		if got := b.metric(t, "weir_decisions_total", map[string]string{"policy": "shadow", "decision": "shadow_denied"}); got != 1 {
			t.Fatalf("counted %v", got)
		}
	})
}

func TestFilterAndBounds(t *testing.T) {
	b := setup(t, newMemStore(), []*quota.Policy{bucket("a", 1, 0), bucket("b", 1, 0)})
	r := request()
	r.Policies = []string{"b"}
	if res := b.mustCheck(t, r); len(res.Decisions) != 1 || res.Decisions[0].PolicyID != "b" {
		t.Fatalf("got %+v", res)
	}
	r.Policies = []string{"c"}
	if _, err := b.Check(context.Background(), r); !errors.Is(err, quota.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	many := request()
	for i := range quota.MaxAttributes {
		many.Attributes[fmt.Sprint("a", i)] = "v"
	}
	invalid := map[string]quota.Request{
		"attributes": many,
		"long":       request("long", strings.Repeat("x", quota.MaxAttributeValue+1)),
		"request_id": {Cost: quota.Token, RequestID: strings.Repeat("x", 300)},
	}
	for field, r := range invalid {
		if _, err := b.Check(context.Background(), r); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	fraction := setup(t, newMemStore(), []*quota.Policy{logPolicy("log", 5, time.Minute)})
	r = request()
	r.Cost = quota.Token / 2
	if _, err := fraction.Check(context.Background(), r); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("half a log entry: got %v", err)
	}
}

func TestBatchDecidesEach(t *testing.T) {
	b := setup(t, newMemStore(), []*quota.Policy{with(bucket("p", 10, 0), func(p *quota.Policy) { p.StoreDeadline = 10 * time.Second })})
	reqs := make([]quota.Request, 100)
	for i := range reqs {
		reqs[i] = request()
	}
	reqs[7].Cost = -1
	results, errs := b.CheckBatch(context.Background(), reqs)
	admitted := 0
	for i := range reqs {
		if (errs[i] != nil) != (i == 7) {
			t.Errorf("check %d: %v", i, errs[i])
		}
		if results[i].Allowed {
			admitted++
		}
	}
	if admitted != 10 {
		t.Fatalf("admitted %d of 10", admitted)
	}
	if _, errs := b.CheckBatch(context.Background(), make([]quota.Request, 1001)); !errors.Is(errs[1000], quota.ErrInvalid) {
		t.Fatalf("got %v", errs[1000])
	}
}

// Fault list 81: a refund at full stays at the limit; negative amounts are refused.
func TestRefund(t *testing.T) {
	b := setup(t, newMemStore(), []*quota.Policy{bucket("a", 5, 0), with(bucket("b", 5, 0), func(p *quota.Policy) { p.Key = []string{"ip"} })})
	r := request("ip", "203.0.113.7")
	r.Cost = 2 * quota.Token
	b.mustCheck(t, r)
	got, err := b.Refund(context.Background(), quota.RefundRequest{Attributes: r.Attributes, Amount: quota.Token, Policies: []string{"a"}})
	if err != nil || len(got) != 1 || got[0] != "a" {
		t.Fatalf("got %v, %v", got, err)
	}
	if a, o := b.remaining(t, r, "a"), b.remaining(t, r, "b"); a != 4 || o != 3 {
		t.Fatalf("a has %d and b %d left, want 4 and 3", a, o)
	}
	for range 3 {
		if _, err := b.Refund(context.Background(), quota.RefundRequest{Attributes: r.Attributes, Amount: 4 * quota.Token}); err != nil {
			t.Fatal(err)
		}
	}
	if a, o := b.remaining(t, r, "a"), b.remaining(t, r, "b"); a != 5 || o != 5 {
		t.Fatalf("a has %d and b %d left, want 5 each", a, o)
	}
	for _, amount := range []quota.Tokens{0, -quota.Token, quota.MaxTokens + 1} {
		if _, err := b.Refund(context.Background(), quota.RefundRequest{Attributes: r.Attributes, Amount: amount}); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("amount %d: got %v", amount, err)
		}
	}
}

// Fault list 121: policy pushes race with checks, and each check sees one
// revision whole. Run with -race.
func TestPolicyPushesUnderLoad(t *testing.T) {
	two := func(rev quota.Tokens) []*quota.Policy {
		return []*quota.Policy{bucket("a", 1_000_000+rev, 0), bucket("b", 1_000_000+rev, 0)}
	}
	for _, p := range two(0) {
		p.StoreDeadline = 10 * time.Second
	}
	b := setup(t, newMemStore(), two(1))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := b.Check(context.Background(), request())
				if err != nil {
					t.Error(err)
					return
				}
				for _, d := range res.Decisions {
					if d.Limit != 1_000_000+res.Revision {
						t.Errorf("revision %d decided with limit %d", res.Revision, d.Limit)
					}
				}
			}
		})
	}
	for rev := range int64(200) {
		b.SetIndex(index(t, rev+1, two(quota.Tokens(rev+1))...))
	}
	close(stop)
	wg.Wait()
}

func TestRequestIDChargesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policies := []*quota.Policy{bucket("a", 5, 0), with(bucket("b", 1, 1), func(p *quota.Policy) { p.Key = []string{"ip"} })}
		b := setup(t, newMemStore(), policies)
		r := request("ip", "203.0.113.7")
		r.RequestID = "id-1"
		if res := b.mustCheck(t, r); !res.Allowed || res.Replayed {
			t.Fatalf("got %+v", res)
		}
		if res := b.mustCheck(t, r); !res.Allowed || !res.Replayed {
			t.Fatalf("a repeat must be told the first answer: %+v", res)
		}
		if got := b.remaining(t, r, "a"); got != 4 {
			t.Fatalf("a has %d left, want 4", got)
		}
		// Another caller with the same id on the same stripe, and the same caller
		// with another cost, are no repeats.
		other := r
		other.Cost = 2 * quota.Token
		if res := b.mustCheck(t, other); res.Replayed || res.Allowed {
			t.Fatalf("got %+v", res)
		}
		// A denied check gives a's tokens back and must not leave a remembered
		// "allowed" behind: when b has refilled, the repeat charges both.
		second := r
		second.RequestID = "id-2"
		if res := b.mustCheck(t, second); res.Allowed {
			t.Fatalf("got %+v", res)
		}
		pass(2 * time.Minute)
		if res := b.mustCheck(t, second); !res.Allowed || res.Replayed {
			t.Fatalf("got %+v", res)
		}
		if got := b.remaining(t, r, "a"); got != 3 {
			t.Fatalf("a has %d left, want 3", got)
		}
	})
}

func TestBeforeFirstRevision(t *testing.T) {
	e, err := regional.New(regional.Config{Store: newMemStore(), Stripes: 1, Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close(context.Background()) }()
	if _, err := e.Check(context.Background(), request()); !errors.Is(err, quota.ErrUnavailable) || e.Health().Ready {
		t.Fatalf("got %v, health %+v", err, e.Health())
	}
}
