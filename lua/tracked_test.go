package lua_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

// trackedEntry is a quota of policy p that can be tracked, and its name in all regions.
func trackedEntry(s *lua.Store, stripe int, tenant string, l quota.Limit) (quota.Entry, quota.ID) {
	e := globalEntry(s, stripe, "t:"+tenant+":p", "p", l)
	return e, quota.ID{Policy: "p", Key: quota.TrackedKey(uint64(stripe), e.Bucket)}
}

func keyGrant(id quota.ID, version int64, s quota.Share) quota.Grant {
	g := bucketGrant(id.Policy, version, s)
	g.ID = id
	return g
}

func drain(t *testing.T, s *lua.Store, e quota.Entry) int {
	t.Helper()
	for n := 0; ; n++ {
		out, err := s.Acquire(t.Context(), one(e))
		if err != nil {
			t.Fatal(err)
		}
		if !out.Allowed {
			return n
		}
	}
}

func heldKey(t *testing.T, s *lua.Store, id quota.ID) (quota.QuotaReport, bool) {
	t.Helper()
	got, err := s.HeldKeys(t.Context(), []quota.ID{{Policy: "other", Key: "0000000000000001:other"}, id})
	if err != nil || len(got) > 1 || len(got) == 1 && got[0].ID != id {
		t.Fatalf("held %+v, %v", got, err)
	}
	if len(got) == 0 {
		return quota.QuotaReport{}, false
	}
	return got[0], true
}

// A key leaves its policy's split with its level, is moved on its own, and returns.
func TestTrackedKeyHasItsOwnShare(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	l := limit(100, 1, time.Hour) // nothing refills within the test
	grants := func(version int64, capacity int64, gift quota.Tokens, ids ...quota.ID) (out []quota.Grant) {
		for _, id := range ids {
			g := keyGrant(id, version, share(capacity, 0))
			g.Limit, g.Gift = l, gift
			g.Share.Refill, g.Permanent = 1, g.Share
			g.Permanent.Refill = 1
			out = append(out, g)
		}
		return out
	}
	e, id := trackedEntry(s, 3, "acme", l)
	idle, idleID := trackedEntry(s, 3, "idle", l)
	policy := quota.ID{Policy: "p"}
	first := grants(1, 50, 40*token, policy)
	apply(t, s, 1, first...)
	if n := drain(t, s, e); n != 50 {
		t.Fatalf("%d admitted of the default share, want 50", n)
	}
	// The pin of keys goes before the change of their policy, whatever the order.
	apply(t, s, 1, append(grants(2, 5, 0, policy), grants(1, 50, 0, id, idleID)...)...)
	if n := drain(t, s, idle); n != 50 {
		t.Errorf("%d admitted of a key that was full when it was pinned, want 50", n)
	}
	if q, ok := heldKey(t, s, id); !ok || q.Version != 1 || q.Share != (quota.Share{Capacity: 50 * token, Refill: 1}) || !q.Drained || q.Period != time.Hour {
		t.Errorf("held %+v (%t)", q, ok)
	}
	listed, err := s.TrackedKeys(t.Context())
	if err != nil || len(listed) != 2 || listed[0] != id || listed[1] != idleID {
		t.Errorf("tracked %v, %v", listed, err)
	}
	if ttl := s.Client().PTTL(t.Context(), e.Bucket).Val(); ttl != -1 {
		t.Errorf("a tracked key has a TTL of %s", ttl)
	}
	apply(t, s, 1, grants(2, 80, 20*token, id)...)
	if n := drain(t, s, e); n != 20 {
		t.Errorf("%d admitted of a gift of 20", n)
	}
	apply(t, s, 1, grants(3, 90, 30*token, id)...)
	apply(t, s, 1, grants(2, 1, 0, id)...) // late
	apply(t, s, 1, grants(4, 12, 0, id)...)
	if q, _ := heldKey(t, s, id); q.Version != 4 || q.Surrendered != 18*token {
		t.Errorf("held %+v, want version 4 and 18 surrendered", q)
	}
	if out, err := s.Acquire(t.Context(), quota.Attempt{Stripe: 3, Peek: true, Entries: []quota.Entry{e}}); err != nil || out.Verdicts[0].Version != 4 || out.Verdicts[0].Share.Capacity != 12*token {
		t.Errorf("a look says %+v, %v", out, err)
	}
	dropped := grants(5, 5, 0, id)
	dropped[0].Drop = true
	apply(t, s, 1, dropped...)
	if _, ok := heldKey(t, s, id); ok {
		t.Error("held after the drop")
	}
	if ttl := s.Client().PTTL(t.Context(), e.Bucket).Val(); ttl <= 0 && ttl != -2 {
		t.Errorf("a key that is no longer tracked has a TTL of %s", ttl)
	}
	if n := drain(t, s, e); n != 5 {
		t.Errorf("%d admitted under the policy's share of 5", n)
	}
	if listed, err = s.TrackedKeys(t.Context()); err != nil || len(listed) != 1 || listed[0] != idleID {
		t.Errorf("tracked %v, %v", listed, err)
	}
}

