package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
)

// split is this code: a coordinator's machine, its ledger and one agent per region.
type split struct {
	fleet
	policy   *quota.Policy
	interval time.Duration
	ledger   *memory.Ledger
	epoch    quota.Epoch
	// machine is nil while there is no coordinator.
	machine *coordinator.Machine
	agents  []*agent
	targets []quota.Share
}

func newSplit(c *course, start int64) (*split, error) {
	w := &split{fleet: newFleet(c), policy: c.policy, interval: c.interval, ledger: memory.NewComplete()}
	for i, name := range c.regions {
		s := newStore(c.policy, coordinator.Floor(c.regions, name, c.policy), w.checkShares)
		w.stores = append(w.stores, s)
		a := &agent{region: name, store: s, net: &w.net, rng: source(c.seed, purposeAgent+uint64(i)<<32), wantFull: true, began: start, next: start}
		a.ask = func(now, call int64, r quota.Report) error {
			return w.net.send(now, func(now int64) error { return w.receive(now, call, i, r) })
		}
		w.agents = append(w.agents, a)
	}
	if err := w.startCoordinator(start); err != nil {
		return nil, err
	}
	return w, nil
}

// startCoordinator begins the ledger's next epoch, as a coordinator that starts or
// takes over does.
func (w *split) startCoordinator(now int64) error {
	s, err := w.ledger.Load(context.Background(), 0)
	if err != nil {
		return fmt.Errorf("load the ledger: %w", err)
	}
	w.epoch = s.Epoch
	w.machine = coordinator.NewMachine(instant(now), w.interval, w.regions, s)
	if err := w.machine.SetPolicies(instant(now), 1, []*quota.Policy{w.policy}); err != nil {
		return fmt.Errorf("set the policy: %w", err)
	}
	return w.commit(now)
}

// commit brings the ledger up to date, as coordinator.Coordinator does before it
// answers, and notices new splits.
func (w *split) commit(now int64) error {
	if b := w.machine.Pending(); !b.Empty() {
		if err := w.ledger.Commit(context.Background(), w.epoch, b); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		w.machine.Committed(b)
	}
	var targets []quota.Share
	for _, q := range w.machine.Status(instant(now)).Quotas {
		for _, r := range q.Regions {
			targets = append(targets, r.Share)
		}
	}
	if !slices.Equal(targets, w.targets) {
		w.targets = targets
		w.changes++
	}
	return nil
}

// receive is a report's arrival at the coordinator.
func (w *split) receive(now, call int64, from int, r quota.Report) error {
	if w.machine == nil || w.cut[from] {
		return nil
	}
	if err := w.machine.Report(instant(now), r); err != nil {
		return fmt.Errorf("report of %s: %w", r.Region, err)
	}
	if err := w.commit(now); err != nil {
		return err
	}
	in := w.machine.Instructions(r)
	return w.net.send(now, func(now int64) error {
		if w.cut[from] {
			return nil
		}
		return w.agents[from].answered(now, call, in)
	})
}

func (w *split) advance(now int64) error {
	if err := w.net.advance(now); err != nil {
		return err
	}
	if w.machine != nil && !instant(now).Before(w.machine.Next()) {
		w.machine.Tick(instant(now))
		if err := w.commit(now); err != nil {
			return err
		}
	}
	for i, a := range w.agents {
		if w.cut[i] {
			continue
		}
		if err := a.step(now); err != nil {
			return err
		}
	}
	return nil
}

func (w *split) note(region, offered, admitted int) { w.agents[region].note(offered, admitted) }

func (w *split) setCoordinator(now int64, up bool) error {
	if up {
		return w.startCoordinator(now)
	}
	w.machine = nil
	return nil
}

func (w *split) setRegion(now int64, i int, up bool) {
	w.cut[i] = !up
	if up {
		w.agents[i].wake(now)
	}
}

// historyStep is how long a report's demand stands for while a past is made up.
const historyStep = time.Minute

// past lets a time go by in which the regions are offered steady rates: what they
// report is made up, and there are no requests.
func (w *split) past(from, to int64, rates []float64) error {
	w.net.instant = true
	defer func() { w.net.instant = false }()
	for now := from; now < to; now += micros(historyStep) {
		for i, a := range w.agents {
			admitted := min(rates[i], quota.Limit{
				Capacity: a.store.share.Capacity, Refill: a.store.share.Refill, Period: w.policy.Limit.Period,
			}.PerSecond())
			a.load, a.loaded, a.acks = counts{rates[i], admitted}, now, 0
			if err := a.report(now, false); err != nil {
				return err
			}
		}
		w.machine.Tick(instant(now))
		if err := w.commit(now); err != nil {
			return err
		}
	}
	for _, a := range w.agents {
		a.window, a.began, a.next = counts{}, to, to
	}
	return nil
}
