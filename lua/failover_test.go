package lua_test

import (
	"context"
	"errors"
	"fmt"
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

// nodeOf returns which primary of a cluster serves a key.
func nodeOf(t *testing.T, cluster *testenv.Cluster, s *lua.Store, key string) int {
	t.Helper()
	node, err := s.Client().MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for i, addr := range cluster.Addrs {
		if addr == node.Options().Addr {
			return i
		}
	}
	t.Fatalf("no node has %s", key)
	return 0
}

// recovered tries a bucket until it is answered and returns how long that took.
func recovered(t *testing.T, s *lua.Store, e quota.Entry) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) < 20*time.Second {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		_, err := s.Acquire(ctx, one(e))
		<-ctx.Done() // one try per deadline, as slow callers do
		cancel()
		if err == nil {
			return time.Since(began)
		}
	}
	t.Fatal("no answer for 20 s")
	return 0
}

// Case 57: while a primary hangs or is dead, checks on it fail within their deadline
// and the others go on; when it is back, so are they.
func TestDeadPrimary(t *testing.T) {
	t.Parallel()
	cluster := testenv.PrivateRedisCluster(t)
	s := openStore(t, cluster.Addrs, func(c *lua.Config) { c.ReadTimeout, c.DialTimeout = 300*time.Millisecond, 300*time.Millisecond })
	l := limit(1<<30, 1, time.Hour)
	entries := make([]quota.Entry, s.Stripes())
	victims, others := []quota.Entry{}, []quota.Entry{}
	for i := range entries {
		entries[i] = bucketEntry(s, i, "k", l)
		if nodeOf(t, cluster, s, entries[i].Bucket) == 1 {
			victims = append(victims, entries[i])
		} else {
			others = append(others, entries[i])
		}
	}
	if len(victims) == 0 || len(others) == 0 {
		t.Fatalf("%d stripes on node 1, %d elsewhere", len(victims), len(others))
	}
	kinds := map[string]bool{"timeout": true, "connection": true, "connect": true, "pool": true, "clusterdown": true}
	for _, step := range []struct {
		name       string
		harm, mend func(testing.TB, int)
	}{
		{"paused", cluster.Pause, cluster.Resume},
		{"killed", cluster.Kill, cluster.Start},
	} {
		step.harm(t, 1)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				began := time.Now()
				out, err := s.Acquire(ctx, one(victims[i%len(victims)]))
				var failure *lua.Error
				if !errors.As(err, &failure) || !errors.Is(err, quota.ErrUnavailable) || !kinds[failure.Kind()] || out.Allowed {
					t.Errorf("%s: %+v, %v: want an unavailable store", step.name, out, err)
				}
				if took := time.Since(began); took > deadline+slack {
					t.Errorf("%s: took %s, the deadline is %s", step.name, took, deadline)
				}
			})
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if out, err := s.Acquire(ctx, one(others[i%len(others)])); err != nil || !out.Allowed {
					t.Errorf("%s: on a healthy node: %+v, %v", step.name, out, err)
				}
			})
		}
		wg.Wait()
		step.mend(t, 1)
		if took := recovered(t, s, victims[0]); took > 5*time.Second {
			t.Errorf("%s: writes came back %s after the node did", step.name, took)
		}
	}
}

// Case 60: many limiter nodes do not storm a Redis node that comes back.
func TestReconnectsAreFew(t *testing.T) {
	t.Parallel()
	cluster := testenv.PrivateRedisCluster(t)
	const limiters = 30
	stores := openStores(t, cluster.Addrs, limiters, func(c *lua.Config) { c.ReadTimeout, c.DialTimeout = 300*time.Millisecond, 300*time.Millisecond })
	victim := -1
	for stripe := range stores[0].Stripes() {
		if nodeOf(t, cluster, stores[0], stores[0].BucketKey(stripe, "k")) == 2 {
			victim = stripe
		}
	}
	e := bucketEntry(stores[0], victim, "k", limit(1<<30, 1, time.Hour))
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var answered atomic.Int64
	for _, s := range stores {
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					each, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
					if _, err := s.Acquire(each, one(e)); err == nil {
						answered.Add(1)
					} else {
						<-each.Done()
					}
					cancel()
				}
			})
		}
	}
	cluster.Kill(t, 2)
	cluster.Start(t, 2)
	for before := answered.Load(); answered.Load() < before+20*limiters; {
		if _, err := stores[0].Acquire(ctx, one(e)); err != nil && ctx.Err() != nil {
			break
		}
	}
	stop()
	wg.Wait()
	for line := range strings.SplitSeq(do(t, cluster, 2, "INFO", "stats"), "\n") {
		if text, ok := strings.CutPrefix(line, "total_connections_received:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			// Two flights a limiter, what it asks the cluster for, and the test itself.
			if n > limiters*6+40 {
				t.Errorf("%d connections from %d limiters", n, limiters)
			}
			return
		}
	}
	t.Error("no connection count")
}

