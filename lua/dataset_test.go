package lua_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

func state(t *testing.T, s *lua.Store) quota.DatasetState {
	t.Helper()
	st, err := s.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(time.UnixMicro(st.Now)); age < -time.Minute || age > time.Minute {
		t.Errorf("the store's clock is %s away", age)
	}
	st.Now = 0
	return st
}

func share(capacity, refill int64) quota.Share {
	return quota.Share{Capacity: quota.Tokens(capacity) * token, Refill: quota.Tokens(refill) * token}
}

func bucketGrant(policy string, version int64, s quota.Share) quota.Grant {
	return quota.Grant{
		ID: quota.ID{Policy: policy}, Version: version, Algorithm: quota.TokenBucket, Share: s, Permanent: s,
		Limit: limit(100, 100, time.Minute), Floor: share(10, 10),
	}
}

func apply(t *testing.T, s *lua.Store, epoch quota.Epoch, grants ...quota.Grant) {
	t.Helper()
	if err := s.Apply(t.Context(), epoch, "gen", grants); err != nil {
		t.Fatal(err)
	}
}

// held is what the store reports of the policy p.
func held(t *testing.T, s *lua.Store) quota.QuotaReport {
	t.Helper()
	reports, err := s.Held(t.Context(), []string{"no-such-policy", "p"})
	if err != nil {
		t.Fatal(err)
	}
	if len(reports) != 1 {
		t.Fatalf("%d reports of one policy: %+v", len(reports), reports)
	}
	if reports[0].ID != (quota.ID{Policy: "p"}) {
		t.Errorf("a report of %v", reports[0].ID)
	}
	reports[0].ID = quota.ID{}
	return reports[0]
}

func TestDatasetStartsEmptyAndIsNamed(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	if st := state(t, s); st != (quota.DatasetState{Empty: true}) {
		t.Errorf("at first: %+v", st)
	}
	e := globalEntry(s, 1, "k", "p", limit(10, 10, time.Minute))
	if _, err := s.Acquire(t.Context(), one(e)); !errors.Is(err, quota.ErrUninitialised) {
		t.Errorf("a check before: %v, want ErrUninitialised", err)
	}
	if err := s.Apply(t.Context(), 1, "gen", []quota.Grant{bucketGrant("p", 1, share(5, 5))}); !errors.Is(err, quota.ErrUninitialised) {
		t.Errorf("a grant before: %v, want ErrUninitialised", err)
	}
	for _, bad := range []string{"", "a:b", "a b"} {
		if err := s.Initialise(t.Context(), bad, true); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("id %q: %v, want ErrInvalid", bad, err)
		}
	}
	initialise(t, s)
	initialise(t, s) // again is safe
	if st := state(t, s); st != (quota.DatasetState{Gen: "gen", Complete: true}) {
		t.Errorf("afterwards: %+v", st)
	}
}

