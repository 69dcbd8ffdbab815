package lua_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

func (a *agreement) grant(id string, algorithm quota.Algorithm) quota.Grant {
	l := a.limits[id]
	switch a.r.IntN(25) {
	case 0: // another capacity
		l.Capacity = max(token, min(quota.MaxTokens, l.Capacity/token*quota.Tokens(1+a.r.IntN(3))/2*token))
	case 1: // another period
		if algorithm == quota.TokenBucket || a.r.IntN(3) == 0 {
			l.Period = time.Duration(1+a.r.Int64N(100_000_000)) * time.Microsecond
		}
	}
	a.limits[id] = l
	part := func(t quota.Tokens) quota.Tokens {
		switch a.r.IntN(6) {
		case 0:
			return 0
		case 1:
			return t
		}
		return quota.Tokens(a.r.Int64N(int64(t) + 1))
	}
	g := quota.Grant{
		ID: quota.ID{Policy: id}, Version: a.version, Algorithm: algorithm, Limit: l,
		Share: quota.Share{Capacity: part(l.Capacity), Refill: part(l.Refill)},
		Floor: quota.Share{Capacity: l.Capacity / 5, Refill: l.Refill / 5},
	}
	g.Permanent = g.Share
	if a.r.IntN(3) == 0 {
		g.Permanent = quota.Share{Capacity: part(g.Share.Capacity), Refill: part(g.Share.Refill)}
	}
	if a.r.IntN(6) == 0 {
		g.Gift = part(l.Capacity)
	}
	if a.r.IntN(6) == 0 {
		g.Version = a.r.Int64N(a.version + 1)
	}
	g.Drop = a.r.IntN(15) == 0
	a.version++
	return g
}

// home is the quota that a key mostly has.
func (a *agreement) home(stripe, key int) quota.Entry {
	return a.quotas[(key*7+stripe*11)%len(a.quotas)]
}

// bucket names a key's bucket; one of a policy names it, so that it can be tracked.
func (a *agreement) bucket(stripe, key int) string {
	name := fmt.Sprintf("k%d", key)
	if policy := a.home(stripe, key).ShareKey; policy != "" {
		name = "t:" + name + ":" + policy
	}
	return a.store.BucketKey(stripe, name)
}

// keyGrants are grants of a few keys that are mostly a policy's own.
func (a *agreement) keyGrants() (grants []quota.Grant, stripes []int) {
	seen := map[quota.ID]bool{}
	for range 1 + a.r.IntN(4) {
		stripe, key := a.r.IntN(agreementStripes), a.r.IntN(14)
		e := a.home(stripe, key)
		if e.ShareKey == "" {
			continue
		}
		g := a.grant(e.ShareKey, e.Algorithm)
		g.Version = max(1, g.Version) // zero is no version of a grant
		g.ID.Key = quota.TrackedKey(uint64(stripe+agreementStripes*key), a.bucket(stripe, key))
		if g.Drop = a.r.IntN(4) == 0; !seen[g.ID] {
			seen[g.ID] = true
			grants, stripes = append(grants, g), append(stripes, stripe)
		}
	}
	return grants, stripes
}

// trackModels applies grants of keys to the models.
func (a *agreement) trackModels(epoch quota.Epoch, gen string, grants []quota.Grant, stripes []int) error {
	var failed error
	for stripe := range agreementStripes {
		var places []quota.Place
		var mine []quota.Grant
		for i, g := range grants {
			if stripes[i] != stripe {
				continue
			}
			bucket, at, err := quota.PlaceOf(g.ID, a.store.Prefix(), agreementStripes)
			if err != nil || at != stripe {
				return fmt.Errorf("key %q is on stripe %d: %w", g.ID.Key, at, err)
			}
			places = append(places, quota.Place{Bucket: bucket, ShareKey: a.store.ShareKey(stripe, g.ID.Policy)})
			mine = append(mine, g)
		}
		if len(mine) == 0 {
			continue
		}
		if err := a.tick(stripe); err != nil {
			return err
		}
		if _, err := a.models[stripe].Track(a.now, stripe, epoch, gen, places, mine); err != nil {
			failed = err
		}
	}
	return failed
}

func (a *agreement) applyModels(epoch quota.Epoch, gen string, grants []quota.Grant) error {
	var failed error
	for stripe := range agreementStripes {
		keys := make([]string, len(grants))
		for i, g := range grants {
			keys[i] = a.store.ShareKey(stripe, g.ID.Policy)
		}
		if err := a.tick(stripe); err != nil {
			return err
		}
		if _, err := a.models[stripe].Apply(a.now, stripe, epoch, gen, keys, grants); err != nil {
			failed = err
		}
	}
	return failed
}

