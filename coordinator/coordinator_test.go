package coordinator_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
)

var three = []quota.Region{"us-east", "eu-west", "ap-south"}

func perMinute(id string, n int64) *quota.Policy {
	t := quota.Tokens(n) * quota.Token
	return &quota.Policy{ID: id, Algorithm: quota.TokenBucket, Limit: quota.Limit{Capacity: t, Refill: t, Period: time.Minute}}
}

func newCoordinator(t *testing.T, cfg coordinator.Config) *coordinator.Coordinator {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	if cfg.Regions == nil {
		cfg.Regions = three
	}
	if cfg.Ledger == nil {
		cfg.Ledger = memory.NewComplete()
	}
	c, err := coordinator.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// fakeRegion reports, applies what it is told, and offers a rate of demand.
type fakeRegion struct {
	name    quota.Region
	gen     string
	demand  float64
	mu      sync.Mutex
	epoch   quota.Epoch
	shares  map[quota.ID]quota.Grant
	reports int
	fresh   bool
}

func newRegion(name quota.Region, demand float64) *fakeRegion {
	return &fakeRegion{name: name, gen: "gen-" + string(name), demand: demand, shares: map[quota.ID]quota.Grant{}}
}

// share is what the region has of the policy "api".
func (r *fakeRegion) share() quota.Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shares[quota.ID{Policy: "api"}].Share
}

// exchange reports once and applies the answer.
func (r *fakeRegion) exchange(ctx context.Context, c *coordinator.Coordinator) (quota.Instructions, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports++
	rep := quota.Report{Region: r.name, Gen: r.gen, Epoch: r.epoch, SentAt: int64(r.reports), Revision: 1, Full: true}
	for id, g := range r.shares {
		rep.Quotas = append(rep.Quotas, quota.QuotaReport{
			ID: id, Version: g.Version, Share: g.Share, Period: g.Limit.Period, Demand: r.demand, Total: r.demand, Drained: true,
		})
	}
	answer, err := c.Report(ctx, rep)
	if err != nil {
		return answer, err
	}
	r.epoch, r.fresh = answer.Epoch, r.fresh || answer.Fresh
	for _, g := range answer.Grants {
		if g.Version > r.shares[g.ID].Version {
			r.shares[g.ID] = g
		}
	}
	return answer, nil
}

func (r *fakeRegion) run(ctx context.Context, c *coordinator.Coordinator) {
	for {
		answer, err := r.exchange(ctx, c)
		wait := time.Second
		if err == nil && answer.NextReport > 0 {
			wait = answer.NextReport
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Traffic of 80/10/10 at 95 % of the limit: after one rebalance every region has
// what it needs, and at no instant do the shares in use exceed the limit.
func TestOneRebalanceFollowsTheTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rebalanced := make(chan coordinator.Rebalance, 100)
		c := newCoordinator(t, coordinator.Config{
			Interval: time.Second, OnRebalance: func(r coordinator.Rebalance) { rebalanced <- r },
		})
		policy := perMinute("api", 1000)
		if err := c.SetPolicies(1, []*quota.Policy{policy}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var regions []*fakeRegion
		for i, part := range []float64{0.8, 0.1, 0.1} {
			r := newRegion(three[i], 0.95*1000/60*part)
			regions = append(regions, r)
			wg.Go(func() { r.run(ctx, c) })
		}
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		check := func() (sum quota.Share) {
			for _, r := range regions {
				sum = sum.Add(r.share())
			}
			if !sum.Within(policy.Limit.Share()) {
				t.Errorf("shares in use sum to %v", sum)
			}
			return sum
		}
		// The regions' demand is known from their first report with shares on; the
		// first rebalance after that has to do.
		for len(rebalanced) == 0 || len((<-rebalanced).Changes) == 0 {
			<-time.After(10 * time.Millisecond)
			check()
		}
		for range 100 { // shrink, acknowledge, grow
			<-time.After(10 * time.Millisecond)
			check()
		}
		for _, r := range regions {
			if has, needs := float64(r.share().Refill), r.demand*60*1000; has < needs {
				t.Errorf("%s is offered %v and has %v", r.name, needs, has)
			}
		}
		if sum := check(); sum != policy.Limit.Share() {
			t.Errorf("in steady state %v of %v are in use", sum, policy.Limit.Share())
		}
		cancel()
		wg.Wait()
	})
}

func TestUnknownRegionIsToldTheKnownOnes(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := newCoordinator(t, coordinator.Config{Registerer: reg})
	_, err := c.Report(t.Context(), quota.Report{Region: "mars", Gen: "g"})
	if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), `"mars"`) || !strings.Contains(err.Error(), "ap-south, eu-west, us-east") {
		t.Errorf("got %v", err)
	}
	want := "# HELP weir_coordinator_refused_reports_total Reports of regions that were refused, by reason.\n" +
		"# TYPE weir_coordinator_refused_reports_total counter\n" +
		"weir_coordinator_refused_reports_total{reason=\"fenced\"} 0\nweir_coordinator_refused_reports_total{reason=\"invalid\"} 1\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "weir_coordinator_refused_reports_total"); err != nil {
		t.Error(err)
	}
}

