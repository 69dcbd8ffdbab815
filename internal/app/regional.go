package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

// startTimeout bounds the start of a role: reaching its store, reading its policies.
const startTimeout = 30 * time.Second

// reportTimeout bounds one call of one coordinator, so that there is time to ask another.
const reportTimeout = 2 * time.Second

// StartRegional starts one node of one region.
func StartRegional(ctx context.Context, cfg RegionalConfig, log *slog.Logger) (*Role, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return startRole(log, func(l *lifecycle) (net.Listener, error) { return startRegional(ctx, l, cfg) })
}

func startRegional(ctx context.Context, l *lifecycle, cfg RegionalConfig) (net.Listener, error) {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tracer, err := l.tracing(starting, cfg.OTLP, "weir-regional")
	if err != nil {
		return nil, err
	}
	redis, err := cfg.Redis.store()
	if err != nil {
		return nil, err
	}
	store, err := lua.Open(starting, redis)
	if err != nil {
		return nil, err
	}
	l.onStop("redis", func(context.Context) error { return store.Close() })

	ln, err := (&net.ListenConfig{}).Listen(starting, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	n := node{
		region: quota.Region(cfg.Region), name: cfg.Node, report: cfg.Report, deadline: cfg.Deadline, drain: cfg.Drain,
		nodes: func() int { return cfg.Nodes }, store: store, registry: newRegistry(), tracer: tracer,
	}
	if n.name == "" {
		host, _ := os.Hostname() // without a name the address must do
		n.name = host + "/" + ln.Addr().String()
	}
	server, err := l.startFrom(starting, cfg, n)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, l.serve(ln, server)
}

// startFrom starts a node with its coordinator, if it has one, and its policies, from
// a file or from the coordinator.
func (l *lifecycle) startFrom(ctx context.Context, cfg RegionalConfig, n node) (rpc.ServerConfig, error) {
	c, err := l.dial(cfg)
	if err != nil {
		return rpc.ServerConfig{}, err
	}
	if len(cfg.Coordinator) > 0 {
		n.coordinator = c
	}
	if cfg.Policies != "" {
		policies := memory.New(time.Now)
		if err := l.watchFile(ctx, cfg.Policies, policies, n.registry); err != nil {
			return rpc.ServerConfig{}, err
		}
		n.policies = l.fromStore(policies, n.region, n.registry)
	} else {
		n.policies = l.fromCoordinator(c, n.region, cfg.Snapshot, n.registry)
	}
	_, server, err := l.startNode(ctx, n)
	return server, err
}

// fromStore feeds an engine from a store in this process.
func (l *lifecycle) fromStore(store policystore.Store, region quota.Region, reg prometheus.Registerer) policyFeed {
	inForce := func(ctx context.Context) (policystore.Snapshot, error) { return store.InForce(ctx, region) }
	source := newPolicySource(store, inForce, reg, l.log)
	return func(ctx context.Context, set func(*quota.Index)) error {
		source.use = indexInto(set)
		if err := source.load(ctx); err != nil {
			return err
		}
		l.start("policies", source.run)
		return nil
	}
}

// fromCoordinator feeds an engine from the coordinator's stream, or at first from the
// snapshot of an earlier run.
func (l *lifecycle) fromCoordinator(c *coordinators, region quota.Region, snapshot string, reg prometheus.Registerer) policyFeed {
	f := newFollower(region, snapshot, reg, l.log)
	f.watch = func(ctx context.Context, known *rpc.WatchPosition, use func(rpc.PolicyUpdate) error) error {
		return c.watch(ctx, region, known, use)
	}
	return func(ctx context.Context, set func(*quota.Index)) error {
		f.use = indexInto(set)
		f.restore()
		if snapshot != "" {
			l.start("policy snapshot", f.keep)
		}
		l.start("policies", f.run)
		select {
		case <-f.loaded:
			return nil
		case <-ctx.Done():
			return errors.New("no policies: the coordinator did not send any, and there is no snapshot of an earlier run")
		}
	}
}

// node is what a regional node is made of.
type node struct {
	region      quota.Region
	name        string
	report      time.Duration
	deadline    time.Duration
	drain       time.Duration
	nodes       func() int
	floor       func(*quota.Policy) quota.Share
	store       *lua.Store
	policies    policyFeed
	coordinator regional.Coordinator
	registry    *prometheus.Registry
	tracer      trace.TracerProvider
}

// policyFeed brings policies into force, now and whenever they change. It returns when
// the first set is in force.
type policyFeed func(ctx context.Context, set func(*quota.Index)) error

// startNode starts all of a node but its server, whose configuration it returns.
func (l *lifecycle) startNode(ctx context.Context, n node) (*regional.Engine, rpc.ServerConfig, error) {
	var none rpc.ServerConfig
	if n.floor == nil {
		// A region that does not know the others has no floor before it is told one.
		n.floor = func(*quota.Policy) quota.Share { return quota.Share{} }
	}
	var tracer trace.Tracer
	if n.tracer != nil {
		tracer = n.tracer.Tracer("github.com/weirhq/weir/regional")
	}
	engine, err := regional.New(regional.Config{
		Store: n.store, KeyPrefix: n.store.Prefix(), Stripes: n.store.Stripes(),
		Standalone: n.coordinator == nil, Floor: n.floor, Nodes: n.nodes, StoreDeadline: n.deadline,
		Registerer: n.registry, Logger: l.log, Tracer: tracer,
	})
	if err != nil {
		return nil, none, err
	}
	l.onStop("engine", engine.Close)
	if err := n.policies(ctx, engine.SetIndex); err != nil {
		return nil, none, err
	}
	agent, err := regional.NewAgent(regional.AgentConfig{
		Engine: engine, Dataset: n.store, Coordinator: n.coordinator,
		Region: n.region, Node: n.name, Interval: n.report, Logger: l.log,
	})
	if err != nil {
		return nil, none, err
	}
	l.start("agent", agent.Run)
	ready := regionReadiness{engine: engine, agent: agent, coordinated: n.coordinator != nil, since: time.Now()}
	return engine, rpc.ServerConfig{
		Limiter: engine, Registry: n.registry, Logger: l.log, TracerProvider: n.tracer,
		Ready: ready.check, DrainDelay: n.drain,
	}, nil
}

// serve runs a server on a listener, which it owns.
func (l *lifecycle) serve(ln net.Listener, cfg rpc.ServerConfig) error {
	server, err := rpc.NewServer(cfg)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	l.log.Info("serving", "address", ln.Addr().String())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := server.Serve(ln)
		if err != nil {
			select {
			case l.failed <- fmt.Errorf("serve %s: %w", ln.Addr(), err):
			default:
			}
		}
	}()
	l.onStop("server", func(ctx context.Context) error {
		err := server.Stop(ctx)
		select {
		case <-done:
		case <-ctx.Done():
		}
		return err
	})
	return nil
}

// patience is how long a new node waits for its first shares before it serves with
// what the dataset holds. The limiter must not be the outage.
const patience = 5 * time.Second

// regionReadiness says when a node should get traffic: once it has policies, and the
// region has its shares or waited long enough for them.
type regionReadiness struct {
	engine      *regional.Engine
	agent       *regional.Agent
	coordinated bool
	since       time.Time
	settled     atomic.Bool
}

func (r *regionReadiness) check(context.Context) rpc.Readiness {
	health, agent := r.engine.Health(), r.agent.Status()
	heard := !r.coordinated || !agent.Holder || agent.Settled
	if health.Ready && (heard || time.Since(r.since) > patience) {
		r.settled.Store(true)
	}
	detail := map[string]any{
		"revision": health.Revision, "degraded": health.Degraded,
		"agent": map[string]any{"holder": agent.Holder, "dataset": agent.Gen, "epoch": agent.Epoch},
	}
	if !agent.LastReport.IsZero() {
		detail["coordinatorSeconds"] = time.Since(agent.LastReport).Seconds()
	}
	if agent.Err != nil {
		detail["agentError"] = agent.Err.Error()
	}
	return rpc.Readiness{Ready: r.settled.Load(), Detail: detail}
}
