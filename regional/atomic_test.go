package regional_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

// moody is a store whose calls and refunds do what a draw says.
type moody struct {
	mu    sync.Mutex
	moods map[int]string // by stripe
}

func (m *moody) mood(stripe int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moods[stripe]
}

func (m *moody) set(stripe int, mood string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moods[stripe] = mood
}

func (m *moody) before(ctx context.Context, a quota.Attempt) error {
	delay := 20 * time.Millisecond // past the short deadline
	switch m.mood(a.Stripe) {
	case "":
		return nil
	case "broken":
		return errBroken
	case "lost":
		return quota.ErrUninitialised
	case "stuck":
		delay = 80 * time.Millisecond // past every deadline
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// All or nothing: whatever stripes fail, answer late or refuse, and whatever
// modes the policies have, every quota ends up charged with exactly the costs of
// the admitted checks that its store group took part in. None is charged for a
// check that was denied, once the dust has settled.
func TestAllOrNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		modes := make([]quota.FailureMode, 4)
		for i := range modes {
			modes[i] = rapid.SampledFrom([]quota.FailureMode{quota.FailClosed, quota.FailOpen, quota.FailLocal}).Draw(rt, "mode")
		}
		patience := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond}), 4, 4).Draw(rt, "deadline")
		capacities := rapid.SliceOfN(rapid.Int64Range(0, 12), 4, 4).Draw(rt, "capacity")
		type act struct {
			cost  int64
			moods [4]int
		}
		acts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) act {
			a := act{cost: rapid.Int64Range(0, 4).Draw(rt, "cost")}
			for i := range a.moods {
				a.moods[i] = rapid.IntRange(0, 6).Draw(rt, "mood")
			}
			return a
		}), 1, 25).Draw(rt, "checks")
		moods := []string{"", "", "", "slow", "stuck", "broken", "lost"}

		var failure string // told outside: rapid wants its own goroutine
		synctest.Test(t, func(t *testing.T) {
			store, m := newMemStore(), &moody{moods: map[int]string{}}
			store.before = m.before
			var policies []*quota.Policy
			for i := range 4 {
				p := with(bucket(fmt.Sprint("p", i), quota.Tokens(capacities[i]), 0), failing(modes[i]))
				if i == 3 { // a log, so that exact entries must come back
					p = with(logPolicy("p3", quota.Tokens(capacities[i]), 1000*time.Hour), failing(modes[i]))
				}
				p.Key = []string{fmt.Sprint("k", i%3)} // p0 and p3 share a stripe
				p.StoreDeadline = patience[i]
				policies = append(policies, p)
			}
			b := setup(t, store, policies)
			r := request("k0", "a", "k1", "b", "k2", "c")
			charged := map[string]int64{}
			for _, a := range acts {
				stripes := map[int]string{}
				for i, p := range policies {
					if _, ok := stripes[stripeOf(p, r)]; !ok {
						stripes[stripeOf(p, r)] = moods[a.moods[i]]
					}
				}
				for stripe, mood := range stripes {
					m.set(stripe, mood)
					if mood == "slow" && waitsLong(policies, stripe, r) {
						stripes[stripe] = "" // 20 ms are in time here
					}
				}
				check := r
				check.Cost = quota.Tokens(a.cost) * quota.Token
				res := b.mustCheck(t, check)
				pass(time.Second) // late answers and give-backs
				synctest.Wait()
				for _, p := range policies {
					d := decision(t, res, p.ID)
					if !res.Allowed {
						continue
					}
					if !d.Allowed {
						failure = fmt.Sprintf("admitted although %s denied: %+v", p.ID, res)
						return
					}
					if stripes[stripeOf(p, r)] == "" {
						charged[p.ID] += a.cost
					}
				}
				if res.Allowed {
					settleSlow(policies, stripes, charged, capacities, r, a.cost)
				}
				for stripe := range stripes {
					m.set(stripe, "")
				}
				for i, p := range policies {
					if got, want := b.remaining(t, r, p.ID), capacities[i]-charged[p.ID]; got != want {
						failure = fmt.Sprintf("%s has %d left, want %d (cost %d, admitted %v, moods %v)", p.ID, got, want, a.cost, res.Allowed, stripes)
						return
					}
				}
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

func stripeOf(p *quota.Policy, r quota.Request) int {
	var b quota.AttributeBuilder
	b.AddMap(r.Attributes)
	attrs, err := b.Attributes()
	if err != nil {
		panic(err)
	}
	return quota.Stripe(testStripes, p, attrs)
}

// waitsLong reports whether every policy on the stripe has a deadline of 50 ms.
func waitsLong(policies []*quota.Policy, stripe int, r quota.Request) bool {
	for _, p := range policies {
		if stripeOf(p, r) == stripe && p.StoreDeadline == 0 {
			return false
		}
	}
	return true
}

// groupFits reports whether all quotas on the stripe of policies[i] have room.
func groupFits(policies []*quota.Policy, i int, charged map[string]int64, capacities []int64, r quota.Request, cost int64) bool {
	for j, p := range policies {
		if stripeOf(p, r) == stripeOf(policies[i], r) && capacities[j]-charged[p.ID] < cost {
			return false
		}
	}
	return true
}

// settleSlow books the late charges of an admitted check: a slow or stuck stripe
// runs the attempt after the deadline, and charges when everything on it fits.
func settleSlow(policies []*quota.Policy, stripes map[int]string, charged map[string]int64, capacities []int64, r quota.Request, cost int64) {
	for stripe, mood := range stripes {
		if mood != "slow" && mood != "stuck" {
			continue
		}
		for i, p := range policies {
			if stripeOf(p, r) == stripe && groupFits(policies, i, charged, capacities, r, cost) {
				for _, q := range policies {
					if stripeOf(q, r) == stripe {
						charged[q.ID] += cost
					}
				}
				break
			}
		}
	}
}
