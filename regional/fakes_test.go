package regional_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

const testStripes = 16

// memStore is a region's store in memory: the real algorithms, and failures on demand.
type memStore struct {
	mu      sync.Mutex
	model   *quota.Model
	calls   int
	refunds int
	// clocks and renewals count what is done for leases.
	clocks, renewals int

	// before runs ahead of each attempt, after behind it, both without the lock;
	// an error of before means that nothing was charged.
	before func(ctx context.Context, a quota.Attempt) error
	after  func(ctx context.Context, a quota.Attempt) error
	refund func(stripe int) error

	// The dataset side.
	regions map[int]string // gen by stripe
	fresh   map[int]bool
	epoch   quota.Epoch
	held    map[string]quota.QuotaReport
	shrunk  map[string]time.Time
	algs    map[string]quota.Grant
	demand  map[quota.ID]quota.Demand
	added   map[quota.ID]quota.Demand // like demand, and never taken
	took    time.Time
	agent   string
	until   time.Time
	failing error         // of every dataset operation
	applied []quota.Epoch // asked for, refused or not
	adds    int

	names    map[string]quota.ID // of buckets that were ever tracked
	readKeys int                 // tracked keys that were asked for
}

func newMemStore() *memStore {
	return &memStore{
		model: quota.NewModel(), regions: map[int]string{}, fresh: map[int]bool{},
		held: map[string]quota.QuotaReport{}, shrunk: map[string]time.Time{}, algs: map[string]quota.Grant{},
		demand: map[quota.ID]quota.Demand{}, added: map[quota.ID]quota.Demand{},
		names: map[string]quota.ID{},
	}
}

// initialised is a store whose dataset is there and whose regions never lost anything.
func (s *memStore) initialised() *memStore {
	if err := s.Initialise(context.Background(), "gen-0", true); err != nil {
		panic(err)
	}
	return s
}

func (s *memStore) Acquire(ctx context.Context, a quota.Attempt) (quota.Outcome, error) {
	s.mu.Lock()
	s.calls++
	before, after := s.before, s.after
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, a); err != nil {
			return quota.Outcome{}, err
		}
	}
	s.mu.Lock()
	out, err := s.model.Acquire(time.Now().UnixMicro(), a)
	s.mu.Unlock()
	if err == nil && after != nil {
		if err := after(ctx, a); err != nil {
			return quota.Outcome{}, err
		}
	}
	return out, err
}

func (s *memStore) Refund(_ context.Context, stripe int, refunds []quota.Refund) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refunds++
	if s.refund != nil {
		if err := s.refund(stripe); err != nil {
			return err
		}
	}
	for _, r := range refunds {
		s.model.Refund(r)
	}
	return nil
}

func (s *memStore) set(f func(s *memStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *memStore) countCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *memStore) State(context.Context) (quota.DatasetState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return quota.DatasetState{}, s.failing
	}
	st := quota.DatasetState{
		Epoch: s.epoch, Complete: len(s.regions) == testStripes, Empty: len(s.regions) == 0, Now: time.Now().UnixMicro(),
	}
	gens := slices.Compact(slices.Sorted(maps.Values(s.regions)))
	if len(gens) == 1 {
		st.Gen = gens[0]
	}
	return st, nil
}

func (s *memStore) Initialise(_ context.Context, gen string, fresh bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return s.failing
	}
	for i := range testStripes {
		if s.regions[i] == "" {
			s.fresh[i] = fresh
		}
		s.regions[i] = gen
		s.model.Initialise(time.Now().UnixMicro(), i, gen, fresh)
	}
	return nil
}

// lose drops the data of some stripes.
func (s *memStore) lose(stripes ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range stripes {
		delete(s.regions, i)
	}
	if len(s.regions) == 0 {
		s.model, s.epoch = quota.NewModel(), 0
		clear(s.held)
	}
	for id, q := range s.held {
		q.Version = 0 // one stripe without the record is enough
		s.held[id] = q
	}
}

