package regional_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

func TestExplain(t *testing.T) {
	free := with(globalBucket("api-free", 20, 60), func(p *quota.Policy) { p.Match = []quota.Condition{{Attribute: "plan", Pattern: "free"}} })
	paid := with(bucket("api-paid", 20, 60), func(p *quota.Policy) {
		p.Match = []quota.Condition{{Attribute: "plan", Pattern: "paid"}, {Attribute: "user", Pattern: "*"}}
	})
	keyed := with(bucket("keyed", 20, 60), func(p *quota.Policy) { p.Key = []string{"apiKey"} })
	b := setup(t, newMemStore().initialised(), []*quota.Policy{free, paid, keyed})
	r := request("plan", "free")
	ex, err := b.Explain(context.Background(), r)
	if err != nil || !ex.Allowed || ex.Revision != 1 || len(ex.Policies) != 3 {
		t.Fatalf("got %+v, %v", ex, err)
	}
	by := map[string]quota.PolicyExplanation{}
	for _, p := range ex.Policies {
		by[p.PolicyID] = p
	}
	f := by["api-free"]
	if !f.Matched || f.WhyNot != "" || f.Suggestion != "" || !strings.HasPrefix(f.Bucket, "rl:{") || f.Share.Capacity != 2*quota.Token ||
		f.Decision.Remaining != 2 || f.Stripe != stripeOf(free, r) {
		t.Errorf("api-free: %+v", f)
	}
	if p := by["api-paid"]; p.Matched || !strings.Contains(p.WhyNot, "plan") {
		t.Errorf("api-paid: %+v", p)
	}
	if p := by["keyed"]; !p.Matched || !strings.Contains(p.WhyNot, "apiKey") {
		t.Errorf("keyed: %+v", p)
	}

	b.mustCheck(t, r)
	b.mustCheck(t, r)
	b.mustCheck(t, r)
	ex, err = b.Explain(context.Background(), r)
	if err != nil || ex.Allowed || !strings.Contains(ex.Policies[0].Suggestion, "waiting") {
		t.Errorf("drained: %+v, %v", ex, err)
	}
	r.Cost = 10 * quota.Token
	ex, _ = b.Explain(context.Background(), r)
	if s := ex.Policies[0].Suggestion; !strings.Contains(s, "a larger share for this region, which has 2 of 20") {
		t.Errorf("suggestion %q", s)
	}
	r.Cost = 30 * quota.Token
	ex, _ = b.Explain(context.Background(), r)
	if s := ex.Policies[0].Suggestion; s != "a cost of at most 20: the limit never holds more" {
		t.Errorf("suggestion %q", s)
	}
}

// A policy that is gone leaves no series behind, and one that comes back counts anew.
func TestRemovedPolicyLeavesNoSeries(t *testing.T) {
	a, z := bucket("a", 5, 1), bucket("z", 5, 1)
	b := setup(t, newMemStore(), []*quota.Policy{a, z})
	b.mustCheck(t, request())
	b.SetIndex(index(t, 2, a))
	b.mustCheck(t, request())
	if got := b.metric(t, "weir_decisions_total", map[string]string{"policy": "z"}); got != 0 {
		t.Errorf("z still counts %v", got)
	}
	if got := b.metric(t, "weir_decisions_total", map[string]string{"policy": "a"}); got != 2 {
		t.Errorf("a counts %v, want 2", got)
	}
	b.SetIndex(index(t, 3, a, z))
	b.mustCheck(t, request())
	if got := b.metric(t, "weir_decisions_total", map[string]string{"policy": "z"}); got != 1 {
		t.Errorf("z counts %v, want 1", got)
	}
}

// An overridden key's local part is scaled like its share.
func TestLocalOverride(t *testing.T) {
	p := with(globalBucket("p", 100, 1), failing(quota.FailLocal))
	o := quota.Override{Policy: "p", Key: []string{"vip"}, Limit: quota.Limit{Capacity: 500 * quota.Token, Refill: quota.Token, Period: time.Minute}}
	overrides, err := quota.NewOverrides([]quota.Override{o}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ix, err := quota.Compile(2, []*quota.Policy{p}, overrides)
	if err != nil {
		t.Fatal(err)
	}
	store := newMemStore()
	store.before = broken
	b := setup(t, store, nil)
	b.SetIndex(ix)
	for user, want := range map[string]int{"vip": 50, "u1": 10} { // a floor of a tenth
		admitted := 0
		for b.mustCheck(t, request("user", user)).Allowed {
			admitted++
		}
		if admitted != want {
			t.Errorf("%s: admitted %d, want %d", user, admitted, want)
		}
	}
}

// Explain tells the share that the decision was made under, its version, and how long
// this node has known it: on the agent's node and on the others, and while the store is away.
func TestExplainTellsTheShareAndItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := with(globalBucket("p", 100, 100), failing(quota.FailLocal))
		store := newMemStore()
		first, second := setup(t, store, []*quota.Policy{p}), setup(t, store, []*quota.Policy{p})
		var version atomic.Int64
		version.Store(1)
		co := &scribe{answer: func(_ int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1, Fresh: true}
			if r.Epoch == 1 {
				in.Grants = []quota.Grant{grant(p, version.Load(), 30+10*quota.Tokens(version.Load()))}
			}
			return in, nil
		}}
		startAgent(t, first, co, "n1")
		synctest.Wait() // the first is the agent
		startAgent(t, second, co, "n2")
		tells := func(b *bundle, what string, capacity quota.Tokens, version int64, least, most time.Duration) {
			t.Helper()
			e, err := b.Explain(context.Background(), request())
			if err != nil {
				t.Fatal(err)
			}
			x := e.Policies[0]
			if x.Share.Capacity != capacity*quota.Token || x.Version != version || x.ShareAge < least || x.ShareAge > most {
				t.Errorf("%s: share %v, version %d, age %v; want %d, %d, %v to %v", what, x.Share.Capacity, x.Version, x.ShareAge, capacity, version, least, most)
			}
		}
		pass(5 * time.Second)
		tells(second, "a node that has decided nothing yet knows no age", 40, 1, 0, 0)
		pass(30 * time.Second)
		for i, b := range []*bundle{first, second} {
			tells(b, fmt.Sprint("node ", i), 40, 1, 28*time.Second, 35*time.Second)
		}
		version.Store(2)
		pass(3 * time.Second)
		for _, b := range []*bundle{first, second} {
			b.mustCheck(t, request())
		}
		pass(10 * time.Second)
		for i, b := range []*bundle{first, second} {
			tells(b, fmt.Sprint("node ", i, ", after a new share"), 50, 2, 9*time.Second, 13*time.Second)
		}
		store.set(func(s *memStore) { s.before = broken })
		for i, b := range []*bundle{first, second} {
			tells(b, fmt.Sprint("node ", i, ", without its store"), 50, 2, 9*time.Second, 13*time.Second)
		}
	})
}
