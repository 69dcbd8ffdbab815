package app_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

// clusterNodes are n nodes of one region that runs alone on a real Redis Cluster.
func clusterNodes(t *testing.T, n int, policies string) []*regional.Engine {
	t.Helper()
	cluster := testenv.RedisCluster(t)
	set, err := document.Policies([]byte(policies))
	if err != nil {
		t.Fatal(err)
	}
	index, err := quota.Compile(1, set, nil)
	if err != nil {
		t.Fatal(err)
	}
	prefix := testenv.Prefix(t)
	nodes := make([]*regional.Engine, n)
	for i := range nodes {
		store, err := lua.Open(t.Context(), lua.Config{
			Addrs: cluster.Addrs, Prefix: prefix, ReadTimeout: 10 * time.Second, DialTimeout: 10 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		engine, err := regional.New(regional.Config{
			Store: store, KeyPrefix: prefix, Stripes: store.Stripes(), Standalone: true,
			// Thousands at once on one key must all reach the store: the test is
			// about what the store decides, not about the bound in front of it.
			MaxInFlight: 1 << 17,
		})
		if err != nil {
			t.Fatal(err)
		}
		engine.SetIndex(index)
		nodes[i] = engine
		t.Cleanup(func() {
			if err := engine.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return nodes
}

func check(t *testing.T, e *regional.Engine, attributes map[string]string) quota.Result {
	t.Helper()
	result, err := e.Check(t.Context(), quota.Request{Attributes: attributes, Cost: quota.Token})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// parallel sends n checks at once, spread over the nodes, and returns how many passed.
func parallel(t *testing.T, nodes []*regional.Engine, n int, attributes map[string]string) int {
	t.Helper()
	var admitted atomic.Int64
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-begin
			result, err := nodes[i%len(nodes)].Check(t.Context(), quota.Request{Attributes: attributes, Cost: quota.Token})
			if err != nil {
				t.Error(err)
			}
			for _, d := range result.Decisions {
				if d.Source != quota.SourceStore {
					t.Errorf("decided by %s, not by the store", d.Source)
				}
			}
			if result.Allowed {
				admitted.Add(1)
			}
		})
	}
	close(begin)
	all.Wait()
	return int(admitted.Load())
}

// A deadline far above what a check takes keeps a busy machine from being mistaken for
// a broken store.
const raceForOneBucket = `
policies:
  - id: free
    key: [apiKey]
    algorithm: token-bucket
    scope: regional
    capacity: 20
    refill: 1/1d
    storeDeadline: 10s
    onStoreFailure: closed
`

func TestTwoHundredClientsOnOneBucket(t *testing.T) {
	nodes := clusterNodes(t, 3, raceForOneBucket)
	if n := parallel(t, nodes, 200, map[string]string{"apiKey": "ak_1"}); n != 20 {
		t.Errorf("admitted %d of 200 through three nodes, want 20", n)
	}
}

// The seed document's own numbers, refilling while the race goes on.
func TestTwoHundredClientsWhileItRefills(t *testing.T) {
	nodes := clusterNodes(t, 3, `
policies:
  - id: free
    key: [apiKey]
    algorithm: token-bucket
    scope: regional
    capacity: 20
    refillPerMinute: 100
    storeDeadline: 10s
    onStoreFailure: closed
`)
	key := map[string]string{"apiKey": "ak_1"}
	start := time.Now()
	n := parallel(t, nodes, 200, key)
	most := 20 + int(time.Since(start).Seconds()*100/60)
	if n < 20 || n > most {
		t.Errorf("admitted %d in %s, want 20 to %d", n, time.Since(start), most)
	}
}

func TestFiveThousandLogins(t *testing.T) {
	nodes := clusterNodes(t, 3, `
policies:
  - id: login
    key: [ip, username]
    algorithm: sliding-log
    scope: regional
    limit: 10
    window: 60s
    storeDeadline: 10s
    onStoreFailure: closed
`)
	attributes := map[string]string{"ip": "203.0.113.7", "username": "ada"}
	if n := parallel(t, nodes, 5000, attributes); n != 10 {
		t.Errorf("admitted %d of 5000, want 10", n)
	}
}

// Case 21: with more than one node a window still ends. Two nodes are asked all the time;
// every window admits its limit, and no more, on whichever of them.
func TestWindowsEndWithSeveralNodes(t *testing.T) {
	const limit, windows, window = 100, 3, time.Second
	nodes := clusterNodes(t, 2, fmt.Sprintf(`
policies:
  - id: api
    key: [tenant]
    algorithm: sliding-log
    scope: regional
    limit: %d
    window: %s
    storeDeadline: 10s
    onStoreFailure: closed
`, limit, window))
	tenant := map[string]string{"tenant": "acme"}
	type admission struct{ asked, answered time.Time }
	var admitted []admission
	byNode := make([]int, len(nodes))
	for start := time.Now(); len(admitted) < (windows+1)*limit; {
		for i, n := range nodes {
			asked := time.Now()
			if check(t, n, tenant).Allowed {
				admitted = append(admitted, admission{asked, time.Now()})
				byNode[i]++
			}
		}
		if time.Since(start) > 10*windows*window {
			t.Fatalf("only %d were admitted in %s, %v by node", len(admitted), time.Since(start), byNode)
		}
	}
	// It was decided between the two, on the store's clock.
	for i := limit; i < len(admitted); i++ {
		if gap := admitted[i].answered.Sub(admitted[i-limit].asked); gap < window {
			t.Errorf("admission %d came %s after the one %d before it", i, gap, limit)
		}
	}
	for i, n := range byNode {
		if n == 0 {
			t.Errorf("node %d admitted none", i)
		}
	}
}

const twoPolicies = `
policies:
  - id: narrow
    key: [%s]
    algorithm: token-bucket
    scope: regional
    capacity: 3
    refill: 1/1d
    storeDeadline: 10s
    onStoreFailure: closed
  - id: wide
    key: [%s]
    algorithm: token-bucket
    scope: regional
    capacity: 100
    refill: 1/1d
    storeDeadline: 10s
    onStoreFailure: closed
`

// Case 27: when one of several policies denies, the others are not charged, whether
// they are decided by one script or on two slots.
func TestDenialChargesNobody(t *testing.T) {
	for _, tc := range []struct {
		name, narrow, wide string
		attributes         map[string]string
		stripes            int
	}{
		{"one stripe", "tenant", "tenant, apiKey", map[string]string{"tenant": "acme", "apiKey": "ak_1"}, 1},
		{"two stripes", "tenant", "apiKey", map[string]string{"tenant": "acme", "apiKey": "ak_1"}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes := clusterNodes(t, 1, fmt.Sprintf(twoPolicies, tc.narrow, tc.wide))
			stripes := map[int]bool{}
			e, err := nodes[0].Explain(t.Context(), quota.Request{Attributes: tc.attributes, Cost: quota.Token})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range e.Policies {
				stripes[p.Stripe] = true
			}
			if len(stripes) != tc.stripes {
				t.Fatalf("the policies lie on %d stripes, want %d", len(stripes), tc.stripes)
			}
			for range 50 {
				check(t, nodes[0], tc.attributes)
			}
			want := map[string]int64{"narrow": 0, "wide": 97}
			settled(t, nodes[0], tc.attributes, want)
		})
	}
}

// settled waits until every policy has what is wanted left: what was taken before a
// later denial is given back in the background.
func settled(t *testing.T, e *regional.Engine, attributes map[string]string, want map[string]int64) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	left := map[string]int64{}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-tick.C {
		result, err := e.Peek(t.Context(), quota.Request{Attributes: attributes, Cost: 0})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range result.Decisions {
			left[d.PolicyID] = d.Remaining
		}
		if maps.Equal(left, want) {
			return
		}
	}
	t.Errorf("left %v, want %v", left, want)
}
