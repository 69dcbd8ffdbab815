package app

import (
	"context"
	"crypto/rand"
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
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/policystore/postgres"
	"github.com/weirhq/weir/quota"
)

// StartCoordinator starts a coordinator.
func StartCoordinator(ctx context.Context, cfg CoordinatorConfig, log *slog.Logger) (*Role, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return startRole(log, func(l *lifecycle) (net.Listener, error) { return startCoordinator(ctx, l, cfg) })
}

func startCoordinator(ctx context.Context, l *lifecycle, cfg CoordinatorConfig) (net.Listener, error) {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tracer, err := l.tracing(starting, cfg.OTLP, "weir-coordinator")
	if err != nil {
		return nil, err
	}
	registry := newRegistry()
	policies, err := l.openPolicies(starting, cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Policies != "" {
		if err := l.watchFile(starting, cfg.Policies, policies.store, registry); err != nil {
			return nil, err
		}
	}
	regions := make([]quota.Region, len(cfg.Regions))
	for i, r := range cfg.Regions {
		regions[i] = quota.Region(r)
	}
	c, err := l.startSplit(starting, split{
		regions: regions, interval: cfg.Rebalance, ledger: ledger.New(), policies: policies.store, registry: registry,
	})
	if err != nil {
		return nil, err
	}
	ln, err := (&net.ListenConfig{}).Listen(starting, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	l.log.Warn("the ledger is in memory: after a restart no share grows until every region has reported")
	return ln, l.serve(ln, rpc.ServerConfig{
		Regions: c, Registry: registry, Logger: l.log, TracerProvider: tracer, DrainDelay: cfg.Drain,
		Policies: policyService(policies.store, policies.instance), Auth: policies.auth,
		Ready:  coordinatorReadiness(c),
		Mounts: consoleMounts(func() any { return c.Status() }),
	})
}

// policies are where a coordinator keeps policies and who may change them.
type policies struct {
	store    policystore.Store
	instance string
	auth     *rpc.AuthConfig
}

// openPolicies opens the policy store: Postgres, or memory for what a file says.
func (l *lifecycle) openPolicies(ctx context.Context, cfg CoordinatorConfig) (policies, error) {
	p := policies{}
	var tokens policystore.Tokens
	if cfg.Postgres.URL == "" {
		store := memory.New(time.Now)
		p.store, p.instance, tokens = store, rand.Text(), store
	} else {
		pool, err := cfg.Postgres.pool(ctx)
		if err != nil {
			return p, err
		}
		l.onStop("postgres", func(context.Context) error { pool.Close(); return nil })
		if err := pendingMigrations(ctx, pool); err != nil {
			return p, err
		}
		store := postgres.New(postgres.Config{Pool: pool, Logger: l.log})
		l.start("policy changes", store.Listen)
		p.store, tokens = store, store
	}
	admin, err := secretFile("admin-token-file", cfg.AdminFile)
	if err != nil {
		return p, err
	}
	if cfg.Auth == authNone || cfg.Auth == "" && cfg.Postgres.URL == "" {
		l.log.Warn("NO AUTHENTICATION: everybody who reaches this port may change every limit")
		return p, nil
	}
	p.auth = &rpc.AuthConfig{Tokens: tokens, Bootstrap: rpc.Secret(admin)}
	return p, nil
}

func policyService(store policystore.Store, instance string) *rpc.PolicyConfig {
	return &rpc.PolicyConfig{Store: store, Parse: document.Policies, Marshal: document.Marshal, Instance: instance}
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
	inForce := func(ctx context.Context) (policystore.Snapshot, error) { return splitSet(ctx, s.policies) }
	source := newPolicySource(s.policies, inForce, s.registry, l.log)
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

// everywhere is a region name that no rollout can name, so that what is in force in it is
// what is in force in all regions.
const everywhere quota.Region = ""

// splitSet is the set whose limits are split: what is in force everywhere and, while a
// revision is rolled out to some regions, also the policies that are new with it. A
// limit that it changes is split as it was until the revision is in force everywhere.
func splitSet(ctx context.Context, store policystore.Store) (policystore.Snapshot, error) {
	set, err := store.InForce(ctx, everywhere)
	if err != nil {
		return set, err
	}
	head, err := store.Current(ctx)
	if err != nil || head.Number == set.Number {
		return set, err
	}
	known := make(map[string]bool, len(set.Policies))
	for _, p := range set.Policies {
		known[p.ID] = true
	}
	for _, p := range head.Policies {
		if !known[p.ID] {
			set.Policies = append(set.Policies, p)
		}
	}
	set.Revision = head.Revision
	return set, nil
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
