package quota_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirhq/weir/quota"
)

// The promise for tracked keys: a key that leaves its policy's split, is moved about on
// its own, with the tokens that shrinks cut off carried to the regions that grow, and
// returns, is admitted no more than its limit in any interval of true time.

// trackedWorld tracks keys of a world, one at a time.
type trackedWorld struct {
	*world
	// unparked breaks a rule on purpose: grows bring what nobody surrendered.
	unparked bool
	// unequal breaks a rule on purpose: a key is dropped while its shares differ.
	unequal bool
}

// grantKey gives a region a share of a key and returns what was surrendered.
func (w *trackedWorld) grantKey(i int, name string, share quota.Share, gift quota.Tokens, drop bool) (quota.Tokens, error) {
	g := w.regions[i]
	w.version++
	grant := quota.Grant{
		ID: quota.ID{Policy: "p", Key: name}, Version: w.version, Algorithm: quota.TokenBucket,
		Limit: w.limit, Floor: w.floor, Share: share, Permanent: share, Gift: gift, Drop: drop,
	}
	now := g.clock(w.now)
	if _, err := g.model.Track(now, 0, 1, "g", []quota.Place{{Bucket: name, ShareKey: "share"}}, []quota.Grant{grant}); err != nil {
		return 0, err
	}
	state, _ := g.model.HeldKey(now, name)
	return state.Surrendered, nil
}

// moveKey takes a key's shares from one split to another: the shrinking ones first, and
// what they surrendered goes to those that grow.
func (w *trackedWorld) moveKey(name string, from, to []quota.Share) error {
	parked := quota.Tokens(0)
	for _, i := range w.r.Perm(len(w.regions)) {
		least := from[i].Min(to[i])
		if least == from[i] && w.r.IntN(2) == 0 {
			continue
		}
		cut, err := w.grantKey(i, name, least, 0, false)
		if err != nil {
			return err
		}
		parked += cut
		if err := w.traffic(w.r.IntN(3)); err != nil {
			return err
		}
	}
	for _, i := range w.r.Perm(len(w.regions)) {
		gift := min(parked, max(0, to[i].Capacity-from[i].Capacity))
		if w.unparked {
			gift = max(0, to[i].Capacity-from[i].Capacity)
		}
		parked -= min(parked, gift)
		if _, err := w.grantKey(i, name, to[i], gift, false); err != nil {
			return err
		}
		if err := w.traffic(w.r.IntN(3)); err != nil {
			return err
		}
	}
	return nil
}

// track takes a key out of the default split, about, and back.
func (w *trackedWorld) track(name string, moves int) error {
	shares := make([]quota.Share, len(w.regions))
	for i, g := range w.regions {
		shares[i] = g.share
		if _, err := w.grantKey(i, name, shares[i], 0, false); err != nil {
			return err
		}
		if err := w.traffic(w.r.IntN(2)); err != nil {
			return err
		}
	}
	first := slices.Clone(shares)
	for range moves {
		if w.r.IntN(8) == 0 {
			if err := w.loseTracked(w.r.IntN(len(w.regions)), name, shares); err != nil {
				return err
			}
		}
		next := w.split()
		if err := w.moveKey(name, shares, next); err != nil {
			return err
		}
		shares = next
	}
	if !w.unequal {
		if err := w.moveKey(name, shares, first); err != nil {
			return err
		}
	}
	for _, i := range w.r.Perm(len(w.regions)) {
		if _, err := w.grantKey(i, name, quota.Share{}, 0, true); err != nil {
			return err
		}
		if err := w.traffic(w.r.IntN(2)); err != nil {
			return err
		}
	}
	return nil
}

// loseTracked replaces a region's dataset; its keys come back before its policies.
func (w *trackedWorld) loseTracked(i int, name string, shares []quota.Share) error {
	g := w.regions[i]
	g.model = quota.NewModel()
	g.model.Initialise(g.clock(w.now), 0, "g", false)
	if err := w.traffic(w.r.IntN(3)); err != nil {
		return err
	}
	if _, err := w.grantKey(i, name, shares[i], 0, false); err != nil {
		return err
	}
	if err := w.traffic(w.r.IntN(3)); err != nil {
		return err
	}
	return w.grant(i, g.share, 0)
}

func (w *trackedWorld) live(rounds int) error {
	if err := w.run(1); err != nil {
		return err
	}
	for range rounds {
		name := w.names[w.r.IntN(len(w.names))]
		if w.busy {
			name = "plain"
		}
		if err := w.track(name, 1+w.r.IntN(5)); err != nil {
			return fmt.Errorf("%s tracked: %w", name, err)
		}
		if err := w.move(w.split()); err != nil {
			return err
		}
	}
	return nil
}

func TestGlobalEnvelopeHoldsForTrackedKeys(t *testing.T) {
	t.Parallel()
	for seed := range uint64(120) {
		if err := (&trackedWorld{world: newWorld(seed)}).live(8); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The test above must notice what it is there for.
func TestTrackedEnvelopeTestCatchesMutants(t *testing.T) {
	t.Parallel()
	for name, mutate := range map[string]func(w *trackedWorld){
		"grows bring tokens that nobody surrendered": func(w *trackedWorld) { w.unparked = true },
		"a key is dropped while its shares differ":   func(w *trackedWorld) { w.unequal = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(60) {
				w := &trackedWorld{world: newWorld(seed)}
				mutate(w)
				if err := w.live(8); err != nil {
					t.Logf("noticed in world %d: %v", seed, err)
					return
				}
			}
			t.Error("not noticed in any of 60 worlds")
		})
	}
}