func TestStripesAreFixedAtTheFirstStart(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	again, err := lua.Open(t.Context(), lua.Config{Addrs: testenv.RedisCluster(t).Addrs, Prefix: s.Prefix(), Stripes: 99})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if again.Stripes() != s.Stripes() {
		t.Errorf("%d stripes, the region has %d", again.Stripes(), s.Stripes())
	}
	if err := s.Client().Set(t.Context(), s.StripesKey(), "many", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if other, err := lua.Open(t.Context(), lua.Config{Addrs: testenv.RedisCluster(t).Addrs, Prefix: s.Prefix()}); err == nil {
		_ = other.Close()
		t.Error("opened a prefix that another program uses")
	}
}

// A lost shard is noticed, and its stripes start with empty hands.
func TestLostStripes(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	apply(t, s, 3, bucketGrant("p", 7, share(40, 40)))
	if err := s.Wipe(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if st := state(t, s); st != (quota.DatasetState{Gen: "gen", Epoch: 3}) {
		t.Errorf("with a stripe lost: %+v, want it incomplete and not empty", st)
	}
	if r := held(t, s); r.Version != 0 || r.Share != share(40, 40) {
		t.Errorf("with a stripe lost: %+v, want version 0 and the share that others hold", r)
	}
	if err := s.Initialise(t.Context(), "gen2", false); err != nil {
		t.Fatal(err)
	}
	if st := state(t, s); st != (quota.DatasetState{Gen: "gen2", Complete: true}) {
		t.Errorf("after: %+v, want the new id, and the epoch of the stripe that knows none", st)
	}
	if err := s.Apply(t.Context(), 3, "gen", []quota.Grant{bucketGrant("p", 8, share(50, 50))}); !errors.Is(err, quota.ErrFenced) {
		t.Errorf("a grant to the old dataset: %v, want ErrFenced", err)
	}
	if err := s.Apply(t.Context(), 3, "gen2", []quota.Grant{bucketGrant("p", 7, share(40, 40))}); err != nil {
		t.Fatal(err)
	}
	if r := held(t, s); r.Version != 7 {
		t.Errorf("%+v, want version 7 on all stripes", r)
	}
	e := func(stripe int) quota.Entry {
		e := globalEntry(s, stripe, "k", "p", limit(100, 100, time.Minute))
		e.Floor = share(10, 10)
		return e
	}
	out, err := s.Acquire(t.Context(), one(e(2)))
	if err != nil || out.Allowed || out.Verdicts[0].RetryAfter < time.Second {
		t.Errorf("on the lost stripe: %+v, %v, want a denial for more than the pause", out, err)
	}
	if out, err := s.Acquire(t.Context(), one(e(3))); err != nil || !out.Allowed {
		t.Errorf("on another stripe: %+v, %v", out, err)
	}
}

// A log whose window is short is blocked for a window after a loss, as a bucket is not.
func TestLostLogIsBlockedForItsWindow(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	if err := s.Initialise(t.Context(), "gen", false); err != nil {
		t.Fatal(err)
	}
	for window, wait := range map[time.Duration]time.Duration{30 * time.Second: 31 * time.Second, time.Hour: time.Second} {
		e := logEntry(s, 1, "k"+window.String(), 5, window)
		e.ShareKey, e.Floor = s.ShareKey(1, "p"+window.String()), share(5, 0)
		out, err := s.Acquire(t.Context(), one(e))
		if err != nil || out.Allowed {
			t.Fatalf("window %s: %+v, %v", window, out, err)
		}
		if got := out.Verdicts[0].RetryAfter; got < wait-500*time.Millisecond || got > wait+time.Second {
			t.Errorf("window %s: wait of %s, want about %s", window, got, wait)
		}
	}
}

func TestApplyIsCompareAndSet(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	expect := func(what string, version int64, want quota.Share) {
		t.Helper()
		r := held(t, s)
		if r.Version != version || r.Share != want || !r.Drained || r.Period != time.Minute {
			t.Errorf("%s: %+v, want version %d share %+v", what, r, version, want)
		}
	}
	apply(t, s, 2, bucketGrant("p", 5, share(50, 50)))
	expect("first", 5, share(50, 50))
	apply(t, s, 2, bucketGrant("p", 5, share(99, 99)))
	expect("the same version again", 5, share(50, 50))
	apply(t, s, 2, bucketGrant("p", 4, share(99, 99)))
	expect("an older version", 5, share(50, 50))
	if err := s.Apply(t.Context(), 1, "gen", []quota.Grant{bucketGrant("p", 9, share(99, 99))}); !errors.Is(err, quota.ErrFenced) {
		t.Errorf("an older leader: %v, want ErrFenced", err)
	}
	expect("an older leader", 5, share(50, 50))
	apply(t, s, 3, bucketGrant("p", 1, share(30, 30)))
	expect("a newer leader that counts anew", 1, share(30, 30))
	if st := state(t, s); st.Epoch != 3 {
		t.Errorf("epoch %d, want 3", st.Epoch)
	}
	apply(t, s, 4) // no grants: only the epoch
	if st := state(t, s); st.Epoch != 4 {
		t.Errorf("epoch %d, want 4", st.Epoch)
	}
	drop := bucketGrant("p", 2, quota.Share{})
	drop.Drop = true
	apply(t, s, 4, drop)
	if r, err := s.Held(t.Context(), []string{"p"}); err != nil || len(r) != 0 {
		t.Errorf("after a drop: %+v, %v", r, err)
	}
	// More grants than one call carries.
	var many []quota.Grant
	ids := make([]string, 150)
	for i := range ids {
		ids[i] = fmt.Sprintf("p%d", i)
		many = append(many, bucketGrant(ids[i], int64(i+1), share(int64(i), int64(i))))
	}
	apply(t, s, 4, many...)
	reports, err := s.Held(t.Context(), ids)
	if err != nil || len(reports) != len(ids) {
		t.Fatalf("%d reports, %v", len(reports), err)
	}
	for i, r := range reports {
		if r.ID.Policy != ids[i] || r.Version != int64(i+1) || r.Share != share(int64(i), int64(i)) {
			t.Errorf("%+v", r)
		}
	}
}

// An Apply that reached only some stripes is seen as not applied, and repeating it mends that.
func TestPartlyAppliedGrantIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	apply(t, s, 1, bucketGrant("p", 1, share(50, 50)))
	old, err := s.Client().Get(t.Context(), s.ShareKey(6, "p")).Result()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, 1, bucketGrant("p", 2, share(20, 20)))
	if err := s.Client().Set(t.Context(), s.ShareKey(6, "p"), old, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if r := held(t, s); r.Version != 1 || r.Share != share(50, 50) {
		t.Errorf("%+v, want the lowest version and the largest share", r)
	}
	apply(t, s, 1, bucketGrant("p", 2, share(20, 20)))
	if r := held(t, s); r.Version != 2 || r.Share != share(20, 20) {
		t.Errorf("after a repeat: %+v", r)
	}
}

// W2 and W4: after a log's share shrank, what was admitted under the larger one counts
// as held for a window.
func TestShrunkLogHoldsItsEntries(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	grant := func(version, n int64, window time.Duration) quota.Grant {
		return quota.Grant{
			ID: quota.ID{Policy: "p"}, Version: version, Algorithm: quota.SlidingLog, Share: share(n, 0), Permanent: share(n, 0),
			Limit: quota.Limit{Capacity: 100 * token, Period: window}, Floor: share(10, 0),
		}
	}
	apply(t, s, 1, grant(1, 60, time.Hour))
	if r := held(t, s); !r.Drained || r.Hold != 0 {
		t.Errorf("at first: %+v, want it drained", r)
	}
	apply(t, s, 1, grant(2, 20, time.Hour))
	apply(t, s, 1, grant(3, 30, time.Hour))
	apply(t, s, 1, grant(4, 10, time.Hour))
	if r := held(t, s); r.Drained || r.Hold != 60*token || r.Share != share(10, 0) {
		t.Errorf("after shrinks: %+v, want 60 held", r)
	}
	// In a window of a millisecond it drains while this test looks.
	apply(t, s, 1, grant(5, 40, time.Millisecond))
	apply(t, s, 1, grant(6, 5, time.Millisecond))
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		if r := held(t, s); r.Drained {
			return
		}
	}
	t.Error("a window of a millisecond did not drain in 10 s")
}

