package coordinator_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// tracking is a machine and three regions that do as they are told, whenever a test
// has them exchange.
type tracking struct {
	*testing.T
	m       *coordinator.Machine
	now     time.Time
	sent    int64
	regions map[quota.Region]*obedient
}

// obedient is a region that applies what it is granted.
type obedient struct {
	gen    string
	held   map[quota.ID]quota.Grant
	demand map[quota.ID]float64
	// dropped are keys to speak of although they have no record any more.
	dropped map[quota.ID]bool
	// surrendered is what the shrink that was applied last cut off.
	surrendered map[quota.ID]quota.Tokens
	got         []quota.Grant // of the last exchange
}

func keyOf(name string) quota.ID {
	return quota.ID{Policy: "api", Key: "0123456789abcdef:t:" + name + ":api"}
}

func newTracking(t *testing.T, policies ...*quota.Policy) *tracking {
	t.Helper()
	w := &tracking{T: t, now: time.Unix(1_700_000_000, 0), regions: map[quota.Region]*obedient{}}
	w.m = coordinator.NewMachine(w.now, time.Minute, three, coordinator.Snapshot{Epoch: 1})
	for _, name := range three {
		w.regions[name] = &obedient{
			gen: "g-" + string(name), held: map[quota.ID]quota.Grant{}, demand: map[quota.ID]float64{},
			dropped: map[quota.ID]bool{}, surrendered: map[quota.ID]quota.Tokens{},
		}
	}
	w.set(1, policies...)
	w.all(3)
	return w
}

func (w *tracking) set(revision int64, policies ...*quota.Policy) {
	w.Helper()
	require.NoError(w, w.m.SetPolicies(w.now, revision, policies))
	w.m.Committed(w.m.Pending())
}

// all has every region exchange n times.
func (w *tracking) all(n int) {
	w.Helper()
	for range n {
		for _, name := range three {
			w.exchange(name)
		}
	}
}

// pass lets a time go by, a second at a time, with reports.
func (w *tracking) pass(d time.Duration) {
	w.Helper()
	for range int(d / time.Second) {
		w.now = w.now.Add(time.Second)
		w.m.Tick(w.now)
		w.m.Committed(w.m.Pending())
		w.all(1)
	}
}

// exchange has a region report everything and apply the answer.
func (w *tracking) exchange(name quota.Region, urgent ...quota.ID) {
	w.Helper()
	r := w.regions[name]
	w.sent++
	rep := quota.Report{Region: name, Gen: r.gen, Epoch: 1, SentAt: w.sent, Revision: 1, Full: true}
	ids := maps.Clone(r.dropped)
	for id := range r.held {
		ids[id] = true
	}
	for id, d := range r.demand {
		ids[id] = ids[id] || d > 0
	}
	for id := range ids {
		g, line := r.held[id], quota.QuotaReport{ID: id, Drained: true, Demand: r.demand[id], Admitted: r.demand[id], Urgent: slices.Contains(urgent, id)}
		if g.Version > 0 {
			line.Version, line.Share, line.Period, line.Hold = g.Version, g.Share, g.Limit.Period, g.Share.Capacity
			line.Surrendered = r.surrendered[id]
		}
		rep.Quotas = append(rep.Quotas, line)
	}
	clear(r.dropped)
	require.NoError(w, w.m.Report(w.now, rep))
	w.m.Committed(w.m.Pending())
	in := w.m.Instructions(rep)
	r.got = in.Grants
	for _, g := range in.Grants {
		was, ok := r.held[g.ID]
		if !ok {
			was = r.held[quota.ID{Policy: g.ID.Policy}]
		}
		r.surrendered[g.ID] = max(0, was.Share.Capacity-g.Share.Capacity) // its level was full
		if r.held[g.ID] = g; g.Drop {
			delete(r.held, g.ID)
			r.dropped[g.ID] = true
		}
	}
}

// inUse is what all regions may use of a key now.
func (w *tracking) inUse(key quota.ID) (sum quota.Share) {
	for _, r := range w.regions {
		g, ok := r.held[key]
		if !ok {
			g = r.held[quota.ID{Policy: key.Policy}]
		}
		sum = sum.Add(g.Share)
	}
	return sum
}

func (w *tracking) status(id quota.ID) (coordinator.QuotaStatus, bool) {
	for _, q := range w.m.Status(w.now).Quotas {
		if q.ID == id {
			return q, true
		}
	}
	return coordinator.QuotaStatus{}, false
}

func (w *tracking) share(id quota.ID, region quota.Region) float64 {
	return float64(w.regions[region].held[id].Share.Refill) / 60_000
}

