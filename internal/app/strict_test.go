package app_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// effective is what a region may act on: its share, or the permanent part of it when its
// lease is over; before it has either, its floor.
func (s *modelStore) effective(policy string, floor quota.Share) quota.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.applied[policy]
	if !ok {
		return floor
	}
	if end, err := s.model.LeaseEnd(0); err != nil || end < micros() {
		return g.Share.Min(g.Permanent)
	}
	return g.Share
}

// strictWorld is a world whose policy is of mode strict. At every tenth of a second what
// the regions may act on is summed up.
type strictWorld struct {
	*world
	policy *quota.Policy
}

func newStrictWorld(t *testing.T, p *quota.Policy) *strictWorld {
	p.Split.OnPartition = quota.Strict
	w := &strictWorld{newWorld(t, p, 2*time.Second), p}
	stopped := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-tick.C:
			}
			if sum := w.sum(); !sum.Within(w.limit) {
				t.Errorf("what the regions may act on sums to %v of %v", sum, w.limit)
				return
			}
		}
	})
	w.done.Go(func() { watch.Wait() })
	t.Cleanup(func() { close(stopped); w.stop() })
	return w
}

func (w *strictWorld) share(i int) quota.Share {
	return w.stores[i].effective(w.policy.ID, coordinator.Floor(threeRegions, threeRegions[i], w.policy))
}

func (w *strictWorld) sum() (sum quota.Share) {
	for i := range w.stores {
		sum = sum.Add(w.share(i))
	}
	return sum
}

var acme = map[string]string{"tenant": "acme"}

// TestStrictGivesTheShareOfACutRegionToTheOthers, when its lease is over, and lets it have
// one again when it is back.
func TestStrictGivesTheShareOfACutRegionToTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStrictWorld(t, globalBucket(300, 6000))
		const perSecond = 100.0
		w.offerAll(acme, 0.8*perSecond, []float64{0.6, 0.2, 0.2}, 20*time.Second)
		before := w.share(0)
		if _, denied := w.offerAll(acme, 0.8*perSecond, []float64{0.6, 0.2, 0.2}, 20*time.Second); denied != 0 {
			t.Errorf("%d denied while all is well", denied)
		}

		w.setCut(true, threeRegions[0])
		cut := time.Now()
		w.offerAll(acme, 0.8*perSecond, []float64{0.6, 0.2, 0.2}, 11*time.Second)
		if w.share(0) != before {
			t.Errorf("%v after %v, want %v: the lease is not over", w.share(0), time.Since(cut), before)
		}
		<-time.After(7 * time.Second)
		floor := coordinator.Floor(threeRegions, threeRegions[0], w.policy)
		if w.share(0) != floor {
			t.Errorf("%v after %v, want the floor %v", w.share(0), time.Since(cut), floor)
		}
		// Nine tenths of the limit are asked for in the other two, who had two fifths.
		w.offerAll(acme, 0.9*perSecond, []float64{0.001, 0.4995, 0.4995}, 5*time.Second)
		if admitted, denied := w.offerAll(acme, 0.9*perSecond, []float64{0.001, 0.4995, 0.4995}, 20*time.Second); denied > 0 {
			t.Errorf("%d admitted, %d denied although the region that is cut off leaves enough", admitted, denied)
		}

		w.setCut(false, threeRegions[0])
		for slice := 0; ; slice++ { // it has backed off, and has a lease before it has a share
			if _, denied := w.offerAll(acme, 0.8*perSecond, []float64{0.6, 0.2, 0.2}, 5*time.Second); denied == 0 {
				break
			}
			if slice == 9 {
				t.Fatal("the region that is back has too little after 50 s")
			}
		}
	})
}

// TestStrictFallsToTheFloorsWithoutCoordinator, all regions at once, and comes
// back with all of the limit.
func TestStrictFallsToTheFloorsWithoutCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStrictWorld(t, globalBucket(300, 6000))
		w.offerAll(acme, 80, []float64{0.6, 0.2, 0.2}, 20*time.Second)
		if w.sum() != w.limit {
			t.Fatalf("%v of %v are in use", w.sum(), w.limit)
		}
		w.setCut(true, threeRegions...)
		<-time.After(20 * time.Second)
		for i, region := range threeRegions {
			if floor := coordinator.Floor(threeRegions, region, w.policy); w.share(i) != floor {
				t.Errorf("%s has %v, want its floor %v", region, w.share(i), floor)
			}
		}
		const floors = 20.0 // percent of 100 a second
		admitted, _ := w.offerAll(acme, 80, []float64{0.6, 0.2, 0.2}, 60*time.Second)
		if most := int(floors*60) + 300; admitted < int(floors*60*0.8) || admitted > most {
			t.Errorf("%d admitted in a minute on the floors", admitted)
		}
		w.setCut(false, threeRegions...)
		<-time.After(20 * time.Second)
		if w.sum() != w.limit {
			t.Errorf("%v of %v are in use again", w.sum(), w.limit)
		}
		if _, denied := w.offerAll(acme, 80, []float64{0.6, 0.2, 0.2}, 20*time.Second); denied != 0 {
			t.Errorf("%d denied although the coordinator is back", denied)
		}
	})
}
