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

// RunRegional runs one node of one region until ctx ends or a part fails.
func RunRegional(ctx context.Context, cfg RegionalConfig, log *slog.Logger) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	l := newLifecycle(log)
	if err := startRegional(ctx, l, cfg); err != nil {
		return errors.Join(err, l.stop())
	}
	return l.wait(ctx)
}

func startRegional(ctx context.Context, l *lifecycle, cfg RegionalConfig) error {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tracer, err := l.tracing(starting, cfg.OTLP, "weir-regional")
	if err != nil {
		return err
	}
	redis, err := cfg.Redis.store()
	if err != nil {
		return err
	}
	store, err := lua.Open(starting, redis)
	if err != nil {
		return err
	}
	l.onStop("redis", func(context.Context) error { return store.Close() })

	registry := newRegistry()
	policies := memory.New(time.Now)
	if err := l.watchFile(starting, cfg.Policies, policies, registry); err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(starting, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	n := node{
		region: quota.Region(cfg.Region), name: cfg.Node, report: cfg.Report, deadline: cfg.Deadline, drain: cfg.Drain,
		nodes: func() int { return cfg.Nodes }, store: store, policies: policies, registry: registry, tracer: tracer,
	}
	if n.name == "" {
		host, _ := os.Hostname()
		n.name = host + "/" + ln.Addr().String()
	}
	if cfg.Coordinator != "" {
		client, err := rpc.NewRegionClient(rpc.ClientConfig{URL: cfg.Coordinator, Timeout: 2 * time.Second, Logger: l.log})
		if err != nil {
			return errors.Join(err, ln.Close())
		}
		l.onStop("coordinator client", func(context.Context) error { return client.Close() })
		n.coordinator = client
	}
	_, server, err := l.startNode(starting, n)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	return l.serve(ln, server)
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
	policies    policystore.Store
	coordinator regional.Coordinator
	registry    *prometheus.Registry
	tracer      trace.TracerProvider
}

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
	source := newPolicySource(n.policies, n.region, n.registry, l.log)
	source.use = indexInto(engine.SetIndex)
	if err := source.load(ctx); err != nil {
		return nil, none, err
	}
	l.start("policies", source.run)
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
	done := make(chan error, 1)
	go func() {
		err := server.Serve(ln)
		if err != nil {
			select {
			case l.failed <- fmt.Errorf("serve %s: %w", ln.Addr(), err):
			default:
			}
		}
		done <- err
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
// region has heard from its coordinator or waited long enough.
type regionReadiness struct {
	engine      *regional.Engine
	agent       *regional.Agent
	coordinated bool
	since       time.Time
	settled     atomic.Bool
}

func (r *regionReadiness) check(context.Context) rpc.Readiness {
	health, agent := r.engine.Health(), r.agent.Status()
	heard := !r.coordinated || !agent.Holder || !agent.LastReport.IsZero()
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
