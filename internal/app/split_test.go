package app_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/coordinator"
	ledger "github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

var threeRegions = []quota.Region{"us-east", "eu-west", "ap-south"}

// world is a coordinator and three regions over Go models, in a synctest bubble: real
// engines, agents and ledger rules, virtual time.
type world struct {
	t       *testing.T
	limit   quota.Share
	c       *coordinator.Coordinator
	gate    *gate
	engines []*regional.Engine
	stores  []*modelStore
	cancel  context.CancelFunc
	done    sync.WaitGroup

	mu sync.Mutex
	// inForce is what each region may act on now.
	inForce map[quota.Region]quota.Share
	highest quota.Share
	// cut are the regions that do not reach the coordinator.
	cut map[quota.Region]bool
	// old are the regions whose nodes speak an earlier form of the protocol.
	old map[quota.Region]bool
}

// link is a region's way to the coordinator.
type link struct {
	w      *world
	region quota.Region
}

func (l link) Report(ctx context.Context, r quota.Report) (quota.Instructions, error) {
	l.w.mu.Lock()
	cut, old := l.w.cut[l.region], l.w.old[l.region]
	l.w.mu.Unlock()
	if cut {
		return quota.Instructions{}, quota.ErrUnavailable
	}
	if old {
		return l.reportAsBefore(ctx, r)
	}
	return l.w.gate.Report(ctx, r)
}

// setCut cuts regions off, or connects them again.
func (w *world) setCut(cut bool, regions ...quota.Region) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range regions {
		w.cut[r] = cut
	}
}

func newWorld(t *testing.T, p *quota.Policy, interval time.Duration) *world {
	t.Helper()
	w := &world{t: t, limit: p.Limit.Share(), inForce: map[quota.Region]quota.Share{}, cut: map[quota.Region]bool{}, old: map[quota.Region]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	log := slog.New(slog.DiscardHandler)
	w.gate = &gate{Ledger: ledger.NewComplete()}
	c, err := coordinator.New(ctx, coordinator.Config{
		Regions: threeRegions, Interval: interval, Ledger: w.gate, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.c, w.gate.Coordinator = c, c
	if err := c.SetPolicies(1, []*quota.Policy{p}); err != nil {
		t.Fatal(err)
	}
	w.done.Go(func() { _ = c.Run(ctx) })
	index, err := quota.Compile(1, []*quota.Policy{p}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, region := range threeRegions {
		floor := coordinator.Floor(threeRegions, region, p)
		w.inForce[region] = floor
		store := newModelStore(4)
		if p.Split.OnPartition == quota.Hold {
			store.onApply = func(_ string, share quota.Share) { w.apply(region, share) }
		}
		engine, err := regional.New(regional.Config{
			Store: store, Stripes: 4, Logger: log, Floor: func(*quota.Policy) quota.Share { return floor },
		})
		if err != nil {
			t.Fatal(err)
		}
		engine.SetIndex(index)
		agent, err := regional.NewAgent(regional.AgentConfig{
			Engine: engine, Dataset: store, Coordinator: link{w, region}, Region: region, Node: string(region), Logger: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		w.done.Go(func() { _ = agent.Run(ctx) })
		w.engines, w.stores = append(w.engines, engine), append(w.stores, store)
	}
	return w
}

// apply checks the heart of the matter: at this instant, the shares that the regions
// may act on sum to at most the limit.
func (w *world) apply(region quota.Region, share quota.Share) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inForce[region] = share
	var sum quota.Share
	for _, s := range w.inForce {
		sum = sum.Add(s)
	}
	w.highest = w.highest.Max(sum)
	if !sum.Within(w.limit) {
		w.t.Errorf("%s applied %v: the shares in force sum to %v, over the limit %v", region, share, sum, w.limit)
	}
}

func (w *world) stop() {
	w.cancel()
	w.done.Wait()
	for _, e := range w.engines {
		if err := e.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	}
}

// offer sends checks evenly at the given rate for a span of virtual time and returns
// how many were denied.
func (w *world) offer(engine *regional.Engine, attributes map[string]string, perSecond float64, span time.Duration) (admitted, denied int) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / perSecond))
	defer tick.Stop()
	for end := time.Now().Add(span); time.Now().Before(end); <-tick.C {
		result, err := engine.Check(context.Background(), quota.Request{Attributes: attributes, Cost: quota.Token})
		switch {
		case err != nil:
			w.t.Error(err)
		case result.Allowed:
			admitted++
		default:
			denied++
		}
	}
	return admitted, denied
}

// offerAll offers a mix from all regions at once.
func (w *world) offerAll(attributes map[string]string, total float64, mix []float64, span time.Duration) (admitted, denied int) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for i, part := range mix {
		all.Go(func() {
			a, d := w.offer(w.engines[i], attributes, total*part, span)
			mu.Lock()
			defer mu.Unlock()
			admitted, denied = admitted+a, denied+d
		})
	}
	all.Wait()
	return admitted, denied
}

// overload offers a multiple of a limit of 1000 a minute and a burst of 100, in one mix
// after the other for a minute each. No more than the limit may be admitted, and at least
// a part of it.
func (w *world) overload(p *quota.Policy, times float64, mixes [][]float64, least float64) {
	w.t.Helper()
	start, admitted := time.Now(), 0
	for _, mix := range mixes {
		a, _ := w.offerAll(map[string]string{"tenant": "acme"}, times*p.Limit.PerSecond(), mix, time.Minute)
		admitted += a
	}
	most := 100 + int(time.Since(start).Minutes()*1000)
	if admitted > most {
		w.t.Errorf("admitted %d, the limit allows %d", admitted, most)
	}
	if float64(admitted) < least*float64(most) {
		w.t.Errorf("admitted only %d of %d under steady overload", admitted, most)
	}
}

func globalBucket(capacity, perMinute int64) *quota.Policy {
	return &quota.Policy{
		ID: "shared", Key: []string{"tenant"}, Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailClosed,
		Limit: quota.Limit{Capacity: quota.Tokens(capacity) * quota.Token, Refill: quota.Tokens(perMinute) * quota.Token, Period: time.Minute},
	}
}

// The burst is small against a minute's traffic, so that it cannot hide a share that
// is too small.
func TestGlobalLimitFollowsTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket(100, 1000)
		w := newWorld(t, p, time.Second)
		defer w.stop()
		tenant := map[string]string{"tenant": "acme"}
		offered := 0.95 * p.Limit.PerSecond()

		// Until one rebalance has seen the traffic, the split is still equal.
		w.offerAll(tenant, offered, []float64{0.8, 0.1, 0.1}, 5*time.Second)
		if _, denied := w.offerAll(tenant, offered, []float64{0.8, 0.1, 0.1}, 5*time.Minute); denied > 0 {
			t.Errorf("%d checks denied in 5 minutes at 95 %% of the limit", denied)
		}
		if !w.highest.Within(w.limit) || w.highest.Refill < w.limit.Refill/2 {
			t.Errorf("shares in force summed to at most %v of %v", w.highest, w.limit)
		}
	})
}

func TestGlobalLimitHoldsUnderOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := globalBucket(100, 1000)
		w := newWorld(t, p, time.Second)
		defer w.stop()
		w.overload(p, 5, [][]float64{{0.8, 0.1, 0.1}, {0.1, 0.8, 0.1}, {0.05, 0.05, 0.9}}, 0.9)
	})
}

// With regional numbers the limit is each region's own, through however many nodes.
func TestRegionalBucketOverThreeMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &quota.Policy{
			ID: "free", Key: []string{"apiKey"}, Algorithm: quota.TokenBucket, Scope: quota.Regional, OnStoreFailure: quota.FailClosed,
			Limit: quota.Limit{Capacity: 20 * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
		}
		index, err := quota.Compile(1, []*quota.Policy{p}, nil)
		if err != nil {
			t.Fatal(err)
		}
		store := newModelStore(4)
		w := &world{t: t}
		for range 3 {
			engine, err := regional.New(regional.Config{Store: store, Stripes: 4, Standalone: true})
			if err != nil {
				t.Fatal(err)
			}
			engine.SetIndex(index)
			w.engines = append(w.engines, engine)
		}
		w.cancel = func() {}
		defer w.stop()
		key := map[string]string{"apiKey": "ak_1"}
		at := time.Now()
		burst := 0
		for i := range 200 {
			result, err := w.engines[i%3].Check(context.Background(), quota.Request{Attributes: key, Cost: quota.Token})
			if err != nil {
				t.Fatal(err)
			}
			if result.Allowed {
				burst++
			}
		}
		if burst != 20 || time.Since(at) != 0 {
			t.Errorf("admitted %d of 200 at once (in %s), want 20", burst, time.Since(at))
		}
		admitted, _ := w.offerAll(key, 60, []float64{1. / 3, 1. / 3, 1. / 3}, 3*time.Minute)
		if admitted < 299 || admitted > 301 {
			t.Errorf("admitted %d over three minutes, want 300 +- 1", admitted)
		}
	})
}