// E2: growing gives room, not tokens; a gift gives tokens, once; shrinking clamps.
func TestGrowGivesRoomAndGiftGivesTokens(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	slow := func(version, capacity int64, gift quota.Tokens) quota.Grant {
		g := bucketGrant("p", version, share(capacity, 1))
		g.Limit, g.Gift = limit(100, 1, 24*time.Hour), gift
		return g
	}
	entry := globalEntry(s, 1, "k", "p", limit(100, 1, 24*time.Hour))
	fresh := globalEntry(s, 1, "other", "p", limit(100, 1, 24*time.Hour))
	at := func(what string, key, other int64) {
		t.Helper()
		if got := level(t, s, entry).Whole(); got != key {
			t.Errorf("%s: %d left of the used key, want %d", what, got, key)
		}
		if got := level(t, s, fresh).Whole(); got != other {
			t.Errorf("%s: %d left of the other, want %d", what, got, other)
		}
	}
	apply(t, s, 1, slow(1, 40, 30*token))
	a := one(entry)
	a.Cost = 15 * token
	if out, err := s.Acquire(t.Context(), a); err != nil || !out.Allowed {
		t.Fatalf("%+v, %v", out, err)
	}
	at("first grant with its gift", 25, 40)
	apply(t, s, 1, slow(2, 90, 0))
	at("grown", 25, 40)
	apply(t, s, 1, slow(3, 90, 20*token))
	at("a gift to what nobody used", 25, 60)
	apply(t, s, 1, slow(3, 90, 20*token))
	at("the same gift again", 25, 60)
	apply(t, s, 1, slow(4, 12, 0))
	at("shrunk", 12, 12)
	apply(t, s, 1, slow(5, 90, 0))
	at("grown again", 12, 12)
}

