package regional

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
)

// Parameters of the agent's loop that nobody needs to change.
const (
	// DefaultReportInterval is how often a region reports.
	DefaultReportInterval = time.Second
	// reportTimeout bounds one exchange with the coordinator, storeTimeout one
	// operation on the dataset, which may touch every stripe.
	reportTimeout = 5 * time.Second
	storeTimeout  = 5 * time.Second
	// undecidedWait is the wait between asking whether a first dataset is fresh.
	undecidedWait = 250 * time.Millisecond
	// maxBackoff is the longest wait between reports while the coordinator is away. It
	// is a part of the time in which shares move again after a failover.
	maxBackoff = 2 * time.Second
	// longestPause bounds what the coordinator may ask for from above, minInterval from
	// below.
	longestPause = 15 * time.Second
	// flushesPerReport is how often in a report interval a node adds its demand to
	// the region's. More than once, so that a window which misses one flush of a
	// node, or holds one too many, does not look like a change of traffic.
	flushesPerReport = 4
	// drainInterval is how often a region reports while a log still holds more
	// than its share.
	drainInterval = 250 * time.Millisecond
	minInterval   = 20 * time.Millisecond
	// maxAcks is how many reports in a row may follow at once, each to acknowledge
	// what the one before brought.
	maxAcks = 3
	// fullEvery is how often a region lists every share it holds, unasked.
	fullEvery = time.Minute
)

// AgentConfig is what an agent is made of. All fields are mandatory but
// Coordinator (nil: standalone), Interval and Logger.
type AgentConfig struct {
	Engine      *Engine
	Dataset     Dataset
	Coordinator Coordinator
	Region      quota.Region
	// Node is unique in the region and names the holder of the agent lock.
	Node string
	// Interval is how often the node adds its demand to the region's and the
	// region reports. Zero means DefaultReportInterval.
	Interval time.Duration
	Logger   *slog.Logger
}

// Agent runs on every node. On each it adds the node's demand to the region's;
// on the one that holds the agent lock it also looks after the dataset, reports
// to the coordinator and applies the shares that come back.
type Agent struct {
	cfg     AgentConfig
	engine  *Engine
	metrics *metrics
	log     *boundedLog

	flushing sync.Mutex // serialises flushes, which own the backlog
	backlog  *demandBacklog

	status atomic.Pointer[AgentStatus]

	// What follows belongs to the report loop alone.

	wasHolder bool
	// settled is AgentStatus.Settled.
	settled bool
	// newborn is the id of a dataset that is to be made; empty when none is.
	newborn  string
	gen      string
	epoch    quota.Epoch // newest accepted in this dataset
	held     map[string]quota.QuotaReport
	reported map[string]quota.QuotaReport // as last taken by the coordinator
	granted  map[string]bool              // applied since the last report was taken
	keys     keyBook
	wantFull bool
	lastFull time.Time
	failures int
	loads    loads // of the window taken at taken
	taken    time.Time
	hurried  bool // a key is short: the next report is to tell of the demand until then
	// leaseTTL is the length of the last lease.
	leaseTTL time.Duration
}

// AgentStatus is the agent's condition, for people and readiness pages.
type AgentStatus struct {
	// Holder is true on the node that reports for its region.
	Holder bool
	Gen    string
	Epoch  quota.Epoch
	// LastReport is when the coordinator last answered; zero if it never has.
	LastReport time.Time
	// Settled is true once the region has held every share that the coordinator had
	// for it. It stays true: later changes find the region with shares.
	Settled bool
	// LeaseUntil is when the region's lease ends, as this node knows; zero when no
	// policy needs one. It is in the past while strict policies have their floors.
	LeaseUntil time.Time
	// Err is what the last round failed with; nil when it did not.
	Err error
}

// NewAgent makes an agent; Run starts it.
func NewAgent(cfg AgentConfig) (*Agent, error) {
	switch {
	case cfg.Engine == nil:
		return nil, fmt.Errorf("regional: AgentConfig.Engine is missing: %w", quota.ErrInvalid)
	case cfg.Dataset == nil:
		return nil, fmt.Errorf("regional: AgentConfig.Dataset is missing: %w", quota.ErrInvalid)
	case cfg.Node == "":
		return nil, fmt.Errorf("regional: AgentConfig.Node is missing: %w", quota.ErrInvalid)
	case cfg.Coordinator != nil && cfg.Region == "":
		return nil, fmt.Errorf("regional: AgentConfig.Region is missing: %w", quota.ErrInvalid)
	case cfg.Interval < 0:
		return nil, fmt.Errorf("regional: AgentConfig.Interval is negative: %w", quota.ErrInvalid)
	}
	if cfg.Interval == 0 {
		cfg.Interval = DefaultReportInterval
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Agent{
		cfg: cfg, engine: cfg.Engine, metrics: cfg.Engine.metrics,
		log: newBoundedLog(cfg.Logger), backlog: newDemandBacklog(),
	}
	a.forgetDataset()
	a.status.Store(&AgentStatus{})
	return a, nil
}

// Status returns the agent's condition. It may be called at any time.
func (a *Agent) Status() AgentStatus { return *a.status.Load() }

// Run works until ctx ends, then hands the last demand to the region, lets the
// agent lock go and returns nil. No failure ends it: checks go on with the
// shares that are in the dataset, whatever the agent can or can not reach.
func (a *Agent) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	if a.cfg.Coordinator != nil {
		wg.Go(func() { a.flushLoop(ctx) })
	}
	wg.Go(func() { a.reportLoop(ctx) })
	wg.Wait()
	return nil
}

