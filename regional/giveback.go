package regional

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
)

// Bounds of giving back.
const (
	giveBackTries   = 3
	giveBackTimeout = 500 * time.Millisecond
	giveBackPause   = 10 * time.Millisecond
	// maxGiveBacks is how many may be under way at once. One more is dropped and
	// counted: the tokens stay spent, which errs on the side of the limit.
	maxGiveBacks = 1024
)

// returning counts, for each of a fixed number of slots that bucket keys hash to,
// the give-backs under way. It tells denials that may be false from others.
type returning struct {
	total atomic.Int64
	slots [1024]atomic.Int32
}

func (r *returning) slot(hash uint64) *atomic.Int32 { return &r.slots[hash%uint64(len(r.slots))] }

// giveBackAll returns what the calls charged. It works on in the background for
// as long as the bounds allow; the caller waits only until its own deadline, so
// that a lone client that asks again sees its tokens back.
func (e *Engine) giveBackAll(ctx context.Context, calls []*call, timer *time.Timer) {
	done := make(chan struct{}, len(calls))
	for _, c := range calls {
		e.background.Go(func() { //nolint:contextcheck // a give-back outlives the check
			e.giveBack(c)
			done <- struct{}{}
		})
	}
	for range calls {
		select {
		case <-done:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// giveBack returns what one call charged. A failed refund is tried again only
// when it cannot have happened: refunding twice would lift the limit, and losing
// the tokens only means that they come back by refill.
func (e *Engine) giveBack(c *call) {
	if !c.charged() {
		return
	}
	if e.returning.total.Add(1) > maxGiveBacks {
		e.returning.total.Add(-1)
		e.metrics.giveBacks.dropped.Inc()
		return
	}
	defer e.returning.total.Add(-1)
	refunds := c.refunds()
	for _, r := range refunds {
		s := e.returning.slot(hashKey(r.Entry.Bucket))
		s.Add(1)
		defer s.Add(-1)
	}
	var err error
	for try := range giveBackTries {
		if try > 0 && !pause(e.lasting.base, giveBackPause) {
			break
		}
		err = e.refundOnce(c.attempt.Stripe, refunds)
		if err == nil {
			e.metrics.giveBacks.done.Inc()
			return
		}
		if !certainlyNotRun(err) {
			break
		}
	}
	e.metrics.giveBacks.failed.Inc()
	e.log.warn("tokens of a denied check were not given back", "stripe", c.attempt.Stripe, "error", err)
}

func (e *Engine) refundOnce(stripe int, refunds []quota.Refund) error {
	ctx, cancel := context.WithTimeout(e.lasting.base, giveBackTimeout)
	defer cancel()
	return e.store.Refund(ctx, stripe, refunds)
}

// pause waits for d; it returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
