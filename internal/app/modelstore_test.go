package app_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/quota"
)

// modelStore is one region's store on the Go models, with the clock of the test. In a
// synctest bubble that clock is virtual.
type modelStore struct {
	mu      sync.Mutex
	stripes int
	model   *quota.Model
	gens    map[int]string
	epoch   quota.Epoch
	applied map[string]quota.Grant
	shrunk  map[string]shrink
	demand  map[quota.Demand]quota.Demand
	taken   time.Time
	// onApply is called with what the region may act on, under the store's lock.
	onApply func(policy string, share quota.Share)

	names map[string]quota.ID // of buckets that were ever tracked
}

type shrink struct {
	hold quota.Tokens
	at   time.Time
}

func newModelStore(stripes int) *modelStore {
	return &modelStore{
		stripes: stripes, model: quota.NewModel(), gens: map[int]string{},
		applied: map[string]quota.Grant{}, shrunk: map[string]shrink{}, demand: map[quota.Demand]quota.Demand{},
		names: map[string]quota.ID{},
	}
}

func micros() int64 { return time.Now().UnixMicro() }

func (s *modelStore) Acquire(_ context.Context, a quota.Attempt) (quota.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model.Expire(micros())
	return s.model.Acquire(micros(), a)
}

func (s *modelStore) Refund(_ context.Context, _ int, refunds []quota.Refund) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range refunds {
		s.model.Refund(r)
	}
	return nil
}

func (s *modelStore) State(context.Context) (quota.DatasetState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := quota.DatasetState{Complete: len(s.gens) == s.stripes, Empty: len(s.gens) == 0, Epoch: s.epoch, Now: micros()}
	for _, gen := range s.gens {
		state.Gen = gen
	}
	return state, nil
}

func (s *modelStore) Initialise(_ context.Context, gen string, fresh bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.stripes {
		s.model.Initialise(micros(), i, gen, fresh)
		s.gens[i] = gen
	}
	return nil
}

func (s *modelStore) Apply(_ context.Context, epoch quota.Epoch, gen string, grants []quota.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	grants, err := s.track(epoch, gen, grants)
	if err != nil {
		return err
	}
	for i := range s.stripes {
		keys := make([]string, len(grants))
		for k, g := range grants {
			keys[k] = string(quota.AppendShareKey(nil, quota.DefaultKeyPrefix, i, g.ID.Policy))
		}
		if _, err := s.model.Apply(micros(), i, epoch, gen, keys, grants); err != nil {
			return err
		}
	}
	s.epoch = max(s.epoch, epoch)
	for _, g := range grants {
		old, held := s.applied[g.ID.Policy]
		if held && g.Version <= old.Version {
			continue
		}
		if held && g.Share.Capacity < old.Share.Capacity {
			s.shrunk[g.ID.Policy] = shrink{hold: old.Share.Capacity, at: time.Now()}
		}
		s.applied[g.ID.Policy] = g
		if s.onApply != nil {
			s.onApply(g.ID.Policy, g.Share)
		}
	}
	return nil
}

// track applies the grants of keys and returns the others.
func (s *modelStore) track(epoch quota.Epoch, gen string, grants []quota.Grant) (rest []quota.Grant, err error) {
	for _, g := range grants {
		if g.ID.Key == "" {
			rest = append(rest, g)
			continue
		}
		bucket, stripe, err := quota.PlaceOf(g.ID, quota.DefaultKeyPrefix, s.stripes)
		if err != nil {
			return nil, err
		}
		s.names[bucket] = g.ID
		place := quota.Place{Bucket: bucket, ShareKey: string(quota.AppendShareKey(nil, quota.DefaultKeyPrefix, stripe, g.ID.Policy))}
		if _, err := s.model.Track(micros(), stripe, epoch, gen, []quota.Place{place}, []quota.Grant{g}); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

func (s *modelStore) HeldKeys(_ context.Context, ids []quota.ID) ([]quota.QuotaReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reports []quota.QuotaReport
	for _, id := range ids {
		bucket, _, err := quota.PlaceOf(id, quota.DefaultKeyPrefix, s.stripes)
		if err != nil {
			return nil, err
		}
		if k, ok := s.model.HeldKey(micros(), bucket); ok {
			reports = append(reports, quota.QuotaReport{
				ID: id, Version: k.Version, Share: k.Share, Period: s.applied[id.Policy].Limit.Period,
				Hold: k.Hold, Drained: k.Hold <= k.Share.Capacity, Surrendered: k.Surrendered,
			})
		}
	}
	return reports, nil
}

func (s *modelStore) TrackedKeys(context.Context) ([]quota.ID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []quota.ID
	for _, bucket := range s.model.Tracked() {
		ids = append(ids, s.names[bucket])
	}
	return ids, nil
}

func (s *modelStore) Held(_ context.Context, policyIDs []string) ([]quota.QuotaReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reports []quota.QuotaReport
	for _, id := range policyIDs {
		g, ok := s.applied[id]
		if !ok {
			continue
		}
		r := quota.QuotaReport{ID: g.ID, Version: g.Version, Share: g.Share, Permanent: g.Permanent, Period: g.Limit.Period, Drained: true}
		if sh, ok := s.shrunk[id]; ok && g.Algorithm == quota.SlidingLog {
			window := time.Duration(math.Ceil(float64(g.Limit.Period) * (1 + quota.Drift)))
			if time.Since(sh.at) < window && sh.hold > g.Share.Capacity {
				r.Drained, r.Hold = false, sh.hold
			}
		}
		reports = append(reports, r)
	}
	return reports, nil
}

func (s *modelStore) Clocks(context.Context) ([]int64, error) {
	return slices.Repeat([]int64{micros()}, s.stripes), nil
}

func (s *modelStore) Renew(_ context.Context, epoch quota.Epoch, gen string, sent []int64, ttl time.Duration, ids []string) (lapsed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.stripes {
		var keys []string
		for _, id := range ids {
			keys = append(keys, string(quota.AppendShareKey(nil, quota.DefaultKeyPrefix, i, id)))
		}
		over, err := s.model.Renew(micros(), i, quota.LeaseExtension{Epoch: epoch, Gen: gen, Sent: sent[i], TTL: ttl}, keys)
		if err != nil {
			return false, err
		}
		lapsed = lapsed || over
	}
	return lapsed, nil
}

func (s *modelStore) LeaseLeft(context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, err := s.model.LeaseEnd(0)
	return time.Duration(max(0, end-micros())) * time.Microsecond, err
}

func (s *modelStore) AddDemand(_ context.Context, demands []quota.Demand) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range demands {
		id := quota.Demand{Policy: d.Policy, Key: d.Key, Kind: d.Kind}
		sum := s.demand[id]
		sum.Policy, sum.Key, sum.Kind = d.Policy, d.Key, d.Kind
		sum.Offered += d.Offered
		sum.Admitted += d.Admitted
		s.demand[id] = sum
	}
	return nil
}

func (s *modelStore) TakeDemand(context.Context) (quota.DemandWindow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var w quota.DemandWindow
	if !s.taken.IsZero() {
		w.Elapsed = time.Since(s.taken)
	}
	s.taken = time.Now()
	for _, d := range s.demand {
		w.Demands = append(w.Demands, d)
	}
	clear(s.demand)
	return w, nil
}

func (s *modelStore) HoldAgent(context.Context, string, time.Duration) (bool, error) {
	return true, nil
}

// entries lists what the store holds, for a failing test to print.
func (s *modelStore) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d keys, %d shares", s.model.Len(), len(s.applied))
}
