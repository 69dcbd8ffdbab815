package faulttest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
)

// lead lets those who lead, or think so, do what is due.
func (w *world) lead() {
	if w.leader == nil && w.now >= w.electAt {
		w.elect()
	}
	w.zombies = slices.DeleteFunc(w.zombies, func(l *leader) bool { return w.now >= l.until || l.fenced })
	if w.mutant.revocationGoesOn && w.leader != nil {
		w.completeRevocation(w.leader)
	}
	leaders := w.zombies
	if l := w.leader; l != nil {
		if (l.revision != w.revision) && w.chance(4) {
			w.publish(l)
		}
		leaders = append(slices.Clone(leaders), l)
	}
	for _, l := range leaders {
		l.brain.Tick(l.clock.time(w.now))
		w.commit(l)
	}
}

// publish tells a leader the present policies.
func (w *world) publish(l *leader) {
	l.revision = w.revision
	w.fail(l.brain.SetPolicies(l.clock.time(w.now), w.revision, w.policies()))
	w.commit(l)
}

// commit writes what is pending; at times the ledger fails, with or without effect.
func (w *world) commit(l *leader) {
	b := l.brain.Pending()
	if b.Empty() || l.fenced {
		return
	}
	w.commits++
	failed := w.setting == faulty && w.chance(20)
	if failed && w.chance(2) {
		l.brain.Failed(b)
		return
	}
	if w.mutant.sendBeforePersist && w.chance(3) {
		l.brain.Committed(b)
		return
	}
	err := l.ledger.Commit(context.Background(), l.epoch, b)
	switch {
	case errors.Is(err, quota.ErrFenced):
		l.fenced = true
	case err != nil:
		w.fail(err)
	}
	if failed || err != nil {
		l.brain.Failed(b)
		return
	}
	if w.mutant.revocationGoesOn {
		w.revocations.follow(w.now, b.Rows)
	}
	l.brain.Committed(b)
}

// completeRevocation lets a leader go on with a ledger in which a share is gone that is not.
func (w *world) completeRevocation(l *leader) {
	row := w.revocations.complete(w.now)
	if row == nil || l.ledger.Commit(context.Background(), l.epoch, coordinator.Batch{Rows: []coordinator.Row{*row}}) != nil {
		return
	}
	w.note(row.ID, row.Region, "is taken to have", row.Bound(), "and has", row.Sent)
	w.leader = nil
	w.elect()
}

// handle is a report's arrival at a leader.
func (w *world) handle(l *leader, rep quota.Report) {
	now := l.clock.time(w.now)
	err := l.brain.Report(now, rep)
	if errors.Is(err, quota.ErrFenced) && l == w.leader && l.brain.Recovering() {
		s, lerr := l.ledger.Load(context.Background(), rep.Epoch+quota.Epoch(w.rng.Int64N(1<<40)))
		w.fail(lerr)
		l.epoch = s.Epoch
		l.brain.Begin(now, s.Epoch)
		err = l.brain.Report(now, rep)
	}
	switch {
	case errors.Is(err, quota.ErrFenced):
		return
	case errors.Is(err, quota.ErrInvalid) && !slices.Contains(w.names, rep.Region):
		return // it has left, or this one has not heard that it came
	case err != nil && l == w.leader:
		w.fail(err)
		return
	case err != nil:
		return
	}
	if w.commit(l); l.fenced {
		return
	}
	answer := l.brain.Instructions(rep)
	for _, q := range rep.Quotas {
		w.note(q.ID, rep.Region, rep.Gen, "reports to", l.epoch, "in epoch", rep.Epoch, "version", q.Version, q.Share, "hold", q.Hold, q.Drained, "full", rep.Full)
	}
	w.grants += len(answer.Grants)
	for _, g := range answer.Grants {
		if g.Share.Capacity > 0 { // not to take back what there was before it was removed
			w.account(g.ID).granted = true
		}
	}
	w.send(message{answer: &answer, region: w.region(rep.Region)})
}

// crash ends the leader, which may not know; another is elected after a while.
func (w *world) crash() {
	w.note(quota.ID{}, "the leader crashes")
	if w.leader == nil {
		return
	}
	w.electAt = w.now + w.between(0, 20*time.Second)
	if l := w.leader; w.chance(2) {
		l.until = w.now + w.between(0, 40*time.Second)
		if w.leases { // its right to answer ends before there is another
			l.until = min(l.until, w.electAt)
		}
		w.zombies = append(w.zombies, l)
	}
	w.leader = nil
}

// restart replaces the leader at once, with the present configuration.
func (w *world) restart() {
	w.crash()
	w.electAt = w.now
	if w.leases {
		w.zombies = nil
	}
	w.lead()
}

// loseLedger lets a new leader start on a ledger that has lost everything.
func (w *world) loseLedger() {
	if !slices.ContainsFunc(w.regions, func(r *region) bool { return r.gen != "" && r.epoch() > 0 }) {
		return // with all data lost as well, it cannot be told from a first start
	}
	w.note(quota.ID{}, "the ledger is lost")
	w.ledgersLost++
	w.crash()
	for _, l := range w.zombies {
		l.orphan = true
	}
	if w.leases {
		w.zombies = nil
	}
	last := quota.Epoch(0)
	for _, r := range w.regions {
		last = max(last, r.epoch())
	}
	w.ledger = memory.NewAfter(last + quota.Epoch(w.rng.Int64N(1<<30)))
	if w.chance(2) {
		w.ledger = memory.NewAfter(quota.Epoch(1_000_000 - 1000*w.ledgersLost)) // behind the regions
	}
	w.electAt = w.now
	w.lead()
}
