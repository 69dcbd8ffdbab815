package regional_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

// While the store is away, a key with a share of its own has no more than that: on the
// node that knows the share, that share; on the others, the floor.
func TestTrackedKeyKeepsToItsOwnShareWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := with(globalBucket("p", 100, 1), func(p *quota.Policy) { p.OnStoreFailure = quota.FailLocal })
		store, co := newMemStore().initialised(), &scribe{}
		hot := keyID(t, p, "hot")
		co.answer = func(_ int, r quota.Report) (quota.Instructions, error) {
			in := quota.Instructions{Gen: r.Gen, Epoch: 1, Full: r.Epoch == 0}
			if q, ok := lineOf([]quota.Report{r}, quota.ID{Policy: "p"}); ok && r.Epoch == 1 && q.Version == 0 {
				in.Grants = []quota.Grant{grant(p, 1, 60), keyGrant(p, hot, 1, 30)}
			}
			return in, nil
		}
		agent, other := setup(t, store, []*quota.Policy{p}), setup(t, store, []*quota.Policy{p})
		startAgent(t, agent, co, "n1")
		pass(100 * time.Millisecond)
		startAgent(t, other, &scribe{}, "n2")
		pass(10 * time.Second)
		for _, b := range []*bundle{agent, other} {
			b.mustCheck(t, request("user", "hot")) // each node meets the key
			b.mustCheck(t, request("user", "cold"))
		}
		pass(2 * time.Second)
		store.set(func(s *memStore) { s.failing, s.before = errBroken, broken })
		admitted := func(b *bundle, user string) (n int) {
			for range 100 {
				if b.mustCheck(t, request("user", user)).Allowed {
					n++
				}
			}
			return n
		}
		floor := int(floorOf(p).Capacity / quota.Token)
		for _, c := range []struct {
			name string
			b    *bundle
			user string
			want int
		}{
			{"tracked, on the agent's node", agent, "hot", 30}, {"tracked, elsewhere", other, "hot", floor},
			{"not tracked", agent, "cold", 60}, {"not tracked", other, "cold", 60},
		} {
			if got := admitted(c.b, c.user); got != c.want {
				t.Errorf("%s: %d admitted of 100, want %d", c.name, got, c.want)
			}
		}
		ex, err := agent.Explain(t.Context(), request("user", "hot"))
		if err != nil || ex.Policies[0].Share.Capacity != 30*quota.Token || ex.Policies[0].Version != 0 {
			t.Errorf("explained as %+v, %v", ex, err)
		}
	})
}
