package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/quota"
)

// The intervals at which splits can be looked at again.
const (
	DefaultInterval = time.Minute
	MinInterval     = time.Second
)

// commitTimeout bounds a commit that nobody waits for.
const commitTimeout = 5 * time.Second

// Config is what a coordinator is made of. Regions and Ledger are mandatory.
type Config struct {
	// Regions are all regions, each once. A region that reports and is not named is refused.
	Regions []quota.Region
	// Interval is the time between rebalances; zero means DefaultInterval.
	Interval time.Duration
	Ledger   Ledger
	// LeaseTTL is the length of leases of partition mode strict; zero means
	// DefaultLeaseTTL. All coordinators that use the ledger, one after the other,
	// must have the same.
	LeaseTTL time.Duration
	// Now is the clock, time.Now when nil. It must be monotonic.
	Now func() time.Time
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// Registerer takes the metrics; nil registers them nowhere.
	Registerer prometheus.Registerer
	// OnRebalance is called after each rebalance, when its first shares are
	// committed. It is not called concurrently, and holds up the next rebalance.
	OnRebalance func(Rebalance)
}

func (c Config) withDefaults() (Config, error) {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = DefaultLeaseTTL
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Regions = slices.Clone(c.Regions)
	slices.Sort(c.Regions)
	switch {
	case len(c.Regions) == 0:
		return c, fmt.Errorf("coordinator: Regions is empty: %w", quota.ErrInvalid)
	case slices.Contains(c.Regions, ""):
		return c, fmt.Errorf("coordinator: Regions has a region without name: %w", quota.ErrInvalid)
	case len(slices.Compact(slices.Clone(c.Regions))) != len(c.Regions):
		return c, fmt.Errorf("coordinator: Regions names a region twice: %w", quota.ErrInvalid)
	case c.Interval < MinInterval:
		return c, fmt.Errorf("coordinator: Interval %v is under %v: %w", c.Interval, MinInterval, quota.ErrInvalid)
	case c.LeaseTTL < MinLeaseTTL:
		return c, fmt.Errorf("coordinator: LeaseTTL %v is under %v: %w", c.LeaseTTL, MinLeaseTTL, quota.ErrInvalid)
	case c.Ledger == nil:
		return c, fmt.Errorf("coordinator: Ledger is missing: %w", quota.ErrInvalid)
	}
	return c, nil
}

// Coordinator drives a Machine: it adds the clock, the ledger and the loop. All
// methods may be called concurrently.
type Coordinator struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	// commit serialises commits and is taken before mu. mu guards the machine and
	// is never held while the ledger is asked.
	commit  sync.Mutex
	mu      sync.Mutex
	machine *Machine

	wake chan struct{}
}

// New begins an epoch of the ledger and returns a coordinator that continues
// from what the ledger holds.
func New(ctx context.Context, cfg Config) (*Coordinator, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s, err := cfg.Ledger.Load(ctx, 0)
	if err != nil {
		return nil, fmt.Errorf("load the ledger: %w", err)
	}
	c := &Coordinator{
		cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1),
		machine: NewMachine(cfg.Now(), cfg.Interval, cfg.Regions, s),
	}
	c.machine.SetLeaseTTL(cfg.LeaseTTL)
	c.metrics = newMetrics(cfg.Registerer, cfg.Regions, c)
	c.log.Info("coordinator starts", "epoch", s.Epoch, "rows", len(s.Rows), "recovering", c.machine.Recovering())
	return c, nil
}