func TestKeyNearItsLimitGetsASplitOfItsOwn(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	whole, key := quota.ID{Policy: "api"}, keyOf("acme")
	before := w.share(whole, three[0])
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	w.all(4)
	require.GreaterOrEqual(t, w.share(key, three[0]), 80.0)
	require.Equal(t, quota.Share{Capacity: 6000 * quota.Token, Refill: 6000 * quota.Token}, w.inUse(key))
	require.InDelta(t, before, w.share(whole, three[0]), 0, "all other keys have what they had")
	for _, name := range three {
		require.Contains(t, w.regions[name].held, key)
	}
}

// The first grant of a policy brings the tokens that nobody has spent yet. A key that was
// split before that has arrived would have none of them.
func TestKeysWaitForTheFirstShare(t *testing.T) {
	w := &tracking{T: t, now: time.Unix(1_700_000_000, 0), regions: map[quota.Region]*obedient{}}
	w.m = coordinator.NewMachine(w.now, time.Minute, three, coordinator.Snapshot{Epoch: 1})
	key := keyOf("acme")
	for _, name := range three {
		w.regions[name] = &obedient{
			gen: "g-" + string(name), held: map[quota.ID]quota.Grant{}, demand: map[quota.ID]float64{key: 80},
			dropped: map[quota.ID]bool{}, surrendered: map[quota.ID]quota.Tokens{},
		}
	}
	w.set(1, perMinute("api", 6000))
	for range 6 {
		for _, name := range three {
			w.exchange(name)
			for _, g := range w.regions[name].got {
				if _, ok := w.regions[name].held[quota.ID{Policy: "api"}]; g.ID == key && !ok {
					t.Fatalf("%s is granted a share of a key before one of its policy", name)
				}
			}
		}
	}
	for _, name := range three {
		require.Contains(t, w.regions[name].held, key)
	}
}

// A key that a region has yet to pin uses the default share there, so that must not grow.
func TestDefaultShareWaitsUntilKeysArePinned(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	whole, key := quota.ID{Policy: "api"}, keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	w.exchange(three[0]) // pins
	w.regions[three[1]].demand[whole] = 85
	w.now = w.now.Add(time.Second)
	w.regions[three[1]].got = nil
	// The region reports that it needs more of the default split, and has not seen the grant of the key yet.
	r := w.regions[three[1]]
	for range 5 {
		w.exchange(three[1], whole)
		delete(r.held, key) // the grant was lost
		for _, name := range []quota.Region{three[0], three[2]} {
			w.exchange(name)
		}
		w.now = w.now.Add(time.Second)
		sum := w.inUse(key)
		require.LessOrEqual(t, sum.Refill, 6000*quota.Token)
		require.Less(t, w.share(whole, three[1]), 40.0)
	}
	w.all(4)
	require.GreaterOrEqual(t, w.share(whole, three[1]), 85.0, "now it can grow")
	require.LessOrEqual(t, w.inUse(key).Refill, 6000*quota.Token)
}

// With its default share first, a region that has lost its data would use that for a
// key whose tokens others have.
func TestLostDatasetIsToldItsKeysFirst(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	whole, key := quota.ID{Policy: "api"}, keyOf("acme")
	w.regions[three[0]].demand[key] = 99
	w.exchange(three[0])
	w.all(4)
	r := w.regions[three[1]]
	require.Less(t, w.share(key, three[1]), w.share(whole, three[1]))
	clear(r.held)
	r.gen = "another"
	for !slices.ContainsFunc(r.got, func(g quota.Grant) bool { return g.ID == whole }) || len(r.held) < 2 {
		w.exchange(three[1])
		if _, pinned := r.held[key]; !pinned {
			require.NotContains(t, r.held, whole)
		}
		require.LessOrEqual(t, w.inUse(key).Refill, 6000*quota.Token)
		w.now = w.now.Add(100 * time.Millisecond)
	}
}

func TestCalmKeyGoesBackUnderTheDefaultSplit(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	key := keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	w.all(4)
	w.regions[three[0]].demand[key] = 0
	gone := func() bool { _, ok := w.status(key); return !ok }
	for range 20 * 60 {
		w.pass(time.Second)
		require.LessOrEqual(t, w.inUse(key).Refill, 6000*quota.Token)
		if gone() {
			break
		}
	}
	require.True(t, gone(), "it is still tracked after 20 minutes")
	for _, name := range three {
		require.NotContains(t, w.regions[name].held, key)
	}
	w.regions[three[2]].demand[key] = 80
	w.exchange(three[2])
	w.all(4)
	require.GreaterOrEqual(t, w.share(key, three[2]), 80.0, "and it can come back")
}