// Case 51: a stripe moves to another primary under load. No caller notices, and
// every admitted call is charged once.
func TestStripeMovesUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := testenv.PrivateRedisCluster(t)
	stores := openStores(t, cluster.Addrs, 3)
	s := stores[0]
	initialise(t, s)
	const stripe, keys = 5, 6
	l := limit(1<<30, 1, 24*time.Hour)
	entries := make([]quota.Entry, keys)
	for i := range entries {
		entries[i] = globalEntry(s, stripe, fmt.Sprintf("k%d", i), "p", l)
		if _, err := s.Acquire(t.Context(), one(entries[i])); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	charged := make([]atomic.Int64, keys)
	for w := range 12 {
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i++ {
				// What is under way when the load stops is still answered.
				each, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
				out, err := stores[i%3].Acquire(each, one(entries[i%keys], entries[(i+1)%keys]))
				cancel()
				if err != nil || !out.Allowed {
					t.Errorf("%+v, %v", out, err)
					return
				}
				charged[i%keys].Add(1)
				charged[(i+1)%keys].Add(1)
			}
		})
	}
	slot := do(t, cluster, 0, "CLUSTER", "KEYSLOT", entries[0].Bucket)
	at := nodeOf(t, cluster, s, entries[0].Bucket)
	ids := make([]string, len(cluster.Addrs))
	for i := range ids {
		ids[i] = do(t, cluster, i, "CLUSTER", "MYID")
	}
	const moves = 6
	for range moves {
		to := (at + 1) % len(ids)
		migrate(t, cluster, slot, at, to, ids)
		at = to
	}
	stop()
	wg.Wait()
	total := int64(0)
	for i, e := range entries {
		want := quota.Tokens(charged[i].Load()+1) * token
		total += charged[i].Load()
		if got := l.Capacity - level(t, s, e); got > want || got < want-token {
			t.Errorf("key %d: %s charged for %s", i, got, want)
		}
	}
	if total < 100 {
		t.Errorf("only %d charges while the stripe moved %d times", total, moves)
	}
	redirected := map[string]bool{}
	for i := range ids {
		for line := range strings.SplitSeq(do(t, cluster, i, "INFO", "errorstats"), "\n") {
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "errorstat_"), ":")
			redirected[name] = true
		}
	}
	if !redirected["MOVED"] || !redirected["ASK"] && !redirected["TRYAGAIN"] {
		t.Errorf("the load met %v, want MOVED and ASK or TRYAGAIN", redirected)
	}
}

// migrate moves one slot with its keys from one primary to another, by hand and key
// by key, so that the slot is seen half moved.
func migrate(t *testing.T, cluster *testenv.Cluster, slot string, from, to int, ids []string) {
	t.Helper()
	do(t, cluster, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from])
	do(t, cluster, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
	host, port, _ := strings.Cut(cluster.Addrs[to], ":")
	for {
		keys := strings.Fields(do(t, cluster, from, "CLUSTER", "GETKEYSINSLOT", slot, "1"))
		if len(keys) == 0 {
			break
		}
		do(t, cluster, from, "MIGRATE", host, port, keys[0], "0", "5000")
	}
	for _, i := range []int{to, from} {
		do(t, cluster, i, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
	}
	for i := range ids {
		if i != to && i != from {
			do(t, cluster, i, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
		}
	}
}
