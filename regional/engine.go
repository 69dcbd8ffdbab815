package regional

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
)

// Engine decides checks for one node. Its methods may be called concurrently.
type Engine struct {
	cfg     Config
	store   Store
	log     *boundedLog
	metrics *metrics

	swap sync.Mutex // serialises SetIndex
	view atomic.Pointer[view]

	lease     leaseClock
	gate      *gate
	lasting   lasting
	stop      context.CancelFunc
	returning returning
	local     *localStore
	// background counts what outlives the check that began it: store calls and give-backs.
	background sync.WaitGroup
	plans      sync.Pool
	timers     sync.Pool

	// uninitialised is a wake-up for the agent: a check met a stripe without a record.
	uninitialised chan struct{}
	// short is another: a key needs more at once.
	short chan struct{}
	own   ownShares
}

// New makes an engine. It answers ErrUnavailable until SetIndex has been called.
// Close ends what it has running.
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		cfg: cfg, store: cfg.Store, metrics: newMetrics(cfg.Registerer),
		log:           newBoundedLog(cfg.Logger),
		gate:          newGate(cfg.MaxInFlight),
		lasting:       lasting{base: ctx, late: cfg.LateWait},
		stop:          cancel,
		uninitialised: make(chan struct{}, 1),
		short:         make(chan struct{}, 1),
	}
	e.local = newLocalStore(cfg.LocalKeys, e.metrics)
	e.metrics.localKeys(cfg.Registerer, e.local)
	e.metrics.leaseLeft(cfg.Registerer, &e.lease)
	e.plans.New = func() any { return new(plan) }
	e.timers.New = func() any { return stoppedTimer() }
	return e, nil
}

// Close waits for store calls and give-backs that are still under way, at most
// until ctx ends, and cuts off the rest. No check may be running or begin.
func (e *Engine) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		e.background.Wait()
		close(done)
	}()
	defer e.stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	e.stop()
	<-done // a cancelled store call returns at once
	return fmt.Errorf("regional: store calls were cut off: %w", context.Cause(ctx))
}

// Health is what a node can say of itself without asking anybody.
type Health struct {
	// Ready is true once a revision is live. A node without its store is ready:
	// it answers by failure modes.
	Ready    bool
	Revision int64
	// Degraded is true when a failure mode decided a check in the last ten seconds.
	Degraded bool
}

// Health reports the engine's condition.
func (e *Engine) Health() Health {
	h := Health{Degraded: e.metrics.degraded()}
	if v := e.view.Load(); v != nil {
		h.Ready, h.Revision = true, v.index.Revision()
	}
	return h
}

// Check decides a request and charges it: every policy that takes part, or none.
// Being denied is a Result. Errors: ErrInvalid (the text names the field),
// ErrNotFound (the filter names no policy), ErrUnavailable before the first
// revision, and the context's error when the caller has gone.
func (e *Engine) Check(ctx context.Context, req quota.Request) (quota.Result, error) {
	return e.answer(ctx, req, false)
}

// Peek answers what Check would, and charges nothing.
func (e *Engine) Peek(ctx context.Context, req quota.Request) (quota.Result, error) {
	req.RequestID = "" // a remembered answer is not what is asked for
	return e.answer(ctx, req, true)
}

func (e *Engine) answer(ctx context.Context, req quota.Request, peek bool) (quota.Result, error) {
	start := time.Now()
	ctx, end := e.trace(ctx)
	p, err := e.plan(req, peek)
	if err != nil {
		end(nil, err)
		return quota.Result{}, err
	}
	defer e.release(p)
	err = e.decide(ctx, p, start)
	if err != nil {
		end(nil, err)
		return quota.Result{}, err
	}
	res := p.result()
	if !peek {
		e.record(ctx, p)
	}
	e.metrics.duration.Observe(time.Since(start).Seconds())
	end(&res, nil)
	return res, nil
}

// MaxBatch is how many checks one batch may hold.
const MaxBatch = 1000

// batchWorkers is how many checks of a batch run at the same time. They meet
// again in the store's own batches.
const batchWorkers = 32

// CheckBatch decides many requests, each on its own and in no particular order.
// Results and errors have one element per request, in order; a nil error means
// that the result is valid.
func (e *Engine) CheckBatch(ctx context.Context, reqs []quota.Request) ([]quota.Result, []error) {
	results, errs := make([]quota.Result, len(reqs)), make([]error, len(reqs))
	if len(reqs) > MaxBatch {
		err := fmt.Errorf("checks: %d in one batch, at most %d: %w", len(reqs), MaxBatch, quota.ErrInvalid)
		for i := range errs {
			errs[i] = err
		}
		return results, errs
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(batchWorkers, len(reqs)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(reqs) {
					return
				}
				results[i], errs[i] = e.Check(ctx, reqs[i])
			}
		})
	}
	wg.Wait()
	return results, errs
}

// stoppedTimer returns a timer that does not run; Reset starts it.
func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