// A region that was told to drop a key may have done so when the key is needed again.
func TestKeyThatIsNeededAgainWhileItGoesBack(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	key := keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	w.all(4)
	w.regions[three[0]].demand[key] = 0
	dropped := func() bool { return len(w.regions[three[0]].held) == 1 }
	for range 20 * 60 {
		w.now = w.now.Add(time.Second)
		w.m.Tick(w.now)
		w.m.Committed(w.m.Pending())
		for _, name := range three {
			if w.exchange(name); dropped() {
				break
			}
		}
		if dropped() {
			break
		}
	}
	require.True(t, dropped())
	w.regions[three[0]].demand[key] = 85
	for range 10 {
		for _, name := range three {
			w.exchange(name)
			require.LessOrEqual(t, w.inUse(key).Refill, 6000*quota.Token)
		}
		w.now = w.now.Add(time.Second)
	}
	require.GreaterOrEqual(t, w.share(key, three[0]), 85.0)
}

func TestKeysFollowTheirPolicy(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	key := keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	w.all(4)
	w.set(2, perMinute("api", 600))
	w.all(4)
	require.Equal(t, quota.Share{Capacity: 600 * quota.Token, Refill: 600 * quota.Token}, w.inUse(key))
	w.set(3)
	w.pass(3 * time.Minute)
	_, there := w.status(key)
	require.False(t, there)
	_, there = w.status(quota.ID{Policy: "api"})
	require.False(t, there)
	for _, name := range three {
		require.Empty(t, w.regions[name].held)
	}
}

// An attacker who makes up keys makes no more work than the bound.
func TestTrackedKeysAreBounded(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	r := w.regions[three[0]]
	for i := range coordinator.MaxTrackedKeys + 100 {
		r.demand[keyOf(fmt.Sprint("attacker", i))] = 50
	}
	w.exchange(three[0])
	require.Len(t, w.m.Status(w.now).Quotas, 1+coordinator.MaxTrackedKeys)
	require.EqualValues(t, 100, w.m.Overview(w.now).Totals.KeysRefused)
	require.Equal(t, coordinator.MaxTrackedKeys, w.m.Overview(w.now).Totals.TrackedKeys)
}

// L6: what a shrink cuts off one region's level may raise another's, and no more.
func TestSurrenderedTokensArePassedOn(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	key := keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	gifts, cut := quota.Tokens(0), quota.Tokens(0)
	count := func(name quota.Region) {
		w.exchange(name)
		for _, g := range w.regions[name].got {
			if g.ID == key {
				gifts += g.Gift
			}
		}
	}
	for range 4 {
		for _, name := range three {
			count(name)
		}
	}
	for _, name := range three[1:] {
		cut += w.regions[name].surrendered[key]
	}
	require.Positive(t, gifts)
	require.LessOrEqual(t, gifts, cut)
	q, _ := w.status(key)
	require.LessOrEqual(t, q.Parked, q.Unallocated.Capacity)
}

// Parked tokens do not survive a decrease of the limit that leaves no room for them.
func TestParkedTokensAreCutWithTheLimit(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	key := keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	w.exchange(three[1])
	w.exchange(three[1]) // gives up, and nobody has taken it yet
	q, _ := w.status(key)
	require.Positive(t, q.Parked)
	w.set(2, perMinute("api", 60))
	q, _ = w.status(key)
	require.Zero(t, q.Parked)
}

// A region does not settle the records of keys when its lease was over, so no key of a
// strict policy has one.
func TestStrictPoliciesHaveNoTrackedKeys(t *testing.T) {
	strict := perMinute("api", 6000)
	strict.Split.OnPartition = quota.Strict
	w := newTracking(t, strict)
	key := keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.all(4)
	_, there := w.status(key)
	require.False(t, there)
}

func TestKeysGoBackWhenTheirPolicyBecomesStrict(t *testing.T) {
	w := newTracking(t, perMinute("api", 6000))
	key := keyOf("acme")
	w.regions[three[0]].demand[key] = 80
	w.exchange(three[0])
	w.all(4)
	strict := perMinute("api", 6000)
	strict.Split.OnPartition = quota.Strict
	w.set(2, strict)
	for range 5 * 60 {
		w.pass(time.Second)
		require.LessOrEqual(t, w.inUse(key).Refill, 6000*quota.Token)
		for _, name := range three {
			if g, ok := w.regions[name].held[key]; ok {
				require.Equal(t, g.Share, g.Permanent, "until it goes, the key's share does not depend on a lease")
			}
		}
	}
	_, there := w.status(key)
	require.False(t, there, "although it is as busy as before")
}
