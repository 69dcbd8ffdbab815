package lua_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

// openStores opens several stores of one region, as several nodes do. What they leave
// is removed with the test.
func openStores(tb testing.TB, addrs []string, n int, change ...func(*lua.Config)) []*lua.Store {
	tb.Helper()
	cfg := lua.Config{Addrs: addrs, Prefix: testenv.Prefix(tb), Stripes: 8, ReadTimeout: 20 * time.Second, QueueLimit: 20_000}
	for _, c := range change {
		c(&cfg)
	}
	stores := make([]*lua.Store, n)
	for i := range stores {
		s, err := lua.Open(tb.Context(), cfg)
		if err != nil {
			tb.Fatal(err)
		}
		stores[i] = s
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for stripe := range stores[0].Stripes() {
			if err := stores[0].Wipe(ctx, stripe); err != nil {
				tb.Errorf("remove keys: %v", err)
			}
		}
		stores[0].Client().Del(ctx, stores[0].StripesKey())
		for _, s := range stores {
			if err := s.Close(); err != nil {
				tb.Error(err)
			}
		}
	})
	return stores
}

func openStore(tb testing.TB, addrs []string, change ...func(*lua.Config)) *lua.Store {
	tb.Helper()
	return openStores(tb, addrs, 1, change...)[0]
}

func bucketEntry(s *lua.Store, stripe int, name string, l quota.Limit) quota.Entry {
	return quota.Entry{Bucket: s.BucketKey(stripe, name), Algorithm: quota.TokenBucket, Limit: l, Base: l}
}

func logEntry(s *lua.Store, stripe int, name string, limit int64, window time.Duration) quota.Entry {
	l := quota.Limit{Capacity: quota.Tokens(limit) * token, Period: window}
	return quota.Entry{Bucket: s.BucketKey(stripe, name), Algorithm: quota.SlidingLog, Limit: l, Base: l}
}

func globalEntry(s *lua.Store, stripe int, name, policy string, l quota.Limit) quota.Entry {
	e := bucketEntry(s, stripe, name, l)
	e.ShareKey, e.Floor = s.ShareKey(stripe, policy), l.Share()
	return e
}

// parallel makes n attempts through all stores at once and counts the admitted.
func parallel(t *testing.T, stores []*lua.Store, n int, attempt func(i int) quota.Attempt) (admitted int64) {
	t.Helper()
	var count, failed atomic.Int64
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			out, err := stores[i%len(stores)].Acquire(t.Context(), attempt(i))
			if err != nil {
				if failed.Add(1) < 4 {
					t.Errorf("attempt %d: %v", i, err)
				}
			} else if out.Allowed {
				count.Add(1)
			}
		})
	}
	close(begin)
	wg.Wait()
	if f := failed.Load(); f > 0 {
		t.Errorf("%d of %d attempts failed", f, n)
	}
	return count.Load()
}

func one(e ...quota.Entry) quota.Attempt {
	return quota.Attempt{Stripe: stripeOf(e[0].Bucket), Cost: token, Entries: e}
}

func stripeOf(key string) int {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	n, _ := strconv.Atoi(tag)
	return n
}

func level(t *testing.T, s *lua.Store, e quota.Entry) quota.Tokens {
	t.Helper()
	a := one(e)
	a.Peek = true
	out, err := s.Acquire(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return out.Verdicts[0].Level
}

// Case 15: a sliding log admits its limit exactly, however many ask at once.
func TestSlidingLogOfTenUnderFiveThousand(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 3)
	e := logEntry(stores[0], 3, "log", 10, time.Minute)
	if n := parallel(t, stores, 5000, func(int) quota.Attempt { return one(e) }); n != 10 {
		t.Errorf("%d admitted, want exactly 10", n)
	}
}

func TestBucketOfTwentyUnderTwoHundred(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 3)
	initialise(t, stores[0])
	l := limit(20, 1, time.Hour)
	for name, e := range map[string]quota.Entry{
		"regional": bucketEntry(stores[0], 5, "r", l), "global": globalEntry(stores[0], 5, "g", "p", l),
	} {
		if n := parallel(t, stores, 200, func(int) quota.Attempt { return one(e) }); n != 20 {
			t.Errorf("%s: %d admitted, want exactly 20", name, n)
		}
	}
}

func initialise(tb testing.TB, s *lua.Store) {
	tb.Helper()
	if err := s.Initialise(tb.Context(), "gen", true); err != nil {
		tb.Fatal(err)
	}
}