// apply grants shares of policies, of tracked keys, or both at once.
func (a *agreement) apply(tracked bool) error {
	var grants, keyGrants []quota.Grant
	var stripes []int
	if tracked {
		keyGrants, stripes = a.keyGrants()
	}
	seen := map[string]bool{}
	for range 1 + a.r.IntN(5) {
		if tracked && a.r.IntN(4) > 0 {
			break
		}
		e := a.quotas[len(bucketLimits)+len(logLimits)+a.r.IntN(len(a.quotas)-len(bucketLimits)-len(logLimits))]
		if !seen[e.ShareKey] {
			seen[e.ShareKey] = true
			grants = append(grants, a.grant(e.ShareKey, e.Algorithm))
		}
	}
	gen, epoch := a.gen, a.epoch
	switch a.r.IntN(12) {
	case 0:
		a.epoch++
		epoch = a.epoch
	case 1:
		epoch--
	case 2:
		gen = "other"
	}
	if gen == "" {
		gen = "none"
	}
	a.note("apply %q %d %+v %+v", gen, epoch, keyGrants, grants)
	wantErr := a.trackModels(epoch, gen, keyGrants, stripes)
	if wantErr == nil && (len(keyGrants) == 0 || len(grants) > 0 || a.swept != [2]any{gen, epoch}) {
		if wantErr = a.applyModels(epoch, gen, grants); wantErr == nil {
			a.swept = [2]any{gen, epoch}
		}
	}
	// Whatever the order they come in, those of keys go first.
	all := slices.Concat(grants, keyGrants)
	a.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	err := a.store.Apply(a.t.Context(), epoch, gen, all)
	for _, kind := range []error{quota.ErrFenced, quota.ErrUninitialised} {
		if errors.Is(wantErr, kind) && errors.Is(err, kind) {
			return nil
		}
	}
	if err != nil || wantErr != nil {
		return fmt.Errorf("model fails with %w, scripts with %w", wantErr, err)
	}
	return nil
}

// heldKeys compares what the store and the models say of tracked keys.
func (a *agreement) heldKeys() error {
	a.note("held keys")
	var ids []quota.ID
	want := map[quota.ID]quota.KeyState{}
	for stripe := range agreementStripes {
		if err := a.tick(stripe); err != nil {
			return err
		}
		for key := range 14 {
			policy := a.home(stripe, key).ShareKey
			if policy == "" {
				continue
			}
			bucket := a.bucket(stripe, key)
			id := quota.ID{Policy: policy, Key: quota.TrackedKey(uint64(stripe+agreementStripes*key), bucket)}
			ids = append(ids, id)
			if state, ok := a.models[stripe].HeldKey(a.now, bucket); ok {
				want[id] = state
			}
		}
	}
	got, err := a.store.HeldKeys(a.t.Context(), ids)
	if err != nil {
		return err
	}
	listed, err := a.store.TrackedKeys(a.t.Context())
	if err != nil {
		return err
	}
	for i := range got {
		q := &got[i]
		state, ok := want[q.ID]
		if !ok || q.Version != state.Version || q.Share != state.Share || q.Hold != state.Hold || q.Surrendered != state.Surrendered || q.Drained != (q.Hold == q.Share.Capacity) {
			return fmt.Errorf("key %v: held %+v, want %+v (%t)", q.ID, *q, state, ok)
		}
		if !slices.Contains(listed, q.ID) {
			return fmt.Errorf("key %v is held and not listed", q.ID)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d keys held, want %d", len(got), len(want))
	}
	a.tracked += len(got)
	return nil
}

// held compares what the store reports of its records with what the models peek.
func (a *agreement) held() error {
	ids := make([]string, 0, len(a.limits))
	for id := range a.limits {
		ids = append(ids, id)
	}
	a.note("held")
	got, err := a.store.Held(a.t.Context(), ids)
	if err != nil {
		return err
	}
	byID := map[string]quota.QuotaReport{}
	for _, q := range got {
		byID[q.ID.Policy] = q
	}
	for _, id := range ids {
		want, known := quota.QuotaReport{Version: -1}, false
		for stripe := range agreementStripes {
			version, share, ok := a.models[stripe].Held(a.store.ShareKey(stripe, id))
			known = known || ok
			if want.Version < 0 || version < want.Version {
				want.Version = version
			}
			// Stripes may count by different periods; the longest is reported.
			period := a.models[stripe].HeldPeriod(a.store.ShareKey(stripe, id))
			longer := max(want.Period, period)
			want.Share = want.Share.Per(want.Period, longer).Max(share.Per(period, longer))
			want.Period = longer
		}
		q, ok := byID[id]
		if ok != known || known && (q.Version != want.Version || q.Share != want.Share) {
			return fmt.Errorf("policy %s: held %+v (%t), want version %d share %+v (%t)", id, q, ok, want.Version, want.Share, known)
		}
	}
	return nil
}