// SetPolicies makes the policies of a revision those to split. The policies are
// not changed and must not be changed afterwards. It fails with
// quota.ErrConflict when a later revision is in force.
func (c *Coordinator) SetPolicies(revision int64, policies []*quota.Policy) error {
	c.mu.Lock()
	err := c.machine.SetPolicies(c.cfg.Now(), revision, policies)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select { // the loop commits; so does any report before it is answered
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// Report takes in what a region says and answers with what it should apply. What
// the answer grants is in the ledger before it is returned. It fails with
// quota.ErrInvalid for an unknown region or impossible numbers, and with
// quota.ErrFenced when there is a later leader.
func (c *Coordinator) Report(ctx context.Context, rep quota.Report) (quota.Instructions, error) {
	if err := c.take(ctx, rep); err != nil {
		switch {
		case errors.Is(err, quota.ErrInvalid):
			c.metrics.refused.invalid.Inc()
		case errors.Is(err, quota.ErrFenced):
			c.metrics.refused.fenced.Inc()
		}
		return quota.Instructions{}, err
	}
	if err := c.flush(ctx); errors.Is(err, quota.ErrFenced) {
		c.metrics.refused.fenced.Inc()
		return quota.Instructions{}, err
	}
	// A ledger that does not answer keeps back what is not committed, no more.
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.machine.Served() {
		c.metrics.borrowTime.Observe(d.Seconds())
	}
	return c.machine.Instructions(rep), nil
}

// take hands a report to the machine. A coordinator whose ledger may have lost
// rows may be behind the epoch of the regions, and then begins a later one.
func (c *Coordinator) take(ctx context.Context, rep quota.Report) error {
	c.mu.Lock()
	recovering := c.machine.Recovering()
	err := c.machine.Report(c.cfg.Now(), rep)
	c.mu.Unlock()
	if !recovering || !errors.Is(err, quota.ErrFenced) {
		return err
	}
	c.commit.Lock()
	defer c.commit.Unlock()
	c.mu.Lock()
	behind := rep.Epoch > c.machine.epoch
	c.mu.Unlock()
	if behind {
		s, err := c.cfg.Ledger.Load(ctx, rep.Epoch+unusedEpochs())
		if err != nil {
			return fmt.Errorf("begin an epoch above %d: %w", rep.Epoch, err)
		}
		c.log.Info("epoch raised above that of a region", "region", rep.Region, "epoch", s.Epoch)
		c.mu.Lock()
		c.machine.Begin(c.cfg.Now(), s.Epoch)
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Report(c.cfg.Now(), rep)
}

// unusedEpochs is how far to go above a region's epoch: a random way, since the
// report may be an old one, and later epochs in use. Taking one of these again would
// make what is still under way from it look like this coordinator's own.
func unusedEpochs() quota.Epoch {
	return quota.Epoch(rand.Int64N(1 << 40)) //nolint:gosec // against chance, not against an adversary
}

// flush commits what is pending. Errors are logged here.
func (c *Coordinator) flush(ctx context.Context) error {
	c.commit.Lock()
	defer c.commit.Unlock()
	c.mu.Lock()
	batch, epoch := c.machine.Pending(), c.machine.epoch
	c.mu.Unlock()
	if batch.Empty() {
		return nil
	}
	err := c.cfg.Ledger.Commit(ctx, epoch, batch)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.machine.Failed(batch)
		c.metrics.commits.failed.Inc()
		c.log.Warn("ledger commit failed; nothing of it is granted", "rows", len(batch.Rows), "error", err)
		return fmt.Errorf("commit the ledger: %w", err)
	}
	c.machine.Committed(batch)
	c.metrics.commits.ok.Inc()
	return nil
}

// Run rebalances at every interval until the context ends, which is no error. It
// returns quota.ErrFenced when another coordinator has begun a later epoch. It
// must not run twice at once.
func (c *Coordinator) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-c.wake:
		}
		if err := c.tick(ctx); err != nil {
			return err
		}
		c.mu.Lock()
		wait := c.machine.Next().Sub(c.cfg.Now())
		c.mu.Unlock()
		// Once due and still recovering, there is nothing to wait for but reports.
		if wait <= 0 {
			wait = MinInterval
		}
		timer.Reset(wait)
	}
}

func (c *Coordinator) tick(ctx context.Context) error {
	start := time.Now()
	c.mu.Lock()
	result, done := c.machine.Tick(c.cfg.Now())
	c.mu.Unlock()
	result.Duration = time.Since(start)
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := c.flush(ctx); errors.Is(err, quota.ErrFenced) {
		return err
	}
	if !done {
		return nil
	}
	c.metrics.rebalances.Inc()
	c.metrics.changes.Add(float64(len(result.Changes)))
	c.metrics.duration.Observe(result.Duration.Seconds())
	c.log.Debug("rebalanced", "quotas", result.Quotas, "changes", len(result.Changes), "duration", result.Duration)
	if c.cfg.OnRebalance != nil {
		c.cfg.OnRebalance(result)
	}
	return nil
}

// Status returns what the coordinator knows, with every quota.
func (c *Coordinator) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Status(c.cfg.Now())
}

// StatusOfFirst is Status with at most so many quotas, for a page that is drawn each second.
func (c *Coordinator) StatusOfFirst(quotas int) Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.statusOf(c.cfg.Now(), quotas)
}

// Overview returns what the coordinator knows without the single quotas.
func (c *Coordinator) Overview() Overview {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Overview(c.cfg.Now())
}

// Splits returns a page of quotas and whether there are more.
func (c *Coordinator) Splits(q SplitQuery) (page []QuotaStatus, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Splits(c.cfg.Now(), q)
}