// Cases 27 and 28: of three rules on one request none is passed, and none is charged
// for a request that another denied.
func TestThreeRulesUnderTenThousand(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 4)
	s := stores[0]
	initialise(t, s)
	wide, log, tight := bucketEntry(s, 2, "wide", limit(900, 1, 24*time.Hour)), logEntry(s, 2, "log", 700, time.Hour), globalEntry(s, 2, "tight", "p", limit(123, 1, 24*time.Hour))
	// Half of the requests have all three rules, half only two.
	n := parallel(t, stores, 10_000, func(i int) quota.Attempt {
		if i%2 == 0 {
			return one(wide, log)
		}
		return one(tight, log, wide)
	})
	if n != 700 {
		t.Errorf("%d admitted, want the 700 of the log", n)
	}
	if got := level(t, s, log); got != 0 {
		t.Errorf("log has %s left, want none", got)
	}
	if got := level(t, s, wide); got != 200*token {
		t.Errorf("wide bucket has %s left, want 900-700", got)
	}
	spent := 123*token - level(t, s, tight)
	if spent < 0 || spent > 123*token || spent%token != 0 {
		t.Errorf("tight bucket gave %s of 123", spent)
	}
}

// Cases 51 and 71: losing the scripts under load is noticed by nobody, and every
// admitted call is charged once.
func TestScriptFlushDuringLoad(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t)
	stores := openStores(t, cluster.Addrs, 3)
	const callers, each = 60, 250
	ctx, stop := context.WithCancel(t.Context())
	var flushes int
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			cluster.FlushScripts(t) //nolint:contextcheck // it takes the test's
			flushes++
			<-tick.C
		}
	}()
	l := limit(1_000_000, 1, 24*time.Hour)
	entries := make([]quota.Entry, stores[0].Stripes())
	for i := range entries {
		entries[i] = bucketEntry(stores[0], i, "k", l)
	}
	n := parallel(t, stores, callers, func(i int) quota.Attempt {
		for j := range each - 1 {
			if out, err := stores[(i+j)%3].Acquire(t.Context(), one(entries[(i+j)%len(entries)])); err != nil || !out.Allowed {
				t.Errorf("%+v, %v", out, err)
			}
		}
		return one(entries[i%len(entries)])
	})
	stop()
	<-done
	if n != callers {
		t.Errorf("%d of the last calls admitted, want %d", n, callers)
	}
	var charged quota.Tokens
	for _, e := range entries {
		charged += l.Capacity - level(t, stores[0], e)
	}
	// A day refills one token: over a few seconds some milli-tokens at most.
	if charged > callers*each*token || charged < callers*each*token-token {
		t.Errorf("%s charged for %d calls", charged, callers*each)
	}
	if flushes < 3 {
		t.Errorf("only %d flushes", flushes)
	}
}

// Case 71: a hot key fails nobody.
func TestHotKey(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 2)
	e := bucketEntry(stores[0], 1, "hot", limit(300, 1, time.Hour))
	if n := parallel(t, stores, 500, func(int) quota.Attempt { return one(e) }); n != 300 {
		t.Errorf("%d admitted, want 300", n)
	}
}

// Case 50: no value of a key makes a call cross slots.
func TestRandomKeysNeverCrossSlots(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs, func(c *lua.Config) { c.Stripes = 256 })
	initialise(t, s)
	l := limit(5, 5, time.Minute)
	policies := []*quota.Policy{
		{ID: "by-tenant", Key: []string{"tenant"}, Algorithm: quota.TokenBucket, Limit: l},
		{ID: "by:tenant.and-user", Key: []string{"user", "tenant"}, Algorithm: quota.TokenBucket, Limit: l, Scope: quota.Regional},
		{ID: "t", Key: []string{"tenant", "path"}, Algorithm: quota.SlidingLog, Limit: quota.Limit{Capacity: 5 * token, Period: time.Minute}},
	}
	r := rand.New(rand.NewPCG(50, 50))
	alphabet := []string{"{", "}", "{}", "{1}", ":", "@", "a", "Ω", "\x00", "\xff", " ", "rl:", "-", "\r\n", "*"}
	value := func() string {
		var b strings.Builder
		for range r.IntN(6) {
			b.WriteString(alphabet[r.IntN(len(alphabet))])
		}
		return b.String()
	}
	attempts := make([]quota.Attempt, 10_000)
	for i := range attempts {
		attrs := quota.Attributes{{Name: "path", Value: value()}, {Name: "tenant", Value: value()}, {Name: "user", Value: value()}}
		for _, p := range policies {
			key, stripe := quota.AppendBucketKey(nil, s.Prefix(), s.Stripes(), p, attrs)
			e := quota.Entry{Bucket: string(key), Algorithm: p.Algorithm, Limit: p.Limit, Base: p.Limit, Floor: p.Limit.Share()}
			if p.Scope == quota.Global {
				e.ShareKey = string(quota.AppendShareKey(nil, s.Prefix(), stripe, p.ID))
			}
			if len(attempts[i].Entries) > 0 && stripe != attempts[i].Stripe {
				t.Fatalf("quotas of one tenant on stripes %d and %d", stripe, attempts[i].Stripe)
			}
			attempts[i].Stripe, attempts[i].Cost = stripe, token
			attempts[i].Entries = append(attempts[i].Entries, e)
		}
		attempts[i].RequestID = value()
	}
	for from := 0; from < len(attempts); from += 2000 {
		parallel(t, []*lua.Store{s}, 2000, func(i int) quota.Attempt { return attempts[from+i] })
	}
}