func TestDemandIsSummedAndTaken(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 2)
	if w, err := stores[0].TakeDemand(t.Context()); err != nil || len(w.Demands) != 0 || w.Elapsed != 0 {
		t.Fatalf("at first: %+v, %v", w, err)
	}
	demands := []quota.Demand{
		{Policy: "a", Offered: 5 * token, Admitted: 3 * token},
		{Policy: "a", Key: "t:x:k:1", Offered: 2 * token, Admitted: token},
		{Policy: "b", Offered: 1},
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := stores[i%2].AddDemand(t.Context(), demands); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w, err := stores[1].TakeDemand(t.Context())
	if err != nil || w.Elapsed <= 0 || w.Elapsed > time.Minute {
		t.Fatalf("%+v, %v", w, err)
	}
	slices.SortFunc(w.Demands, func(a, b quota.Demand) int { return int(b.Offered - a.Offered) })
	want := []quota.Demand{
		{Policy: "a", Offered: 100 * token, Admitted: 60 * token},
		{Policy: "a", Key: "t:x:k:1", Offered: 40 * token, Admitted: 20 * token},
		{Policy: "b", Offered: 20},
	}
	if !slices.Equal(w.Demands, want) {
		t.Errorf("taken %+v, want %+v", w.Demands, want)
	}
	if w, err := stores[0].TakeDemand(t.Context()); err != nil || len(w.Demands) != 0 {
		t.Errorf("taken twice: %+v, %v", w, err)
	}
}

// Without an agent, demand is bounded: in fields and in time.
func TestDemandIsBounded(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	var demands []quota.Demand
	for i := range 30_000 {
		demands = append(demands, quota.Demand{Policy: "p", Key: strconv.Itoa(i), Offered: token, Admitted: token})
	}
	if err := s.AddDemand(t.Context(), demands); err != nil {
		t.Fatal(err)
	}
	w, err := s.TakeDemand(t.Context())
	if err != nil || len(w.Demands) != 20_000 {
		t.Errorf("%d quotas kept, %v, want 20,000", len(w.Demands), err)
	}
}

// Two agents at once do no harm, and only one at a time is the agent.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 2)
	hold := func(i int, ttl time.Duration) bool {
		t.Helper()
		ok, err := stores[i].HoldAgent(t.Context(), fmt.Sprint("node", i), ttl)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	var agents atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ok, err := stores[i%2].HoldAgent(t.Context(), fmt.Sprint("many", i), time.Minute)
			if err != nil {
				t.Error(err)
			}
			if ok {
				agents.Add(1)
				if _, err := stores[i%2].HoldAgent(t.Context(), fmt.Sprint("many", i), 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if agents.Load() == 0 {
		t.Error("nobody became the agent")
	}
	if !hold(0, time.Minute) || hold(1, time.Minute) || !hold(0, time.Minute) || hold(1, 0) {
		t.Error("the lock changed hands")
	}
	if hold(0, 0) || !hold(1, time.Minute) {
		t.Error("the lock was not let go")
	}
	// Both apply at once: each stripe ends with the newest grant.
	initialise(t, stores[0])
	for i := range 20 {
		wg.Go(func() {
			if err := stores[i%2].Apply(t.Context(), 1, "gen", []quota.Grant{bucketGrant("p", int64(i+1), share(int64(i+1), int64(i+1)))}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if r := held(t, stores[0]); r.Version != 20 || r.Share != share(20, 20) {
		t.Errorf("%+v, want version 20 everywhere", r)
	}
}