func (s *memStore) Apply(_ context.Context, epoch quota.Epoch, gen string, grants []quota.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return s.failing
	}
	s.applied = append(s.applied, epoch)
	all := grants
	grants = slices.DeleteFunc(slices.Clone(all), func(g quota.Grant) bool { return g.ID.Key != "" })
	if gen != s.regions[0] || epoch < s.epoch {
		return fmt.Errorf("gen %q epoch %d: %w", gen, epoch, quota.ErrFenced)
	}
	for _, g := range all {
		if g.ID.Key == "" {
			continue
		}
		bucket, stripe, err := quota.PlaceOf(g.ID, "rl", testStripes)
		if err != nil {
			return err
		}
		s.names[bucket] = g.ID
		place := quota.Place{Bucket: bucket, ShareKey: string(quota.AppendShareKey(nil, "rl", stripe, g.ID.Policy))}
		if _, err := s.model.Track(time.Now().UnixMicro(), stripe, epoch, gen, []quota.Place{place}, []quota.Grant{g}); err != nil {
			return err
		}
	}
	for stripe := range testStripes {
		keys := make([]string, len(grants))
		for i := range grants {
			keys[i] = string(quota.AppendShareKey(nil, "rl", stripe, grants[i].ID.Policy))
		}
		if _, err := s.model.Apply(time.Now().UnixMicro(), stripe, epoch, gen, keys, grants); err != nil {
			return err
		}
	}
	newEpoch := epoch > s.epoch
	s.epoch = epoch
	for _, g := range grants {
		old := s.held[g.ID.Policy]
		switch {
		case g.Drop:
			delete(s.held, g.ID.Policy)
		case newEpoch || g.Version > old.Version:
			if g.Share.Capacity < old.Share.Capacity {
				s.shrunk[g.ID.Policy] = time.Now()
				old.Hold = old.Share.Capacity
			}
			s.algs[g.ID.Policy] = g
			s.held[g.ID.Policy] = quota.QuotaReport{ID: g.ID, Version: g.Version, Share: g.Share, Permanent: g.Permanent, Period: g.Limit.Period, Hold: old.Hold}
		}
	}
	return nil
}

func (s *memStore) Held(_ context.Context, ids []string) ([]quota.QuotaReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return nil, s.failing
	}
	var out []quota.QuotaReport
	for _, id := range ids {
		q, ok := s.held[id]
		if !ok {
			continue
		}
		g := s.algs[id]
		window := time.Duration(float64(g.Limit.Period) * (1 + quota.Drift))
		q.Drained = g.Algorithm != quota.SlidingLog || q.Hold == 0 || time.Since(s.shrunk[id]) >= window
		if q.Drained {
			q.Hold = 0
		}
		out = append(out, q)
	}
	return out, nil
}

func (s *memStore) AddDemand(_ context.Context, demands []quota.Demand) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return s.failing
	}
	s.adds++
	for _, d := range demands {
		id := quota.ID{Policy: d.Policy, Key: d.Key}
		if d.Kind != quota.DemandShared {
			id.Key = fmt.Sprint(d.Kind) + id.Key
		}
		for _, sums := range []map[quota.ID]quota.Demand{s.demand, s.added} {
			sum := sums[id]
			sum.Policy, sum.Key, sum.Kind = d.Policy, d.Key, d.Kind
			sum.Offered, sum.Admitted = sum.Offered+d.Offered, sum.Admitted+d.Admitted
			sums[id] = sum
		}
	}
	return nil
}

func (s *memStore) TakeDemand(context.Context) (quota.DemandWindow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return quota.DemandWindow{}, s.failing
	}
	w := quota.DemandWindow{Demands: slices.Collect(maps.Values(s.demand))}
	if !s.took.IsZero() {
		w.Elapsed = time.Since(s.took)
	}
	s.took = time.Now()
	clear(s.demand)
	return w, nil
}

func (s *memStore) HoldAgent(_ context.Context, node string, ttl time.Duration) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return false, s.failing
	}
	now := time.Now()
	if s.agent != "" && s.agent != node && now.Before(s.until) {
		return false, nil
	}
	if ttl == 0 {
		s.agent = ""
		return false, nil
	}
	s.agent, s.until = node, now.Add(ttl)
	return true, nil
}

// pass lets d go by; in a synctest bubble it takes no time.
func pass(d time.Duration) { <-time.After(d) }

