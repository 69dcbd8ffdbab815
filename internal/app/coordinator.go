package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/coordinator"
	ledger "github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/internal/console"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

// RunCoordinator runs the coordinator until ctx ends or a part fails.
func RunCoordinator(ctx context.Context, cfg CoordinatorConfig, log *slog.Logger) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	l := newLifecycle(log)
	if err := startCoordinator(ctx, l, cfg); err != nil {
		return errors.Join(err, l.stop())
	}
	return l.wait(ctx)
}

func startCoordinator(ctx context.Context, l *lifecycle, cfg CoordinatorConfig) error {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tracer, err := l.tracing(starting, cfg.OTLP, "weir-coordinator")
	if err != nil {
		return err
	}
	registry := newRegistry()
	policies := memory.New(time.Now)
	if err := l.watchFile(starting, cfg.Policies, policies, registry); err != nil {
		return err
	}
	regions := make([]quota.Region, len(cfg.Regions))
	for i, r := range cfg.Regions {
		regions[i] = quota.Region(r)
	}
	c, err := l.startSplit(starting, split{
		regions: regions, interval: cfg.Rebalance, ledger: ledger.New(), policies: policies, registry: registry,
	})
	if err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(starting, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	l.log.Warn("the ledger is in memory: after a restart no share grows until every region has reported")
	return l.serve(ln, rpc.ServerConfig{
		Regions: c, Registry: registry, Logger: l.log, TracerProvider: tracer, DrainDelay: cfg.Drain,
		Ready:  coordinatorReadiness(c),
		Mounts: consoleMounts(func() any { return c.Status() }),
	})
}

// split is what the coordinator's part of a process is made of.
type split struct {
	regions     []quota.Region
	interval    time.Duration
	ledger      coordinator.Ledger
	policies    policystore.Store
	registry    *prometheus.Registry
	onRebalance func(coordinator.Rebalance)
}

func (l *lifecycle) startSplit(ctx context.Context, s split) (*coordinator.Coordinator, error) {
	c, err := coordinator.New(ctx, coordinator.Config{
		Regions: s.regions, Interval: s.interval, Ledger: s.ledger,
		Logger: l.log, Registerer: s.registry, OnRebalance: s.onRebalance,
	})
	if err != nil {
		return nil, err
	}
	// The coordinator splits what is in force anywhere; a region name that no
	// revision can name selects the revisions that are live everywhere.
	source := newPolicySource(s.policies, "", s.registry, l.log)
	source.use = func(revision int64, policies []*quota.Policy, _ []quota.Override) error {
		return c.SetPolicies(revision, policies)
	}
	if err := source.load(ctx); err != nil {
		return nil, err
	}
	l.start("policies", source.run)
	l.start("rebalancing", c.Run)
	return c, nil
}

func consoleMounts(status func() any) []rpc.Mount {
	handler := console.Handler(status)
	return []rpc.Mount{{Pattern: console.PagePath + "{$}", Handler: handler}, {Pattern: console.StatusPath, Handler: handler}}
}

func coordinatorReadiness(c *coordinator.Coordinator) func(context.Context) rpc.Readiness {
	return func(context.Context) rpc.Readiness {
		s := c.Status()
		silent := []quota.Region{}
		for _, r := range s.Regions {
			if r.Silent {
				silent = append(silent, r.Region)
			}
		}
		return rpc.Readiness{Ready: true, Detail: map[string]any{
			"epoch": s.Epoch, "revision": s.Revision, "recovering": s.Recovering, "silentRegions": silent,
		}}
	}
}