func TestImpossibleNumbersAreRefused(t *testing.T) {
	c := newCoordinator(t, coordinator.Config{})
	id := quota.ID{Policy: "api"}
	for name, q := range map[string]quota.QuotaReport{
		"negative demand": {ID: id, Demand: -5}, "NaN": {ID: id, Demand: math.NaN()}, "infinity": {ID: id, Total: math.Inf(1)},
		"2^62 tokens": {ID: id, Hold: 1 << 62}, "negative share": {ID: id, Share: quota.Share{Capacity: -1}},
		"negative version": {ID: id, Version: -1}, "no policy": {},
	} {
		_, err := c.Report(t.Context(), quota.Report{Region: "us-east", Gen: "g", Quotas: []quota.QuotaReport{q}})
		if !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	l := memory.NewComplete()
	for name, cfg := range map[string]coordinator.Config{
		"Regions is empty":          {Ledger: l},
		"names a region twice":      {Ledger: l, Regions: []quota.Region{"a", "b", "a"}},
		"a region without name":     {Ledger: l, Regions: []quota.Region{""}},
		"Interval 10ms is under 1s": {Ledger: l, Regions: three, Interval: 10 * time.Millisecond},
		"Ledger is missing":         {Regions: three},
	} {
		if _, err := coordinator.New(t.Context(), cfg); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// brokenLedger fails commits while told to.
type brokenLedger struct {
	*memory.Ledger
	err error
}

func (l *brokenLedger) Commit(ctx context.Context, e quota.Epoch, b coordinator.Batch) error {
	if l.err != nil {
		return l.err
	}
	return l.Ledger.Commit(ctx, e, b)
}

// L1: what is not committed is not granted; reports are answered all the same.
func TestNothingIsGrantedThatIsNotCommitted(t *testing.T) {
	l := &brokenLedger{Ledger: memory.NewComplete(), err: quota.ErrUnavailable}
	c := newCoordinator(t, coordinator.Config{Ledger: l})
	if err := c.SetPolicies(1, []*quota.Policy{perMinute("api", 1000)}); err != nil {
		t.Fatal(err)
	}
	r := newRegion("us-east", 1)
	for range 3 {
		answer, err := r.exchange(t.Context(), c)
		if err != nil || len(answer.Grants) > 0 {
			t.Fatalf("answered %+v, %v", answer, err)
		}
	}
	l.err = nil
	if answer, err := r.exchange(t.Context(), c); err != nil || len(answer.Grants) != 1 {
		t.Fatalf("answered %+v, %v", answer, err)
	}
}

func TestALaterLeaderFencesAnEarlierOne(t *testing.T) {
	l := memory.NewComplete()
	old := newCoordinator(t, coordinator.Config{Ledger: l})
	later := newCoordinator(t, coordinator.Config{Ledger: l})
	r := newRegion("us-east", 1)
	if err := old.SetPolicies(1, []*quota.Policy{perMinute("api", 10)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.exchange(t.Context(), old); !errors.Is(err, quota.ErrFenced) {
		t.Errorf("the earlier one answers: %v", err)
	}
	if err := old.Run(t.Context()); !errors.Is(err, quota.ErrFenced) {
		t.Errorf("its loop ends with %v", err)
	}
	if _, err := r.exchange(t.Context(), later); err != nil {
		t.Errorf("the later one: %v", err)
	}
}

func TestOnlyRegionsWithoutAPastAreFresh(t *testing.T) {
	c := newCoordinator(t, coordinator.Config{})
	if err := c.SetPolicies(1, []*quota.Policy{perMinute("api", 1000)}); err != nil {
		t.Fatal(err)
	}
	r := newRegion("us-east", 1)
	for range 3 {
		if _, err := r.exchange(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if !r.fresh || r.share() == (quota.Share{}) {
		t.Fatalf("first dataset: fresh %v, share %v", r.fresh, r.share())
	}
	was := r.share()
	second := newRegion("us-east", 1)
	second.gen = "another"
	for range 3 {
		if _, err := second.exchange(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if second.fresh {
		t.Error("a dataset that replaces another is called fresh")
	}
	if got := second.share(); got != was {
		t.Errorf("after the loss the region is sent %v, it had %v", got, was)
	}
	if g := second.shares[quota.ID{Policy: "api"}]; g.Gift != 0 {
		t.Errorf("tokens are given a second time: %v", g.Gift)
	}
}

// With a ledger in memory nobody knows whether an empty region is new. If all are, they
// are: nothing can have been spent anywhere.
func TestAFirstStartIsFreshInEveryRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCoordinator(t, coordinator.Config{Ledger: memory.New()})
		ask := func(region quota.Region) quota.Instructions {
			answer, err := c.Report(t.Context(), quota.Report{Region: region, Gen: "gen-" + string(region), SentAt: 1, Full: true})
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}
		for _, region := range three[:2] {
			if a := ask(region); !a.Undecided || a.Fresh {
				t.Errorf("%s is told %+v before all have reported", region, a)
			}
		}
		for _, region := range []quota.Region{three[2], three[0], three[1]} {
			if a := ask(region); a.Undecided || !a.Fresh {
				t.Errorf("%s is told %+v when all have reported", region, a)
			}
		}
	})
}

// A region that stays away does not keep the others from starting; they are careful then.
func TestAFirstStartDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCoordinator(t, coordinator.Config{Ledger: memory.New()})
		var last quota.Instructions
		for begun := time.Now(); time.Since(begun) < time.Minute; <-time.After(time.Second) {
			answer, err := c.Report(t.Context(), quota.Report{Region: three[0], Gen: "g", SentAt: time.Now().UnixMicro(), Full: true})
			if err != nil {
				t.Fatal(err)
			}
			last = answer
		}
		if last.Undecided || last.Fresh {
			t.Errorf("after a minute the region is told %+v", last)
		}
	})
}

// A coordinator whose ledger was in memory starts with nothing: the split stays as
// it is until every region was heard, and then on.
func TestALostLedgerIsLearntFromTheRegions(t *testing.T) {
	policy := perMinute("api", 1000)
	first := newCoordinator(t, coordinator.Config{Ledger: memory.NewAfter(10)})
	regions := make([]*fakeRegion, 0, len(three))
	for _, name := range three {
		regions = append(regions, newRegion(name, 1))
	}
	exchangeAll := func(c *coordinator.Coordinator, regions []*fakeRegion) {
		for range 4 {
			for _, r := range regions {
				if _, err := r.exchange(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := first.SetPolicies(1, []*quota.Policy{policy}); err != nil {
		t.Fatal(err)
	}
	exchangeAll(first, regions)
	var before [3]quota.Share
	for i, r := range regions {
		before[i] = r.share()
	}
	second := newCoordinator(t, coordinator.Config{Ledger: memory.NewAfter(0)}) // behind the regions' epoch
	if err := second.SetPolicies(1, []*quota.Policy{policy}); err != nil {
		t.Fatal(err)
	}
	exchangeAll(second, regions[:2])
	if s := second.Status(); !s.Recovering {
		t.Error("it does not wait for the third region")
	}
	exchangeAll(second, regions)
	s := second.Status()
	if s.Recovering {
		t.Error("it still waits")
	}
	for i, r := range regions {
		if got := r.share(); got != before[i] {
			t.Errorf("%s had %v and has %v", r.name, before[i], got)
		}
	}
	if un := s.Quotas[0].Unallocated; un != (quota.Share{}) {
		t.Errorf("unallocated %v", un)
	}
}

func TestARemovedRegionGivesBackWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.NewComplete()
		policy := perMinute("api", 999)
		c := newCoordinator(t, coordinator.Config{Ledger: l, Interval: time.Second})
		regions := []*fakeRegion{newRegion(three[0], 5), newRegion(three[1], 5), newRegion(three[2], 5)}
		run := func(c *coordinator.Coordinator, for_ time.Duration) {
			if err := c.SetPolicies(1, []*quota.Policy{policy}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), for_)
			defer cancel()
			var wg sync.WaitGroup
			for _, r := range regions {
				wg.Go(func() { r.run(ctx, c) })
			}
			wg.Go(func() { _ = c.Run(ctx) })
			wg.Wait()
		}
		run(c, 5*time.Second)
		c = newCoordinator(t, coordinator.Config{Ledger: l, Interval: time.Second, Regions: three[:2]})
		run(c, 5*time.Second)
		if got := regions[2].share(); got != (quota.Share{}) {
			t.Errorf("the region that left has %v", got)
		}
		sum := regions[0].share().Add(regions[1].share())
		if sum != policy.Limit.Share() {
			t.Errorf("the others have %v of %v", sum, policy.Limit.Share())
		}
	})
}

func TestPoliciesThatAreNotSplitArePassedOver(t *testing.T) {
	c := newCoordinator(t, coordinator.Config{})
	regional, unlimited, slots := perMinute("a", 1), perMinute("b", 1), perMinute("c", 1)
	regional.Scope, unlimited.Unlimited, slots.Algorithm = quota.Regional, true, quota.Concurrency
	if err := c.SetPolicies(3, []*quota.Policy{regional, unlimited, slots}); err != nil {
		t.Fatal(err)
	}
	if n := len(c.Status().Quotas); n != 0 {
		t.Errorf("%d quotas are split", n)
	}
	if err := c.SetPolicies(2, nil); !errors.Is(err, quota.ErrConflict) {
		t.Errorf("an earlier revision: %v", err)
	}
}

func TestStatusIsJSON(t *testing.T) {
	c := newCoordinator(t, coordinator.Config{})
	if err := c.SetPolicies(1, []*quota.Policy{perMinute("api", 1000)}); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c.Status())
	if err != nil || !strings.Contains(string(text), `"region":"us-east"`) || !strings.Contains(string(text), `"effective":true`) {
		t.Errorf("%s, %v", text, err)
	}
}
