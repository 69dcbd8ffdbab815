package testenv

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
)

// primaries is the size of the clusters that testenv starts.
const primaries = 3

// Cluster is a Redis Cluster of primaries without replicas.
type Cluster struct {
	// Addrs are the primaries, host:port. Any one of them leads a client to the others.
	Addrs []string

	// node is nil for a cluster that somebody else started.
	node func(ctx context.Context, action, port string) error
}

var sharedCluster = sync.OnceValues(func() (*Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if env := os.Getenv(EnvRedisCluster); env != "" {
		c := &Cluster{Addrs: strings.Split(env, ",")}
		return c, c.healthy(ctx)
	}
	return StartRedisCluster(ctx)
})

// RedisCluster returns the cluster that all tests share. Tests may flush its
// scripts, and must not flush its data or stop its nodes; each uses keys of its
// own Prefix. Safe for parallel tests.
func RedisCluster(tb testing.TB) *Cluster {
	tb.Helper()
	c, err := sharedCluster()
	if err != nil {
		unavailable(tb, "Redis Cluster", err)
	}
	return c
}

// PrivateRedisCluster starts a cluster for this test alone, whose nodes it may
// Pause, Resume, Kill and Start. It takes about two seconds and is removed when the test ends.
func PrivateRedisCluster(tb testing.TB) *Cluster {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, ctr, err := startRedisCluster(ctx)
	if err != nil {
		unavailable(tb, "Redis Cluster", err)
	}
	tb.Cleanup(func() {
		if err := release(ctr); err != nil {
			tb.Errorf("testenv: remove cluster: %v", err)
		}
	})
	return c
}

// StartRedisCluster starts a cluster that lives until Close.
func StartRedisCluster(ctx context.Context) (*Cluster, error) {
	c, _, err := startRedisCluster(ctx)
	return c, err
}

// startRedisCluster tries a few times: a port found free may be taken by another
// process before Docker binds it.
func startRedisCluster(ctx context.Context) (*Cluster, testcontainers.Container, error) {
	const tries = 3
	var err error
	for range tries {
		var c *Cluster
		var ctr *testcontainers.DockerContainer
		if c, ctr, err = tryRedisCluster(ctx); err == nil {
			return c, ctr, nil
		}
		if !strings.Contains(err.Error(), "already allocated") && !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	return nil, nil, err
}

func tryRedisCluster(ctx context.Context) (*Cluster, *testcontainers.DockerContainer, error) {
	ports, err := freePorts(ctx, primaries)
	if err != nil {
		return nil, nil, err
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	bindings := network.PortMap{}
	c := &Cluster{}
	for _, port := range ports {
		p, err := network.ParsePort(port + "/tcp")
		if err != nil {
			return nil, nil, err
		}
		bindings[p] = []network.PortBinding{{HostIP: loopback, HostPort: port}}
		c.Addrs = append(c.Addrs, net.JoinHostPort(loopback.String(), port))
	}
	exposed := make([]string, len(ports))
	for i, port := range ports {
		exposed[i] = port + "/tcp"
	}
	ctr, err := start(ctx, redisImage, "cluster ready",
		testcontainers.WithCmd(ports...),
		testcontainers.WithExposedPorts(exposed...),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) { h.PortBindings = bindings }),
	)
	if err != nil {
		return nil, nil, err
	}
	c.node = func(ctx context.Context, action, port string) error {
		code, out, err := ctr.Exec(ctx, []string{"redis-node", action, port})
		if err != nil {
			return err
		}
		if code != 0 {
			text, _ := io.ReadAll(out)
			return fmt.Errorf("exit code %d: %s", code, text)
		}
		return nil
	}
	if err := c.healthy(ctx); err != nil {
		return nil, nil, err
	}
	return c, ctr, nil
}

// freePorts returns n different ports that are free on loopback now.
func freePorts(ctx context.Context, n int) ([]string, error) {
	var lc net.ListenConfig
	ports := make([]string, n)
	for i := range ports {
		l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		if _, ports[i], err = net.SplitHostPort(l.Addr().String()); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// healthy checks that every primary answers and sees the whole cluster.
func (c *Cluster) healthy(ctx context.Context) error {
	for _, addr := range c.Addrs {
		info, err := command(ctx, addr, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if !strings.Contains(info, "cluster_state:ok") {
			return fmt.Errorf("%s: the cluster is not ok:\n%s", addr, info)
		}
	}
	return nil
}

// Do runs one command on primary i and returns the reply as text, nested
// replies one element per line. It is for administration and INFO; keys are
// reached through package lua, which follows redirections.
func (c *Cluster) Do(ctx context.Context, i int, args ...string) (string, error) {
	return command(ctx, c.Addrs[i], args...)
}

// Announce makes the primaries tell clients that they are at other addresses of
// loopback, in the order of Addrs: those of proxies in front of them. It returns when
// every primary says so of all. Private clusters only: other tests would follow.
func (c *Cluster) Announce(tb testing.TB, ports []string) {
	tb.Helper()
	if c.node == nil {
		tb.Fatal("testenv: announce: only nodes of a PrivateRedisCluster can be told other addresses")
	}
	for i, port := range ports {
		if _, err := c.Do(tb.Context(), i, "CONFIG", "SET", "cluster-announce-port", port); err != nil {
			tb.Fatalf("testenv: announce %s: %v", port, err)
		}
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := range c.Addrs {
		for {
			slots, err := c.Do(ctx, i, "CLUSTER", "SLOTS")
			if err == nil && all(ports, func(port string) bool { return strings.Contains(slots, port) }) {
				break
			}
			select {
			case <-ctx.Done():
				tb.Fatalf("testenv: node %d does not announce %v: %v\n%s", i, ports, err, slots)
			case <-tick.C:
			}
		}
	}
}

func all(list []string, holds func(string) bool) bool {
	return !slices.ContainsFunc(list, func(s string) bool { return !holds(s) })
}

// FlushScripts makes every primary forget its cached scripts.
func (c *Cluster) FlushScripts(tb testing.TB) {
	tb.Helper()
	for i := range c.Addrs {
		if _, err := c.Do(tb.Context(), i, "SCRIPT", "FLUSH", "SYNC"); err != nil {
			tb.Errorf("testenv: %v", err)
		}
	}
}

// Pause stops primary i from answering; its connections stay open. Private clusters only.
func (c *Cluster) Pause(tb testing.TB, i int) {
	tb.Helper()
	c.act(tb, "pause", i)
}

// Resume lets a paused primary go on.
func (c *Cluster) Resume(tb testing.TB, i int) {
	tb.Helper()
	c.act(tb, "resume", i)
}

// Kill ends primary i: connections are reset and new ones refused. Private clusters only.
func (c *Cluster) Kill(tb testing.TB, i int) {
	tb.Helper()
	c.act(tb, "kill", i)
}

// Start starts a killed primary again. It has its slots, and has lost its data
// and scripts. Start returns when the cluster is whole again.
func (c *Cluster) Start(tb testing.TB, i int) {
	tb.Helper()
	c.act(tb, "start", i)
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.healthy(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("testenv: node %d came back, the cluster did not: %v", i, err)
		case <-tick.C:
		}
	}
}

func (c *Cluster) act(tb testing.TB, action string, i int) {
	tb.Helper()
	if c.node == nil {
		tb.Fatalf("testenv: %s: only nodes of a PrivateRedisCluster can be stopped", action)
	}
	_, port, err := net.SplitHostPort(c.Addrs[i])
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	if err := c.node(ctx, action, port); err != nil {
		tb.Fatalf("testenv: %s node %d: %v", action, i, err)
	}
}
