package regional

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
)

// errLate is the failure of a call that missed its deadline. It may still answer.
var errLate = fmt.Errorf("store deadline passed: %w", quota.ErrUnavailable)

// call is one attempt on its way through the store. Its life has two ends that
// may come in either order: the store answers, and the check that asked is
// settled. Whoever comes second deals with an answer that nobody waited for.
type call struct {
	attempt quota.Attempt
	// answered carries one value, when the store answers in time.
	answered chan struct{}
	outcome  quota.Outcome
	err      error

	mu sync.Mutex
	// abandoned: the check no longer waits. late: the store answered after that.
	abandoned bool
	late      bool
	// settled: the check is over; keep says whether a late charge stands.
	settled bool
	keep    bool
}

// ask sends the attempt on its way for a check that may wait that long for an
// answer. It never blocks: with the gate full the call has failed already, and a
// failed call costs no goroutine.
func (e *Engine) ask(ctx context.Context, a quota.Attempt, patience time.Duration) *call {
	c := &call{attempt: a, answered: make(chan struct{}, 1)}
	if !e.gate.enter(a.Stripe) {
		c.err = fmt.Errorf("%d calls inside the store: %w", e.cfg.MaxInFlight, quota.ErrOverloaded)
		c.answered <- struct{}{}
		return c
	}
	e.background.Go(func() {
		// The caller's deadline must not cut the call short: a script that was
		// sent and whose answer is thrown away may have charged.
		out, err := e.store.Acquire(e.lasting.with(ctx, patience), a)
		e.gate.leave(a.Stripe)
		if err == nil && len(out.Verdicts) != len(a.Entries) {
			err = fmt.Errorf("store answered %d of %d entries: %w", len(out.Verdicts), len(a.Entries), quota.ErrUnavailable)
		}
		c.outcome, c.err = out, err
		e.deliver(c) //nolint:contextcheck // a give-back outlives the check
	})
	return c
}

// deliver hands the answer to the check, or deals with it when nobody waits.
func (e *Engine) deliver(c *call) {
	c.mu.Lock()
	if !c.abandoned {
		c.answered <- struct{}{} // under the lock, so that wait can not miss it
		c.mu.Unlock()
		return
	}
	c.late = true
	settled, keep := c.settled, c.keep
	c.mu.Unlock()
	e.metrics.lateAnswers.Inc()
	if settled && !keep {
		e.giveBack(c)
	}
}

// wait returns the call's failure, nil when it was answered in time. It gives up
// at the deadline, or when the caller's context ends.
func (c *call) wait(ctx context.Context, timer *time.Timer) error {
	select {
	case <-c.answered:
		return c.err
	default:
	}
	var failure error
	select {
	case <-c.answered:
		return c.err
	case <-timer.C:
		failure = errLate
	case <-ctx.Done():
		failure = fmt.Errorf("waiting for the store: %w", context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.answered: // it came while we took the lock
		return c.err
	default:
	}
	c.abandoned = true
	return failure
}

// settle ends the check's interest in a call that was abandoned. A charge that
// came late, or is still to come, stands when keep is true; else it is given back.
func (e *Engine) settle(c *call, keep bool) {
	c.mu.Lock()
	c.settled, c.keep = true, keep
	late := c.late
	c.mu.Unlock()
	if late && !keep {
		e.giveBack(c)
	}
}

// charged reports whether the outcome took tokens that this attempt answers for.
// A remembered outcome did not: its charge belongs to the attempt that made it.
func (c *call) charged() bool {
	return c.err == nil && c.outcome.Allowed && !c.outcome.Replayed && !c.attempt.Peek && c.attempt.Cost > 0
}

// refunds lists what the call's charge took, quota by quota. A shadow quota is
// charged like the others when it allows.
func (c *call) refunds() []quota.Refund {
	out := make([]quota.Refund, 0, len(c.attempt.Entries))
	for i, v := range c.outcome.Verdicts {
		if v.Allowed {
			out = append(out, quota.Refund{
				Entry: c.attempt.Entries[i], Amount: c.attempt.Cost,
				At: c.outcome.At, RequestID: c.attempt.RequestID,
			})
		}
	}
	return out
}

// failureKind names a store failure for metrics: by the store's own name for it
// where it has one (a small fixed set), else from the closed set above.
func failureKind(err error) string {
	var named interface{ Kind() string }
	switch {
	case errors.Is(err, errLate):
		return kindDeadline
	case errors.Is(err, quota.ErrOverloaded):
		return kindOverloaded
	case errors.Is(err, quota.ErrUninitialised):
		return kindUninitialised
	case errors.As(err, &named):
		return named.Kind()
	case errors.Is(err, context.DeadlineExceeded):
		return kindDeadline
	case errors.Is(err, context.Canceled):
		return kindCanceled
	case errors.Is(err, quota.ErrUnavailable):
		return kindUnavailable
	}
	return kindOther
}

// certainlyNotRun reports whether a failed call has changed nothing in the store.
func certainlyNotRun(err error) bool {
	var told interface{ MayHaveRun() bool }
	if errors.As(err, &told) {
		return !told.MayHaveRun()
	}
	return errors.Is(err, quota.ErrOverloaded)
}

// lasting makes contexts for work that must outlive the check that began it,
// and still ends. One timer serves all that begin within a slot and last alike,
// instead of one each.
type lasting struct {
	base context.Context //nolint:containedctx // the engine's lifetime, the parent of all calls
	// late is how long work goes on after its check has stopped waiting.
	late time.Duration
	// slots are by the check's patience, in steps of lastingGrain.
	slots [quota.MaxStoreDeadline/lastingGrain + 1]atomic.Pointer[lastingSlot]
}

type lastingSlot struct {
	ctx    context.Context //nolint:containedctx // shared by all calls of the slot
	cancel context.CancelFunc
	until  time.Time
}

// lastingGrain is the step in which lives are counted, and for how long one slot is used.
const lastingGrain = 100 * time.Millisecond

// with returns a context with the values of ctx that ends at the earliest when the
// patience of its check and the late time after it are over, and at most two grains
// later, whatever becomes of ctx. Patience beyond quota.MaxStoreDeadline counts as that.
func (l *lasting) with(ctx context.Context, patience time.Duration) context.Context {
	patience = min(max(patience, 0), quota.MaxStoreDeadline) + lastingGrain - 1
	patience -= patience % lastingGrain
	slot := &l.slots[patience/lastingGrain]
	now := time.Now()
	s := slot.Load()
	if s == nil || now.After(s.until) {
		fresh := &lastingSlot{until: now.Add(lastingGrain)}
		fresh.ctx, fresh.cancel = context.WithTimeout(l.base, patience+l.late+lastingGrain)
		if slot.CompareAndSwap(s, fresh) {
			s = fresh
		} else {
			fresh.cancel()
			s = slot.Load()
		}
	}
	return valued{s.ctx, ctx}
}

// valued has the lifetime of one context and the values of another.
type valued struct {
	context.Context //nolint:containedctx // this is a context
	values          context.Context
}

// Value asks the lifetime first: package context finds a parent to hang a child
// on by its value, and must find that one.
func (v valued) Value(key any) any {
	if got := v.Context.Value(key); got != nil {
		return got
	}
	return v.values.Value(key)
}
