package app_test

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

// gate is the way to the coordinator and its ledger, which can be away in the two ways
// there are: refused at once, or without any answer.
type gate struct {
	regional.Coordinator
	coordinator.Ledger

	state atomic.Int32
}

const (
	open int32 = iota
	refusing
	hanging
)

var errAway = errors.New("away")

// pass returns at once while the gate is open.
func (g *gate) pass(ctx context.Context) error {
	switch g.state.Load() {
	case refusing:
		return errors.Join(errAway, quota.ErrUnavailable)
	case hanging:
		<-ctx.Done()
		return errors.Join(ctx.Err(), quota.ErrUnavailable)
	}
	return nil
}

// Report implements regional.Coordinator.
func (g *gate) Report(ctx context.Context, r quota.Report) (quota.Instructions, error) {
	if err := g.pass(ctx); err != nil {
		return quota.Instructions{}, err
	}
	return g.Coordinator.Report(ctx, r)
}

// Commit implements coordinator.Ledger.
func (g *gate) Commit(ctx context.Context, epoch quota.Epoch, b coordinator.Batch) error {
	if err := g.pass(ctx); err != nil {
		return err
	}
	return g.Ledger.Commit(ctx, epoch, b)
}

// calm offers an even load for a span and wants every check admitted, by the store, in
// no time: the clock is virtual, so whatever waited for anything would show.
func (w *world) calm(attributes map[string]string, perSecond float64, span time.Duration) (checks int) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / perSecond))
	defer tick.Stop()
	for end := time.Now().Add(span); time.Now().Before(end); <-tick.C {
		for i, engine := range w.engines {
			began := time.Now()
			result, err := engine.Check(context.Background(), quota.Request{Attributes: attributes, Cost: quota.Token})
			if err != nil || !result.Allowed || result.Decisions[0].Source != quota.SourceStore || time.Since(began) != 0 {
				w.t.Errorf("region %d: %+v, %v, in %s; want it admitted by the store at once", i, result, err, time.Since(began))
				return checks
			}
			checks++
		}
	}
	return checks
}

// With the coordinator and its ledger away for ten minutes, whichever way, no check is
// denied or waits for it, and afterwards shares move again.
func TestCoordinatorAwayForTenMinutes(t *testing.T) {
	log := &quota.Policy{
		ID: "shared", Key: []string{"tenant"}, Algorithm: quota.SlidingLog, OnStoreFailure: quota.FailClosed,
		Limit: quota.Limit{Capacity: 1000 * quota.Token, Period: time.Minute},
	}
	for _, p := range []*quota.Policy{globalBucket(100, 1000), log} {
		for name, away := range map[string]int32{"refused": refusing, "no answer": hanging} {
			t.Run(p.Algorithm.String()+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { awayForTenMinutes(t, p, away) })
			})
		}
	}
}

func awayForTenMinutes(t *testing.T, p *quota.Policy, away int32) {
	t.Helper()
	w := newWorld(t, p, time.Second)
	defer w.stop()
	tenant := map[string]string{"tenant": "acme"}
	// Nine tenths of a limit of 1000 a minute.
	const perSecond = 0.9 * 1000 / 60 / 3
	// At first the stores are empty and the split knows no demand.
	w.offerAll(tenant, 3*perSecond, []float64{1. / 3, 1. / 3, 1. / 3}, time.Minute)
	w.calm(tenant, perSecond, 2*time.Minute)
	before := w.shares()

	w.gate.state.Store(away)
	checks := w.calm(tenant, perSecond, 10*time.Minute)
	if checks < 8900 {
		t.Errorf("%d checks in ten minutes, want 9000", checks)
	}
	for region, share := range w.shares() {
		if share != before[region] {
			t.Errorf("%s went from %v to %v with nobody there to say so", region, before[region], share)
		}
	}

	w.gate.state.Store(open)
	// A demand that only a part of the share of others can meet.
	w.offerAll(tenant, 0.9*1000/60, []float64{0.8, 0.1, 0.1}, 3*time.Minute)
	if _, denied := w.offerAll(tenant, 0.9*1000/60, []float64{0.8, 0.1, 0.1}, time.Minute); denied > 0 {
		t.Errorf("%d checks denied after the return: shares did not follow demand", denied)
	}
}

// shares are those in force.
func (w *world) shares() map[quota.Region]quota.Share {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.inForce)
}
