package regional_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

// A region whose key runs short does not wait for its next report to say so, and says
// so no more often than twice a second however many checks are denied.
func TestShortKeyIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 100, 600)
		store, co := newMemStore().initialised(), &scribe{}
		co.answer = func(_ int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1, Full: r.Epoch == 0}
			if _, ok := lineOf([]quota.Report{r}, quota.ID{Policy: "p"}); ok && r.Epoch == 1 && r.Quotas[0].Version == 0 {
				in.Grants = []quota.Grant{grant(p, 1, 50)}
			}
			return in, nil
		}
		b := setup(t, store, []*quota.Policy{p})
		startAgent(t, b, co, "n1")
		pass(5 * time.Second)
		reset := func() time.Time {
			co.mu.Lock()
			defer co.mu.Unlock()
			co.reports = nil
			return time.Now()
		}
		urgent := func() (n int) {
			for _, r := range co.heard() {
				for _, q := range r.Quotas {
					if q.Urgent {
						n++
					}
				}
			}
			return n
		}
		began := reset()
		for urgent() == 0 && time.Since(began) < 5*time.Second {
			b.mustCheck(t, request("user", "hot"))
			pass(10 * time.Millisecond)
		}
		// 50 tokens at 100/s are at 35 % after about a third of a second.
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("reported after %v", took)
		}
		q, _ := lineOf(co.heard(), keyID(t, p, "hot"))
		for _, r := range co.heard() {
			if line, ok := lineOf([]quota.Report{r}, keyID(t, p, "hot")); ok && line.Urgent {
				q = line
			}
		}
		if !q.Urgent || q.Demand < 30 || q.Demand > 110 {
			t.Errorf("the key is reported as %+v, want the rate since the last report, up to 100/s", q)
		}
		reset()
		for range 1000 { // ten seconds, mostly denied
			b.mustCheck(t, request("user", "hot"))
			pass(10 * time.Millisecond)
		}
		if n := urgent(); n < 15 || n > 21 {
			t.Errorf("%d urgent lines in ten seconds, want two a second", n)
		}
		pass(2 * time.Second)
		reset()
		for range 100 {
			b.mustCheck(t, request("user", "cold"))
			pass(200 * time.Millisecond) // 5/s of a share that refills 5/s: nothing is short
		}
		if n := urgent(); n != 0 {
			t.Errorf("%d urgent lines of a region that has enough", n)
		}
	})
}

// A tracked key is held against its own share: one that has little and needs little is not short.
func TestTrackedKeyIsHeldAgainstItsOwnShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket("p", 1000, 6000)
		store, co := newMemStore().initialised(), &scribe{}
		small := keyID(t, p, "small")
		co.answer = func(_ int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1, Full: r.Epoch == 0}
			if q, ok := lineOf([]quota.Report{r}, quota.ID{Policy: "p"}); ok && r.Epoch == 1 && q.Version == 0 {
				in.Grants = []quota.Grant{grant(p, 1, 500), keyGrant(p, small, 1, 50)}
			}
			return in, nil
		}
		b := setup(t, store, []*quota.Policy{p})
		startAgent(t, b, co, "n1")
		pass(5 * time.Second)
		for range 50 {
			b.mustCheck(t, request("user", "small"))
			pass(500 * time.Millisecond)
		}
		if q, ok := lineOf(co.heard(), small); !ok || q.Version != 1 || q.Urgent {
			t.Errorf("the key is reported as %+v (%t)", q, ok)
		}
	})
}
