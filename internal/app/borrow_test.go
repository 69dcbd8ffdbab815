package app_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

// keyShare is what a region may use of one key now: the key's own share, or else its policy's.
func (s *modelStore) keyShare(policy string, key quota.ID) quota.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	for bucket, id := range s.names {
		if id == key {
			if k, ok := s.model.HeldKey(micros(), bucket); ok {
				return k.Share
			}
		}
	}
	return s.applied[policy].Share
}

// watchKey checks ten times a second that what the
// regions may use of a key sums to at most the limit.
func (w *world) watchKey(ctx context.Context, key quota.ID) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var sum quota.Share
		for _, s := range w.stores {
			sum = sum.Add(s.keyShare(key.Policy, key))
		}
		if !sum.Within(w.limit) {
			w.t.Errorf("the regions may use %v of the key, over the limit %v", sum, w.limit)
		}
	}
}

func tenantKey(t *testing.T, p *quota.Policy, tenant string) quota.ID {
	t.Helper()
	var b quota.AttributeBuilder
	b.AddMap(map[string]string{"tenant": tenant})
	attrs, err := b.Attributes()
	if err != nil {
		t.Fatal(err)
	}
	bucket, _ := quota.AppendBucketKey(nil, quota.DefaultKeyPrefix, 4, p, attrs)
	return quota.ID{Policy: p.ID, Key: quota.TrackedKey(quota.Partition(p, attrs), string(bucket))}
}

// A minute passes between rebalances. A flash crowd of one tenant in one region is
// served within seconds nevertheless, by a split of its own, through real engines,
// agents and the coordinator; other tenants notice nothing.
func TestFlashCrowdDoesNotWaitForTheRebalance(t *testing.T) {
	log := &quota.Policy{
		ID: "log", Key: []string{"tenant"}, Algorithm: quota.SlidingLog, OnStoreFailure: quota.FailClosed,
		Limit: quota.Limit{Capacity: 1000 * quota.Token, Period: 10 * time.Second},
	}
	for _, p := range []*quota.Policy{globalBucket(200, 6000), log} {
		t.Run(p.ID, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, p, time.Minute)
				defer w.stop()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				w.done.Go(func() { w.watchKey(ctx, tenantKey(t, p, "acme")) })
				tenant, other := map[string]string{"tenant": "acme"}, map[string]string{"tenant": "quiet"}
				w.offerAll(tenant, 30, []float64{0.4, 0.3, 0.3}, 2*time.Second) // first shares
				if _, denied := w.offerAll(tenant, 30, []float64{0.4, 0.3, 0.3}, 48*time.Second); denied > 0 {
					t.Errorf("%d denied of what fits the even split", denied)
				}
				w.done.Go(func() {
					if _, denied := w.offer(w.engines[1], other, 20, 40*time.Second); denied > 0 {
						t.Errorf("%d of another tenant's checks denied", denied)
					}
				})
				// The next rebalance is half a minute away.
				start := time.Now()
				_, first := w.offerAll(tenant, 90, []float64{0.8, 0.1, 0.1}, 4*time.Second)
				_, then := w.offerAll(tenant, 90, []float64{0.8, 0.1, 0.1}, 20*time.Second)
				t.Logf("%d denied in the first %v, %d in the 20 s after", first, 4*time.Second, then)
				if first > 60 || then > 5 {
					t.Errorf("%d denied in the first seconds and %d afterwards, at 90 %% of the limit", first, then)
				}
				if next := w.c.Status().At; next.Sub(start) > 30*time.Second {
					t.Errorf("measured over %v, which holds a rebalance", next.Sub(start))
				}
				cancel()
			})
		})
	}
}