// Case 63: stores with other prefixes or other users never see each other's keys.
func TestPrefixesAndUsersNeverCross(t *testing.T) {
	t.Parallel()
	cluster := testenv.PrivateRedisCluster(t)
	for i := range cluster.Addrs {
		for _, user := range []string{"ann", "bob"} {
			do(t, cluster, i, "ACL", "SETUSER", user, "on", ">pw-"+user, "~"+user+":*", "+@all")
		}
	}
	login := func(user, prefix string) func(*lua.Config) {
		return func(c *lua.Config) { c.Username, c.Password, c.Prefix = user, "pw-"+user, prefix }
	}
	ann, bob := openStore(t, cluster.Addrs, login("ann", "ann")), openStore(t, cluster.Addrs, login("bob", "bob"))
	l := limit(3, 1, time.Hour)
	for range 3 {
		for _, s := range []*lua.Store{ann, bob} {
			if out, err := s.Acquire(t.Context(), one(bucketEntry(s, 1, "k", l))); err != nil || !out.Allowed {
				t.Fatalf("%s: %+v, %v", s.Prefix(), out, err)
			}
		}
	}
	var failure *lua.Error
	if _, err := ann.Acquire(t.Context(), one(bucketEntry(bob, 1, "k", l))); !errors.As(err, &failure) || failure.Kind() != "auth" && failure.Kind() != "script" {
		t.Errorf("another user's key: %v, want a refusal", err)
	}
	if s, err := lua.Open(t.Context(), lua.Config{Addrs: cluster.Addrs, Username: "ann", Password: "pw-ann", Prefix: "bob"}); err == nil {
		_ = s.Close()
		t.Error("opened with another user's prefix")
	}
}

// Case 73: after ten thousand calls no connection is in use, and they are few.
func TestPoolsGoIdle(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 1)
	e := make([]quota.Entry, 8)
	for i := range e {
		e[i] = bucketEntry(stores[0], i, "k", limit(1<<30, 1, time.Hour))
	}
	for range 5 {
		parallel(t, stores, 2000, func(i int) quota.Attempt { return one(e[i%8]) })
	}
	stats := stores[0].Client().PoolStats()
	if stats.TotalConns != stats.IdleConns || stats.TotalConns > 12 {
		t.Errorf("%d connections, %d of them idle; want all idle, and at most a few a node", stats.TotalConns, stats.IdleConns)
	}
}

// Case 53: in steady state no script text is sent.
func TestSteadyStateSendsNoScriptText(t *testing.T) {
	t.Parallel()
	cluster := testenv.PrivateRedisCluster(t)
	s := openStore(t, cluster.Addrs)
	initialise(t, s)
	for i := range cluster.Addrs {
		do(t, cluster, i, "CONFIG", "RESETSTAT")
	}
	for i := range 500 {
		if _, err := s.Acquire(t.Context(), one(globalEntry(s, i%8, "k", "p", limit(1000, 1, time.Second)))); err != nil {
			t.Fatal(err)
		}
	}
	calls := 0
	for i := range cluster.Addrs {
		stats := do(t, cluster, i, "INFO", "commandstats")
		for line := range strings.SplitSeq(stats, "\n") {
			name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
			if strings.HasPrefix(name, "script") || name == "eval" || name == "function" {
				t.Errorf("node %d: %s", i, line)
			}
			if name == "evalsha" {
				n, _, _ := strings.Cut(rest, ",")
				c, _ := strconv.Atoi(n)
				calls += c
			}
		}
	}
	// 500 checks, and on each of the 8 stripes a floor and the check again.
	if calls != 500+8*2 {
		t.Errorf("%d script calls for 500 checks, want 516", calls)
	}
}

func do(tb testing.TB, c *testenv.Cluster, i int, args ...string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 10*time.Second)
	defer cancel()
	reply, err := c.Do(ctx, i, args...)
	if err != nil {
		tb.Fatalf("%v: %v", args, err)
	}
	return reply
}

// A request id answers a repeat from memory, on any node.
func TestRequestIDsOnTheCluster(t *testing.T) {
	t.Parallel()
	stores := openStores(t, testenv.RedisCluster(t).Addrs, 3)
	e := bucketEntry(stores[0], 6, "k", limit(100, 1, time.Hour))
	n := parallel(t, stores, 300, func(i int) quota.Attempt {
		a := one(e)
		a.RequestID = fmt.Sprintf("id-%d", i%7)
		return a
	})
	if n != 300 {
		t.Errorf("%d of 300 admitted", n)
	}
	if got := level(t, stores[0], e); got != 93*token {
		t.Errorf("%s left, want 93: seven ids were charged", got)
	}
}
