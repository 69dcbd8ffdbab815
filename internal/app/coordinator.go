package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/coordinator"
	ledger "github.com/weirhq/weir/coordinator/memory"
	pgledger "github.com/weirhq/weir/coordinator/postgres"
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
	ln, err := (&net.ListenConfig{}).Listen(starting, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	server, err := l.startDividing(starting, cfg, ln.Addr(), policies, registry)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	server.Registry, server.Logger, server.TracerProvider = registry, l.log, tracer
	server.DrainDelay, server.Auth = cfg.Drain, policies.auth
	server.Policies = policyService(policies.store, policies.instance, len(cfg.Regions))
	return ln, l.serve(ln, server)
}

// startDividing starts what splits the limits: one of several candidates for the lead
// over a ledger in Postgres, or the only coordinator over one in memory.
func (l *lifecycle) startDividing(
	ctx context.Context, cfg CoordinatorConfig, addr net.Addr, p policies, registry *prometheus.Registry,
) (rpc.ServerConfig, error) {
	s := split{interval: cfg.Rebalance, policies: p.store, registry: registry}
	for _, r := range cfg.Regions {
		s.regions = append(s.regions, quota.Region(r))
	}
	if p.pool != nil {
		name, url := names(cfg.Advertise, addr)
		c, err := l.startCandidate(ctx, s, cfg.Postgres, name, url)
		if err != nil {
			return rpc.ServerConfig{}, err
		}
		status := candidateStatus{name, c}
		return rpc.ServerConfig{
			Regions: c, Mounts: consoleMounts(func() any { return c.StatusOfFirst(consoleQuotas) }),
			Ready: coordinatorReadiness(func() coordinator.Overview { return c.Overview().Overview }),
			Status: &rpc.StatusConfig{
				Name: name, Source: status, Leader: status.leader,
				Ledger: ledgerKeeper{pgledger.NewLedger(pgledger.Config{Pool: p.pool, Logger: l.log}), p.audit, c},
			},
		}, nil
	}
	s.ledger = ledger.New()
	c, err := l.startSplit(ctx, s)
	if err != nil {
		return rpc.ServerConfig{}, err
	}
	l.log.Warn("the ledger is in memory: after a restart no share grows until every region has reported")
	name, url := names(cfg.Advertise, addr)
	return rpc.ServerConfig{
		Regions: c, Ready: coordinatorReadiness(c.Overview),
		Mounts: consoleMounts(func() any { return c.StatusOfFirst(consoleQuotas) }),
		Status: &rpc.StatusConfig{Name: name, Source: onlyStatus{name, url, c}},
	}, nil
}

// names returns what a coordinator is called and where it is reached.
func names(advertise string, addr net.Addr) (name, url string) {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		host = addr.String()
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		if h, err := os.Hostname(); err == nil {
			host = h
		}
	}
	name = net.JoinHostPort(host, port)
	return name, cmp.Or(advertise, "http://"+name)
}

// beatConnections are what a candidate needs beside the policies' pool: a beat must not
// wait behind other statements.
const beatConnections = 3

func (l *lifecycle) startCandidate(ctx context.Context, s split, cfg PostgresConfig, name, url string) (*coordinator.Candidate, error) {
	pool, err := cfg.poolOf(ctx, beatConnections)
	if err != nil {
		return nil, err
	}
	l.onStop("ledger", func(context.Context) error { pool.Close(); return nil })
	c, err := coordinator.NewCandidate(coordinator.CandidateConfig{
		Config: coordinator.Config{
			Regions: s.regions, Interval: s.interval, Logger: l.log, Registerer: s.registry, OnRebalance: s.onRebalance,
		},
		Election: pgledger.NewElection(pgledger.Config{Pool: pool, Logger: l.log}), Name: name, URL: url,
	})
	if err != nil {
		return nil, err
	}
	return c, l.startDivider(ctx, s, c)
}

// policies are where a coordinator keeps policies and who may change them.
type policies struct {
	store    policystore.Store
	audit    policystore.Recorder
	pool     *pgxpool.Pool // nil when the store is in memory
	instance string
	auth     *rpc.AuthConfig
}

// openPolicies opens the policy store: Postgres, or memory for what a file says.
func (l *lifecycle) openPolicies(ctx context.Context, cfg CoordinatorConfig) (policies, error) {
	p := policies{}
	var tokens policystore.Tokens
	if cfg.Postgres.URL == "" {
		store := memory.New(time.Now)
		p.store, p.audit, p.instance, tokens = store, store, rand.Text(), store
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
		p.store, p.audit, p.pool, tokens = store, store, pool, store
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

func policyService(store policystore.Store, instance string, regions int) *rpc.PolicyConfig {
	return &rpc.PolicyConfig{
		Store: store, Parse: document.Policies, Marshal: document.Marshal, Instance: instance,
		Warn:         func(text []byte) []quota.Problem { return append(SmallLimits(text, regions), StrictModes(text)...) },
		WarnOverride: func(p *quota.Policy, o *quota.Override) (quota.Problem, bool) { return smallOverride(p, o, regions) },
	}
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
	return c, l.startDivider(ctx, s, c)
}

// divider is a coordinator or a candidate for being one.
type divider interface {
	SetPolicies(revision int64, policies []*quota.Policy) error
	Run(ctx context.Context) error
}

// startDivider feeds a divider with policies and runs it.
func (l *lifecycle) startDivider(ctx context.Context, s split, c divider) error {
	inForce := func(ctx context.Context) (policystore.Snapshot, error) { return splitSet(ctx, s.policies) }
	source := newPolicySource(s.policies, inForce, s.registry, l.log)
	source.use = func(revision int64, policies []*quota.Policy, _ []quota.Override) error {
		return c.SetPolicies(revision, policies)
	}
	if err := source.load(ctx); err != nil {
		return err
	}
	l.start("policies", source.run)
	l.start("rebalancing", c.Run)
	return nil
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

func coordinatorReadiness(status func() coordinator.Overview) func(context.Context) rpc.Readiness {
	return func(context.Context) rpc.Readiness {
		s := status()
		silent := []quota.Region{}
		for _, r := range s.Regions {
			if r.Silent {
				silent = append(silent, r.Region)
			}
		}
		return rpc.Readiness{Ready: true, Detail: map[string]any{
			"epoch": s.Epoch, "revision": s.Revision, "recovering": s.Ledger == coordinator.LedgerRecovering, "silentRegions": silent,
		}}
	}
}