// flushLoop adds this node's demand to the region's, each interval and once at the end.
func (a *Agent) flushLoop(ctx context.Context) {
	tick := time.NewTicker(max(a.cfg.Interval/flushesPerReport, minInterval))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			a.flush(last)
			return
		}
	}
}

// flush sends what waits. What the store does not take waits for the next time,
// added up by key. A flush whose answer was lost may be counted twice: demand is
// an estimate, and one that errs upwards denies nobody.
func (a *Agent) flush(ctx context.Context) {
	v := a.engine.view.Load()
	if v == nil {
		return
	}
	a.flushing.Lock()
	defer a.flushing.Unlock()
	for id, s := range v.policies {
		if s.demand != nil {
			if dropped := a.backlog.collect(id, s.demand); dropped > 0 {
				a.metrics.demandDropped.Add(float64(dropped) / float64(quota.Token))
			}
		}
	}
	demands := a.backlog.pending()
	if len(demands) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := a.cfg.Dataset.AddDemand(ctx, demands); err != nil {
		a.metrics.demandErrors.Inc()
		a.log.warn("demand waits for the store", "error", err)
		return
	}
	a.backlog.clear()
}

// reportLoop is the agent proper.
func (a *Agent) reportLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer a.letGo(ctx)
	var due time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-a.engine.uninitialised:
		case <-a.hurry():
			a.hurried = true
			if wait := a.untilHurry(); wait > 0 {
				timer.Reset(min(wait, time.Until(due)))
				continue
			}
		}
		wait, err := a.round(ctx)
		a.hurried = false
		if ctx.Err() != nil {
			return
		}
		a.note(err)
		switch {
		case errors.Is(err, errUndecided):
			wait = undecidedWait
		case err != nil:
			a.log.warn("region agent could not finish its round; the shares in force stay", "error", err)
			wait = a.backoff()
		default:
			a.failures = 0
		}
		due = time.Now().Add(wait)
		timer.Reset(wait)
	}
}

// backoff grows from the interval to maxBackoff, with jitter so that the regions
// and nodes do not return together.
func (a *Agent) backoff() time.Duration {
	d := min(a.cfg.Interval<<min(a.failures, 10), max(maxBackoff, a.cfg.Interval))
	a.failures++
	return d/2 + mathrand.N(d/2+1) //nolint:gosec // jitter guards nothing
}

// round does what is due once and returns how long to wait for the next.
func (a *Agent) round(ctx context.Context) (time.Duration, error) {
	if err := a.refreshShares(ctx); err != nil {
		return 0, err
	}
	if err := a.refreshLease(ctx); err != nil {
		return 0, err
	}
	holds, err := a.holdLock(ctx)
	if err != nil || !holds {
		return a.jittered(a.cfg.Interval), err
	}
	for acks := 0; ; acks++ {
		state, err := a.dataset(ctx)
		if err != nil {
			return 0, err
		}
		if a.cfg.Coordinator == nil {
			return a.jittered(a.cfg.Interval), nil
		}
		wait, applied, err := a.exchange(ctx, state)
		if err != nil || !applied || acks >= maxAcks {
			return wait, err
		}
	}
}

func (a *Agent) jittered(d time.Duration) time.Duration {
	return d - d/20 + mathrand.N(d/10+1) //nolint:gosec // jitter guards nothing
}

// holdLock takes or keeps the lock, which only saves work: everything the agent
// writes is compared and set, so two agents do no harm.
func (a *Agent) holdLock(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	holds, err := a.cfg.Dataset.HoldAgent(ctx, a.cfg.Node, 3*a.cfg.Interval+reportTimeout)
	if err != nil {
		return false, fmt.Errorf("agent lock: %w", err)
	}
	if holds && !a.wasHolder {
		// Somebody else may have applied grants meanwhile.
		a.forgetDataset()
		a.log.Info("this node is its region's agent", "node", a.cfg.Node)
	}
	a.wasHolder = holds
	if holds {
		a.metrics.isAgent.Set(1)
	} else {
		a.metrics.isAgent.Set(0)
		a.metrics.keysTracked.Set(0)
		a.engine.own.known.Store(nil)
	}
	return holds, nil
}

