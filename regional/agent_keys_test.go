package regional_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

// keyID is the tracked name of a user's quota under a policy.
func keyID(tb testing.TB, p *quota.Policy, user string) quota.ID {
	tb.Helper()
	var b quota.AttributeBuilder
	b.AddMap(map[string]string{"user": user})
	attrs, err := b.Attributes()
	if err != nil {
		tb.Fatal(err)
	}
	bucket, _ := quota.AppendBucketKey(nil, "rl", testStripes, p, attrs)
	return quota.ID{Policy: p.ID, Key: quota.TrackedKey(quota.Partition(p, attrs), string(bucket))}
}

func keyGrant(p *quota.Policy, id quota.ID, version int64, capacity quota.Tokens) quota.Grant {
	g := grant(p, version, capacity)
	g.ID = id
	return g
}

// lineOf is the last line of a quota in reports.
func lineOf(reports []quota.Report, id quota.ID) (q quota.QuotaReport, ok bool) {
	for _, r := range reports {
		for _, line := range r.Quotas {
			if line.ID == id {
				q, ok = line, true
			}
		}
	}
	return q, ok
}

// A key that spends most of its share is flagged, is given a share of its own, is
// decided under it, and its demand is reported apart from the others'.
func TestBusyKeyIsFlaggedAndTracked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 600)
		store, co := newMemStore().initialised(), &scribe{}
		var grants []quota.Grant
		co.answer = func(int, quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: "gen-0", Epoch: 1, Grants: grants}
			grants = nil
			return in, nil
		}
		give := func(g ...quota.Grant) {
			co.mu.Lock()
			defer co.mu.Unlock()
			co.reports, grants = nil, g
		}
		b := setup(t, store, []*quota.Policy{p})
		startAgent(t, b, co, "n1")
		give(grant(p, 1, 50))
		spend := func(seconds int) {
			for range seconds * 20 {
				pass(50 * time.Millisecond)
				b.mustCheck(t, request("user", "hot"))
			}
			b.mustCheck(t, request("user", "cold"))
		}
		spend(5)
		hot, cold := keyID(t, p, "hot"), keyID(t, p, "cold")
		q, ok := lineOf(co.heard(), hot)
		if !ok || q.Version != 0 || q.Demand < 15 || q.Demand > 25 || !q.Drained {
			t.Fatalf("flagged line %+v (%t), want a demand of 20/s", q, ok)
		}
		if q, ok := lineOf(co.heard(), cold); ok {
			t.Errorf("a key that spent one of 50 is flagged: %+v", q)
		}
		give(keyGrant(p, hot, 3, 80))
		spend(5)
		ack, _ := lineOf(co.heard(), hot)
		if ack.Version != 3 || ack.Share.Capacity != 80*quota.Token || ack.Demand < 15 || ack.Demand > 25 {
			t.Errorf("line of the tracked key %+v", ack)
		}
		b.mustCheck(t, request("user", "cold"))
		pass(2 * time.Second)
		if q, _ := lineOf(co.heard(), quota.ID{Policy: "p"}); q.Demand > 2 || q.Version != 1 {
			t.Errorf("the policy's line %+v counts a tracked key as its busiest", q)
		}
		ex, err := b.Explain(t.Context(), request("user", "hot"))
		if err != nil || ex.Policies[0].Version != 3 || ex.Policies[0].Share.Capacity != 80*quota.Token {
			t.Errorf("explained as %+v, %v", ex, err)
		}
		// The store is asked for policies' shares only when they have changed.
		store.set(func(s *memStore) { s.readKeys = 0 })
		spend(3)
		store.set(func(s *memStore) {
			if s.readKeys != 0 {
				t.Errorf("%d tracked keys read while nothing changed", s.readKeys)
			}
		})
		if got := b.metric(t, "weir_agent_tracked_keys", nil); got != 1 {
			t.Errorf("%v tracked keys by the metric", got)
		}
		drop := keyGrant(p, hot, 4, 50)
		drop.Drop = true
		give(drop)
		pass(3 * time.Second)
		if q, ok := lineOf(co.heard(), hot); !ok || q.Version != 0 {
			t.Errorf("the drop is acknowledged by %+v (%t)", q, ok)
		}
	})
}

