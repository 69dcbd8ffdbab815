package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirhq/weir/coordinator"
	ledger "github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

// DevRegions are the regions of dev mode, in the order of their ports.
var DevRegions = []quota.Region{"us-east", "eu-west", "ap-south"}

// devStripes is small because each rebalance is applied to every stripe of three
// regions in one process.
const devStripes = 16

// devDeadline is generous: three regions, their stores, the clients and perhaps a
// build share one laptop, and nobody is there to be protected from waiting.
const devDeadline = 250 * time.Millisecond

// Dev is a whole deployment in one process.
type Dev struct {
	// Coordinator is the base URL of the coordinator and the console, Regions
	// those of the regional nodes in the order of DevRegions.
	Coordinator string
	Regions     []string

	coordinator *coordinator.Coordinator
	engines     []*regional.Engine
	life        *lifecycle
	traffic     *traffic
	rebalanced  chan struct{}
}

// RunDev runs a coordinator and three regions in one process on embedded parts,
// and writes to out what a newcomer needs to know, until ctx ends or a part fails.
func RunDev(ctx context.Context, cfg DevConfig, log *slog.Logger, out io.Writer) error {
	d, err := StartDev(ctx, cfg, log)
	if err != nil {
		return err
	}
	d.welcome(out)
	if cfg.Traffic {
		d.life.start("rebalance lines", func(ctx context.Context) error { return d.narrate(ctx, out) })
	}
	return d.Wait(ctx)
}

// StartDev starts dev mode and returns when it answers. The caller must call Wait or Stop.
func StartDev(ctx context.Context, cfg DevConfig, log *slog.Logger) (*Dev, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := &Dev{life: newLifecycle(log), rebalanced: make(chan struct{}, 1)}
	if err := d.start(ctx, cfg); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// Wait blocks until ctx ends or a part fails, then stops everything.
func (d *Dev) Wait(ctx context.Context) error { return d.life.wait(ctx) }

// Stop stops everything. It may be called again.
func (d *Dev) Stop() error { return d.life.stop() }

// Status is what the coordinator knows of regions and splits.
func (d *Dev) Status() coordinator.Status { return d.coordinator.Status() }

func (d *Dev) start(ctx context.Context, cfg DevConfig) error {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	registry := newRegistry()
	policies := memory.New(time.Now)
	if cfg.Policies != "" {
		if err := d.life.watchFile(starting, cfg.Policies, policies, registry); err != nil {
			return err
		}
	} else if err := applyExample(starting, policies); err != nil {
		return err
	}
	c, err := d.life.startSplit(starting, split{
		regions: DevRegions, interval: cfg.Rebalance, ledger: ledger.NewComplete(), policies: policies, registry: registry,
		onRebalance: func(coordinator.Rebalance) {
			select {
			case d.rebalanced <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	d.coordinator = c
	servers := make([]rpc.ServerConfig, len(DevRegions))
	for i, region := range DevRegions {
		if servers[i], err = d.startRegion(starting, region, policies); err != nil {
			return fmt.Errorf("region %s: %w", region, err)
		}
	}
	if err := d.settle(starting); err != nil {
		return err
	}
	for i, server := range servers {
		ln, url, err := listenDev(starting, cfg, i+1)
		if err != nil {
			return err
		}
		d.Regions = append(d.Regions, url)
		if err := d.life.serve(ln, server); err != nil {
			return err
		}
	}
	if cfg.Traffic {
		d.traffic = newTraffic(DevRegions, d.engines)
		d.life.start("traffic", d.traffic.run)
	}
	ln, url, err := listenDev(starting, cfg, 0)
	if err != nil {
		return err
	}
	d.Coordinator = url
	return d.life.serve(ln, rpc.ServerConfig{
		Regions: c, Registry: registry, Logger: d.life.log, Ready: coordinatorReadiness(c.Overview),
		Policies: policyService(policies, rand.Text(), len(DevRegions)),
		Status:   &rpc.StatusConfig{Name: "dev", Source: onlyStatus{"dev", url, c}},
		Mounts:   consoleMounts(d.consoleStatus),
	})
}

// startRegion runs one node on a Redis of its own in this process.
func (d *Dev) startRegion(ctx context.Context, region quota.Region, policies policystore.Store) (rpc.ServerConfig, error) {
	redis := miniredis.NewMiniRedis()
	if err := redis.Start(); err != nil {
		return rpc.ServerConfig{}, fmt.Errorf("embedded Redis: %w", err)
	}
	d.life.onStop("embedded redis", func(context.Context) error { redis.Close(); return nil })
	d.life.start("embedded redis clock", func(ctx context.Context) error { return expireKeys(ctx, redis) })
	store, err := lua.Open(ctx, lua.Config{Addrs: []string{redis.Addr()}, Stripes: devStripes})
	if err != nil {
		return rpc.ServerConfig{}, err
	}
	d.life.onStop("redis client", func(context.Context) error { return store.Close() })
	registry := newRegistry()
	engine, server, err := d.life.startNode(ctx, node{
		region: region, name: string(region) + "-1", report: time.Second, deadline: devDeadline, nodes: func() int { return 1 },
		floor: func(p *quota.Policy) quota.Share { return coordinator.Floor(DevRegions, region, p) },
		store: store, policies: d.life.fromStore(policies, region, registry), coordinator: d.coordinator, registry: registry,
	})
	d.engines = append(d.engines, engine)
	return server, err
}

// settle waits until every region has acknowledged its first shares.
func (d *Dev) settle(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := d.coordinator.Overview()
		pending := s.Ledger == coordinator.LedgerRecovering
		for _, r := range s.Regions {
			pending = pending || r.Pending > 0 || r.LastReport.IsZero()
		}
		if !pending {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-d.life.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("the regions have not taken their first shares: %w", ctx.Err())
		}
	}
}

// expireKeys moves the expiry clock of an embedded Redis, which does not move by itself.
func expireKeys(ctx context.Context, redis *miniredis.Miniredis) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			redis.FastForward(now.Sub(last))
			last = now
		}
	}
}

func listenDev(ctx context.Context, cfg DevConfig, offset int) (net.Listener, string, error) {
	port := cfg.Port
	if port != 0 {
		port += offset
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(port)))
	if err != nil {
		return nil, "", fmt.Errorf("--port %d needs the ports %d to %d; choose another: %w", cfg.Port, cfg.Port, cfg.Port+len(DevRegions), err)
	}
	return ln, "http://" + ln.Addr().String(), nil
}

// consoleStatus is the coordinator's status and what the built-in clients met.
func (d *Dev) consoleStatus() any {
	type status struct {
		coordinator.Status
		Traffic []clientCount `json:"traffic,omitempty"`
	}
	s := status{Status: d.coordinator.StatusOfFirst(consoleQuotas)}
	if d.traffic != nil {
		s.Traffic = d.traffic.counts()
	}
	return s
}