// A grant whose key is none of its policy's is refused, with all that came with it.
func TestApplyRefusesKeysOfOthers(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	bad := keyGrant(quota.ID{Policy: "p", Key: "0000000000000003:t:acme:other"}, 1, share(1, 1))
	if err := s.Apply(t.Context(), 1, "gen", []quota.Grant{bucketGrant("p", 1, share(5, 5)), bad}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a key of another policy: %v", err)
	}
	if got, err := s.Held(t.Context(), []string{"p"}); err != nil || len(got) != 0 {
		t.Errorf("held %+v, %v", got, err)
	}
	if _, err := s.HeldKeys(t.Context(), []quota.ID{{Policy: "p", Key: "x"}}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a key that names nothing: %v", err)
	}
	other := keyGrant(quota.ID{Policy: "p", Key: "0000000000000003:p"}, 1, share(1, 1))
	if err := s.Apply(t.Context(), 1, "lost", []quota.Grant{other}); !errors.Is(err, quota.ErrFenced) {
		t.Errorf("of another dataset: %v", err)
	}
}

// As many keys as a policy may have, most of them on one stripe, are granted and read
// in calls of bounded length; the epoch reaches every stripe.
func TestManyTrackedKeys(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	const keys = 4096
	var ids []quota.ID
	var grants []quota.Grant
	for i := range keys {
		stripe := 5
		if i%4 == 0 {
			stripe = i % s.Stripes()
		}
		_, id := trackedEntry(s, stripe, fmt.Sprintf("n%d", i), limit(100, 100, time.Minute))
		ids = append(ids, id)
		grants = append(grants, keyGrant(id, int64(i+1), share(int64(i%100), 1)))
	}
	apply(t, s, 7, grants...)
	if st := state(t, s); st.Epoch != 7 {
		t.Errorf("epoch %d on some stripe, want 7", st.Epoch)
	}
	got, err := s.HeldKeys(t.Context(), ids)
	if err != nil || len(got) != keys {
		t.Fatalf("%d keys held, %v", len(got), err)
	}
	for i, q := range got {
		if q.ID != ids[i] || q.Version != int64(i+1) || q.Share != share(int64(i%100), 1) {
			t.Fatalf("key %d: %+v", i, q)
		}
	}
	if listed, err := s.TrackedKeys(t.Context()); err != nil || len(listed) != keys {
		t.Errorf("%d keys listed, %v", len(listed), err)
	}
}

// A script that Redis forgot is loaded again for grants of keys too.
func TestTrackedKeysAfterAScriptFlush(t *testing.T) {
	t.Parallel()
	cluster := testenv.PrivateRedisCluster(t)
	s := openStore(t, cluster.Addrs)
	initialise(t, s)
	_, id := trackedEntry(s, 2, "acme", limit(100, 100, time.Minute))
	for version := range int64(2) {
		for i := range cluster.Addrs {
			do(t, cluster, i, "SCRIPT", "FLUSH")
		}
		apply(t, s, 1, keyGrant(id, version+1, share(5, 5)))
		for i := range cluster.Addrs {
			do(t, cluster, i, "SCRIPT", "FLUSH")
		}
		if q, ok := heldKey(t, s, id); !ok || q.Version != version+1 {
			t.Errorf("held %+v (%t), want version %d", q, ok, version+1)
		}
	}
	if value := s.Client().Get(t.Context(), s.BucketKey(2, "t:acme:p")).Val(); !strings.HasPrefix(value, "T") {
		t.Errorf("value %q", value)
	}
}

// Demand of flagged and tracked keys comes back as such, beside that of the policy.
// Flagged keys of one policy leave room for those of others and for totals.
func TestDemandOfKeysIsBoundedByPolicy(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	var demands []quota.Demand
	for i := range 12_000 {
		demands = append(demands, quota.Demand{Policy: "attacked", Key: fmt.Sprintf("%016x:attacked", i), Kind: quota.DemandFlagged, Offered: token})
	}
	key := "0000000000000001:p"
	for _, kind := range []quota.DemandKind{quota.DemandFlagged, quota.DemandTracked, quota.DemandShared} {
		demands = append(demands, quota.Demand{Policy: "p", Key: key, Kind: kind, Offered: 3 * token, Admitted: 2 * token})
	}
	demands = append(demands, quota.Demand{Policy: "attacked", Offered: 12_000 * token})
	for range 2 {
		if err := s.AddDemand(t.Context(), demands); err != nil {
			t.Fatal(err)
		}
	}
	w, err := s.TakeDemand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flagged, found := 0, map[quota.DemandKind]int{}
	for _, d := range w.Demands {
		switch {
		case d.Policy == "attacked" && d.Kind == quota.DemandFlagged && d.Offered == 2*token:
			flagged++
		case d.Policy == "attacked" && d.Key == "" && d.Offered == 24_000*token:
			found[3]++
		case d.Policy == "p" && d.Key == key && d.Offered == 6*token && d.Admitted == 4*token:
			found[d.Kind]++
		default:
			t.Errorf("unknown demand %+v", d)
		}
	}
	if flagged != 8192 || len(found) != 4 {
		t.Errorf("%d flagged keys of the attacked policy, want 8192; found of others %v, want one of each", flagged, found)
	}
}
