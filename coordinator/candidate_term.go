package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/quota"
)

// term is the time from when a ledger is loaded to when it has to be loaded again.
type term struct {
	tenure string
	cancel context.CancelFunc
	failed chan error
	done   chan struct{}
}

// failure returns a channel that says why the term cannot go on; nil, which never
// does, without a term.
func (t *term) failure() <-chan error {
	if t == nil {
		return nil
	}
	return t.failed
}

// end returns when nothing of the term runs any more.
func (t *term) end() {
	t.cancel()
	<-t.done
}

func (c *Candidate) begin(ctx context.Context, tenure string, above quota.Epoch) *term {
	ctx, cancel := context.WithCancel(ctx)
	t := &term{tenure: tenure, cancel: cancel, failed: make(chan error, 1), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		if err := c.lead(ctx, tenure, above); err != nil {
			t.failed <- err
		}
	}()
	return t
}

// lead loads the ledger and serves until the context ends, which is no error, or a
// later epoch begins.
func (c *Candidate) lead(ctx context.Context, tenure string, above quota.Epoch) error {
	for {
		cfg, registry := c.cfg.Config, prometheus.NewRegistry()
		cfg.Ledger, cfg.Registerer = atLeast{c.cfg.Election.Ledger(tenure), above}, registry
		serving, err := New(ctx, cfg)
		if err == nil {
			return c.serve(ctx, serving, registry)
		}
		if errors.Is(err, quota.ErrFenced) {
			return err
		}
		c.log.Warn("the ledger could not be loaded", "retry_in", retryEvery, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryEvery):
		}
	}
}

func (c *Candidate) serve(ctx context.Context, serving *Coordinator, registry *prometheus.Registry) error {
	if reg := c.cfg.Registerer; reg != nil {
		if err := reg.Register(registry); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
		defer reg.Unregister(registry)
	}
	if err := c.publish(serving); err != nil {
		return err
	}
	defer c.withdraw()
	return serving.Run(ctx)
}

func (c *Candidate) publish(serving *Coordinator) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.configured {
		if err := serving.SetPolicies(c.revision, c.policies); err != nil {
			return err
		}
	}
	c.serving = serving
	return nil
}

func (c *Candidate) withdraw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = nil
}

// atLeast is a ledger whose next epoch is above one that a region has followed.
type atLeast struct {
	Ledger
	epoch quota.Epoch
}

func (l atLeast) Load(ctx context.Context, above quota.Epoch) (Snapshot, error) {
	return l.Ledger.Load(ctx, max(above, l.epoch))
}