// A tracked log that holds more than its share is reported each 250 ms, with the number
// of its entries; a drained one is not.
func TestTrackedLogReportsWhileItDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := with(logPolicy("p", 100, 10*time.Second), func(p *quota.Policy) { p.Scope = quota.Global })
		store, co := newMemStore().initialised(), &scribe{}
		hot := keyID(t, p, "hot")
		step := 0
		co.answer = func(_ int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1}
			switch step {
			case 0:
				in.Grants = []quota.Grant{grant(p, 1, 50), keyGrant(p, hot, 1, 50)}
			case 2:
				in.Grants = []quota.Grant{keyGrant(p, hot, 2, 10)}
			}
			step |= 1
			return in, nil
		}
		b := setup(t, store, []*quota.Policy{p})
		startAgent(t, b, co, "n1")
		pass(2 * time.Second)
		for range 40 {
			b.mustCheck(t, request("user", "hot"))
		}
		co.mu.Lock()
		step = 2
		co.mu.Unlock()
		pass(2 * time.Second)
		co.set(co.answer)
		pass(4 * time.Second)
		reports := co.heard()
		q, ok := lineOf(reports, hot)
		if len(reports) < 14 || !ok || q.Drained || q.Hold != 40*quota.Token || q.Share.Capacity != 10*quota.Token {
			t.Errorf("%d reports in 4 s, the last %+v (%t); want one each 250 ms, of 40 entries", len(reports), q, ok)
		}
		pass(10 * time.Second)
		if q, _ := lineOf(co.heard(), hot); !q.Drained || q.Hold != 10*quota.Token {
			t.Errorf("drained, and told as %+v", q)
		}
		co.set(co.answer)
		pass(4 * time.Second)
		if n := len(co.heard()); n > 6 {
			t.Errorf("%d reports in 4 s though nothing drains", n)
		}
	})
}

// A new agent lists what is tracked; after a loss of data nothing is said to be.
func TestNewAgentListsTrackedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 600)
		store := newMemStore().initialised()
		var ids []quota.ID
		var grants []quota.Grant
		for i := range 30 {
			ids = append(ids, keyID(t, p, fmt.Sprint("u", i)))
			grants = append(grants, keyGrant(p, ids[i], int64(i+1), 20))
		}
		if err := store.Apply(t.Context(), 1, "gen-0", append(grants, grant(p, 1, 50))); err != nil {
			t.Fatal(err)
		}
		co := &scribe{}
		b := setup(t, store, []*quota.Policy{p})
		startAgent(t, b, co, "n1")
		synctest.Wait()
		first := co.heard()[0]
		if !first.Full || len(first.Quotas) != 31 {
			t.Fatalf("first report %+v, want 31 lines", first)
		}
		for i, id := range ids {
			if q, ok := lineOf([]quota.Report{first}, id); !ok || q.Version != int64(i+1) {
				t.Errorf("key %d is told as %+v (%t)", i, q, ok)
			}
		}
		pass(3 * time.Second)
		if got := co.last(t); len(got.Quotas) != 0 {
			t.Errorf("nothing changed, and %d lines", len(got.Quotas))
		}
		// Grants that lead nowhere keep no other from being applied.
		co.set(func(n int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1}
			if n == 0 {
				in.Grants = []quota.Grant{keyGrant(p, quota.ID{Policy: "p", Key: "nonsense"}, 9, 1), keyGrant(p, ids[0], 99, 30)}
			}
			return in, nil
		})
		pass(3 * time.Second)
		if q, _ := lineOf(co.heard(), ids[0]); q.Version != 99 {
			t.Errorf("beside a grant that leads nowhere: %+v", q)
		}
		for i := range testStripes {
			store.lose(i)
		}
		co.set(nil)
		pass(3 * time.Second)
		for _, r := range co.heard() {
			for _, q := range r.Quotas {
				if q.Version != 0 {
					t.Errorf("after the loss of all data, %+v", q)
				}
			}
		}
	})
}
