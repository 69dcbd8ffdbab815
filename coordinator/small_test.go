package coordinator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// setDemand changes what a region offers of every quota.
func (r *fakeRegion) setDemand(perSecond float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.demand = perSecond
}

// Fault list 19: a limit of three per second does not round to nothing among 5 or 50
// regions. Shares are whole tokens that sum exactly to the limit; a region without a
// token that begins to ask has one after one rebalance, and all three after a few. At
// no instant do the regions use more than the limit.
func TestTinyLimitIsUsableFromAnyRegion(t *testing.T) {
	const interval = 10 * time.Second
	limit := quota.Limit{Capacity: 3 * quota.Token, Refill: 3 * quota.Token, Period: time.Second}
	bucket := &quota.Policy{ID: "api", Algorithm: quota.TokenBucket, Limit: limit}
	log := &quota.Policy{ID: "api", Algorithm: quota.SlidingLog, Limit: quota.Limit{Capacity: limit.Capacity, Period: time.Second}}
	for _, n := range []int{5, 50} {
		for _, policy := range []*quota.Policy{bucket, log} {
			t.Run(fmt.Sprintf("%d regions, %s", n, policy.Algorithm), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tinyLimit(t, n, policy, interval) })
			})
		}
	}
}

func tinyLimit(t *testing.T, n int, policy *quota.Policy, interval time.Duration) {
	names := make([]quota.Region, n)
	for i := range names {
		names[i] = quota.Region(fmt.Sprintf("r%02d", i))
	}
	c := newCoordinator(t, coordinator.Config{Regions: names, Interval: interval})
	if err := c.SetPolicies(1, []*quota.Policy{policy}); err != nil {
		t.Fatal(err)
	}
	if !coordinator.SmallLimit(policy, n) || !c.Status().Quotas[0].Small {
		t.Error("the limit is not marked as small")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	regions := make([]*fakeRegion, n)
	for i, name := range names {
		regions[i] = newRegion(name, 0)
		wg.Go(func() { regions[i].run(ctx, c) })
	}
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	pass := func(d time.Duration) {
		for range d / (50 * time.Millisecond) {
			<-time.After(50 * time.Millisecond)
			var sum quota.Share
			for _, r := range regions {
				sum = sum.Add(r.share())
			}
			if !sum.Within(policy.Limit.Share()) {
				t.Fatalf("the shares in use sum to %v", sum)
			}
		}
	}
	pass(2 * interval)
	empty := 0
	for _, busy := range []int{0, n / 2, n - 1, 1} {
		before := regions[busy].share()
		empty += count(before.Capacity == 0)
		regions[busy].setDemand(3)
		pass(interval + 3*time.Second)
		if got := regions[busy].share(); got.Capacity < quota.Token || policy.Algorithm == quota.TokenBucket && got.Refill == 0 {
			t.Errorf("region %d asks for the whole limit and has %v after one rebalance, %v before", busy, got, before)
		}
		pass(4 * interval)
		if got := regions[busy].share(); got.Capacity != policy.Limit.Capacity {
			t.Errorf("region %d alone asks for the whole limit and has %v after five rebalances", busy, got)
		}
		var sum quota.Share
		for _, s := range c.Status().Quotas[0].Regions {
			if s.Share.Capacity%quota.Token != 0 {
				t.Errorf("%s is to have %v, which is no whole number of tokens", s.Region, s.Share.Capacity)
			}
			sum = sum.Add(s.Share)
		}
		if sum.Capacity != policy.Limit.Capacity || policy.Algorithm == quota.TokenBucket && sum.Refill != policy.Limit.Refill {
			t.Errorf("the split sums to %v, the limit is %v", sum, policy.Limit.Share())
		}
		regions[busy].setDemand(0)
		pass(interval)
	}
	if empty == 0 {
		t.Error("no region began without a token: nothing was shown")
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