// letGo gives the lock to the next node at once instead of after its expiry.
func (a *Agent) letGo(ctx context.Context) {
	a.metrics.isAgent.Set(0)
	if !a.wasHolder {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := a.cfg.Dataset.HoldAgent(ctx, a.cfg.Node, 0); err != nil {
		a.log.Debug("agent lock is left to expire", "error", err)
	}
}

// dataset returns a state in which every stripe has a region record of one
// dataset, and makes it so where it is not.
func (a *Agent) dataset(ctx context.Context) (quota.DatasetState, error) {
	sctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	state, err := a.cfg.Dataset.State(sctx)
	if err != nil {
		return state, fmt.Errorf("dataset state: %w", err)
	}
	if !state.Complete || state.Gen == "" {
		if state, err = a.initialise(ctx, state); err != nil {
			return state, err
		}
	}
	if state.Gen != a.gen {
		a.forgetDataset()
		a.gen = state.Gen
	}
	a.epoch = max(a.epoch, state.Epoch)
	return state, nil
}

// initialise gives each stripe without a region record one. Some stripes missing
// means that part of the data was lost; all missing, that the region is new or
// has lost everything. Only the coordinator can tell these two apart, and
// without its word the careful assumption holds.
//
// What is left of a dataset goes on under another id: the stripes that lost theirs no
// longer know which grants are older than what they had, so grants to the former
// dataset must not reach them.
func (a *Agent) initialise(ctx context.Context, state quota.DatasetState) (quota.DatasetState, error) {
	if err := a.nameDataset(); err != nil {
		return state, err
	}
	gen, fresh := a.newborn, false
	switch {
	case !state.Empty:
	case a.cfg.Coordinator == nil:
		fresh = true // nobody else has a part of the limits
	default:
		rctx, cancel := context.WithTimeout(ctx, reportTimeout)
		instr, err := a.cfg.Coordinator.Report(rctx, quota.Report{
			Region: a.cfg.Region, Gen: gen, SentAt: state.Now, Revision: a.revision(), Full: true,
		})
		cancel()
		if err != nil {
			a.log.warn("new dataset starts as a lost one: the coordinator was not heard", "error", err)
		}
		if err == nil && instr.Undecided {
			return state, errUndecided
		}
		fresh = err == nil && instr.Gen == gen && instr.Fresh
	}
	sctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := a.cfg.Dataset.Initialise(sctx, gen, fresh); err != nil {
		return state, fmt.Errorf("initialise dataset: %w", err)
	}
	a.newborn = ""
	a.log.Info("stripes initialised", "gen", gen, "fresh", fresh, "all", state.Empty)
	// Another node may have been faster, with another id.
	after, err := a.cfg.Dataset.State(sctx)
	if err != nil {
		return after, fmt.Errorf("dataset state after initialising: %w", err)
	}
	if !after.Complete || after.Gen == "" {
		return after, fmt.Errorf("dataset is still incomplete: %w", quota.ErrUnavailable)
	}
	a.forgetDataset()
	return after, nil
}

// errUndecided ends a round in which the coordinator could not yet tell whether the
// region is new.
var errUndecided = fmt.Errorf("the first dataset waits until every region has reported: %w", quota.ErrUnavailable)

// nameDataset chooses the id of a dataset that is to be made, and keeps it until that
// is done: the coordinator takes two ids for two datasets.
func (a *Agent) nameDataset() error {
	if a.newborn != "" {
		return nil
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return fmt.Errorf("random dataset id: %w", err)
	}
	a.newborn = hex.EncodeToString(id[:])
	return nil
}

// forgetDataset drops all that was known of the dataset, so that it is read anew.
func (a *Agent) forgetDataset() {
	a.gen, a.epoch = "", 0
	a.held, a.reported, a.granted = nil, map[string]quota.QuotaReport{}, map[string]bool{}
	a.keys = newKeyBook()
	a.wantFull = true
}

func (a *Agent) revision() int64 {
	if v := a.engine.view.Load(); v != nil {
		return v.index.Revision()
	}
	return 0
}

// note publishes the state of the loop after a round.
func (a *Agent) note(err error) {
	s := *a.status.Load()
	s.Holder, s.Gen, s.Epoch, s.Settled, s.Err = a.wasHolder, a.gen, a.epoch, a.settled, err
	if err == nil && a.wasHolder && a.cfg.Coordinator != nil {
		s.LastReport = time.Now()
	}
	if s.LeaseUntil = (time.Time{}); a.engine.lease.until.Load() != nil {
		s.LeaseUntil = *a.engine.lease.until.Load()
	}
	a.status.Store(&s)
}

// fenced reports whether the dataset refused a write because it has moved on.
func fenced(err error) bool { return errors.Is(err, quota.ErrFenced) }