var errBroken = errors.New("connection reset")

// hang makes attempts wait for the channel (or their context) before they run.
func hang(release <-chan struct{}) func(context.Context, quota.Attempt) error {
	return func(ctx context.Context, _ quota.Attempt) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// broken makes every attempt fail at once without a charge.
func broken(context.Context, quota.Attempt) error { return errBroken }

// bundle is an engine over a store in memory.
type bundle struct {
	*regional.Engine
	store *memStore
	reg   *prometheus.Registry
}

// floorOf is a tenth of the limit.
func floorOf(p *quota.Policy) quota.Share {
	return quota.Share{Capacity: p.Limit.Capacity / 10, Refill: p.Limit.Refill / 10}
}

type option func(*regional.Config)

func setup(tb testing.TB, store *memStore, policies []*quota.Policy, options ...option) *bundle {
	tb.Helper()
	b := setupOver(tb, store, policies, options...)
	b.store = store
	return b
}

func setupOver(tb testing.TB, store regional.Store, policies []*quota.Policy, options ...option) *bundle {
	tb.Helper()
	b := &bundle{reg: prometheus.NewRegistry()}
	cfg := regional.Config{
		Store: store, Stripes: testStripes, Registerer: b.reg,
		Floor: floorOf,
	}
	for _, o := range options {
		o(&cfg)
	}
	e, err := regional.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	b.Engine = e
	e.SetIndex(index(tb, 1, policies...))
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			tb.Error(err)
		}
	})
	return b
}

func index(tb testing.TB, revision int64, policies ...*quota.Policy) *quota.Index {
	tb.Helper()
	ix, err := quota.Compile(revision, policies, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return ix
}

// bucket is a regional token bucket on every request, keyed by user. With
// perMinute zero it refills too slowly for any test to notice.
func bucket(id string, capacity, perMinute quota.Tokens) *quota.Policy {
	limit := quota.Limit{Capacity: capacity * quota.Token, Refill: perMinute * quota.Token, Period: time.Minute}
	if perMinute == 0 {
		limit.Refill, limit.Period = 1, 1000*time.Hour
	}
	return &quota.Policy{
		ID: id, Key: []string{"user"}, Algorithm: quota.TokenBucket, Scope: quota.Regional,
		Limit: limit, OnStoreFailure: quota.FailClosed,
	}
}

func with(p *quota.Policy, f func(*quota.Policy)) *quota.Policy {
	f(p)
	return p
}

func logPolicy(id string, limit quota.Tokens, window time.Duration) *quota.Policy {
	return &quota.Policy{
		ID: id, Key: []string{"user"}, Algorithm: quota.SlidingLog, Scope: quota.Regional,
		Limit: quota.Limit{Capacity: limit * quota.Token, Period: window}, OnStoreFailure: quota.FailClosed,
	}
}

func request(attrs ...string) quota.Request {
	r := quota.Request{Cost: quota.Token, Attributes: map[string]string{"user": "u1"}}
	for i := 0; i+1 < len(attrs); i += 2 {
		r.Attributes[attrs[i]] = attrs[i+1]
	}
	return r
}

func (b *bundle) mustCheck(tb testing.TB, r quota.Request) quota.Result {
	tb.Helper()
	res, err := b.Check(context.Background(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

func decision(tb testing.TB, res quota.Result, policy string) quota.Decision {
	tb.Helper()
	for _, d := range res.Decisions {
		if d.PolicyID == policy {
			return d
		}
	}
	tb.Fatalf("no decision of %q in %+v", policy, res)
	return quota.Decision{}
}

// remaining peeks at what a policy could still admit.
func (b *bundle) remaining(tb testing.TB, r quota.Request, policy string) int64 {
	tb.Helper()
	r.Cost = 0
	res, err := b.Peek(context.Background(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return decision(tb, res, policy).Remaining
}

// metric sums the series of a counter or gauge whose labels include want.
func (b *bundle) metric(tb testing.TB, name string, want map[string]string) float64 {
	tb.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	sum, found := 0.0, false
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		found = true
	series:
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			for k, v := range want {
				if got[k] != v {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	if !found && want == nil {
		tb.Fatalf("no metric %q", name)
	}
	return sum
}
