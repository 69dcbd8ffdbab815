package app_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/quota"
)

// fleet is a coordinator over Postgres and one node in each of three regions, as they
// run in production, in one process.
type fleet struct {
	postgres    app.PostgresConfig
	coordinator *app.Role
	nodes       []*app.Role
	admin       *rpc.PolicyClient
	checks      []*rpc.Client
}

func startFleet(tb testing.TB, policies string) *fleet {
	tb.Helper()
	return startFleetOn(tb, app.PostgresConfig{URL: testenv.Postgres(tb)}, policies)
}

func startFleetOn(tb testing.TB, postgres app.PostgresConfig, policies string) *fleet {
	tb.Helper()
	f := &fleet{postgres: postgres}
	if err := app.MigrateUp(tb.Context(), f.postgres, io.Discard); err != nil {
		tb.Fatal(err)
	}
	f.startCoordinator(tb, "127.0.0.1:0")
	admin, err := rpc.NewPolicyClient(rpc.ClientConfig{URL: f.coordinator.URL, Timeout: 30 * time.Second})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = admin.Close() })
	f.admin = admin
	f.apply(tb, policies)
	cluster := testenv.RedisCluster(tb)
	for _, region := range threeRegions {
		cfg := f.node(tb, region)
		cfg.Redis.Addrs = cluster.Addrs
		node, err := app.StartRegional(tb.Context(), cfg, quiet())
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { stopRole(tb, node) })
		f.nodes = append(f.nodes, node)
		client, err := rpc.NewClient(rpc.ClientConfig{URL: node.URL})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = client.Close() })
		f.checks = append(f.checks, client)
	}
	return f
}

func (f *fleet) startCoordinator(tb testing.TB, listen string) {
	tb.Helper()
	role, err := app.StartCoordinator(tb.Context(), app.CoordinatorConfig{
		Listen: listen, Regions: []string{"us-east", "eu-west", "ap-south"}, Postgres: f.postgres, Auth: "none", Rebalance: time.Minute,
	}, quiet())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { stopRole(tb, role) })
	f.coordinator = role
}

func stopRole(tb testing.TB, role *app.Role) {
	tb.Helper()
	if err := role.Stop(); err != nil {
		tb.Error(err)
	}
}

func (f *fleet) node(tb testing.TB, region quota.Region) app.RegionalConfig {
	tb.Helper()
	return app.RegionalConfig{
		Listen: "127.0.0.1:0", Region: string(region), Nodes: 1, Coordinator: []string{f.coordinator.URL},
		Snapshot: filepath.Join(tb.TempDir(), "policies.json"), Report: 200 * time.Millisecond, Deadline: 5 * time.Second,
		Redis: app.RedisConfig{Prefix: testenv.Prefix(tb), Stripes: 8},
	}
}

func (f *fleet) apply(tb testing.TB, policies string) int64 {
	tb.Helper()
	revision, err := f.tryApply(tb, policies)
	if err != nil {
		tb.Fatal(err)
	}
	return revision
}

func (f *fleet) tryApply(tb testing.TB, policies string) (int64, error) {
	tb.Helper()
	applied, err := f.admin.Apply(tb.Context(), rpc.Change{Document: []byte(policies)})
	if err != nil {
		return 0, err
	}
	return applied.Revision.Number, nil
}

// revision is what the node's next check is decided by.
func (f *fleet) revision(ctx context.Context, node int) (int64, error) {
	answer, err := f.checks[node].Peek(ctx, quota.Request{Attributes: map[string]string{"tenant": "probe"}})
	if err != nil {
		return 0, err
	}
	return answer.Revision, nil
}

// inForce waits until every node decides by a revision, or a later one.
func (f *fleet) inForce(tb testing.TB, revision int64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for node := range f.checks {
		for {
			if got, err := f.revision(ctx, node); err == nil && got >= revision {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				tb.Fatalf("node %d never came to revision %d", node, revision)
			}
		}
	}
}

// load calls every node until stopped, and counts failed calls and checks that no
// store decided.
type load struct {
	stop                     func()
	calls, failed, undecided atomic.Int64
}

func (f *fleet) load(tb testing.TB) *load {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	l := &load{}
	var clients sync.WaitGroup
	for node, client := range f.checks {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				answer, err := client.Check(ctx, quota.Request{
					Attributes: map[string]string{"tenant": fmt.Sprintf("load-%d-%d", node, i%10)}, Cost: quota.Token,
				})
				if ctx.Err() != nil {
					return
				}
				l.calls.Add(1)
				if err != nil {
					l.failed.Add(1)
					continue
				}
				for _, d := range answer.Decisions {
					if d.Source == quota.SourceFallback {
						l.undecided.Add(1)
					}
				}
			}
		})
	}
	l.stop = sync.OnceFunc(func() { cancel(); clients.Wait() })
	tb.Cleanup(l.stop)
	return l
}

func tenantPolicy(capacity int) string {
	return fmt.Sprintf(`
policies:
  - id: tenant
    key: [tenant]
    algorithm: token-bucket
    scope: regional
    capacity: %d
    refill: %d/1m
    storeDeadline: 5s
    onStoreFailure: closed
`, capacity, capacity)
}

// From Apply to enforcement on every node of three regions, and the same for a rollback.
func propagation(tb testing.TB, f *fleet, changes int) (applies, rollbacks []time.Duration) {
	tb.Helper()
	for i := range changes {
		begun := time.Now()
		revision := f.apply(tb, tenantPolicy(1000+i))
		f.inForce(tb, revision)
		applies = append(applies, time.Since(begun))
		begun = time.Now()
		rolled, err := f.admin.Rollback(tb.Context(), rpc.Rollback{To: revision - 1})
		if err != nil {
			tb.Fatal(err)
		}
		f.inForce(tb, rolled.Revision.Number)
		rollbacks = append(rollbacks, time.Since(begun))
	}
	return applies, rollbacks
}

func quantile(of []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func TestChangesAreInForceWithinASecond(t *testing.T) {
	f := startFleet(t, tenantPolicy(1000))
	l := f.load(t)
	applies, rollbacks := propagation(t, f, 20)
	l.stop()
	if p := max(quantile(applies, 0.99), quantile(rollbacks, 0.99)); p > time.Second {
		t.Errorf("the slowest of 20 changes took %s to be in force everywhere", p)
	}
	if l.failed.Load() > 0 || l.calls.Load() == 0 {
		t.Errorf("%d of %d checks failed meanwhile", l.failed.Load(), l.calls.Load())
	}
}

// The figures of docs/benchmarks.md: 200 changes under load.
func BenchmarkPolicyPropagation(b *testing.B) {
	f := startFleet(b, tenantPolicy(1000))
	l := f.load(b)
	defer l.stop()
	for b.Loop() {
		applies, rollbacks := propagation(b, f, 100)
		b.ReportMetric(float64(quantile(applies, 0.5).Milliseconds()), "apply-p50-ms")
		b.ReportMetric(float64(quantile(applies, 0.99).Milliseconds()), "apply-p99-ms")
		b.ReportMetric(float64(quantile(rollbacks, 0.99).Milliseconds()), "rollback-p99-ms")
	}
}

// A limit that is lowered holds on the next check of every node.
func TestLoweredLimitHoldsEverywhere(t *testing.T) {
	f := startFleet(t, tenantPolicy(1_000_000))
	l := f.load(t)
	for i := range 100 {
		f.inForce(t, f.apply(t, tenantPolicy(1_000_000)))
		tenant := map[string]string{"tenant": fmt.Sprintf("lowered-%d", i)}
		for _, c := range f.checks {
			if answer, err := c.Check(t.Context(), quota.Request{Attributes: tenant, Cost: 1000 * quota.Token}); err != nil || !answer.Allowed {
				t.Fatalf("before: %v", err)
			}
		}
		f.inForce(t, f.apply(t, tenantPolicy(1)))
		for node, c := range f.checks {
			answer, err := c.Check(t.Context(), quota.Request{Attributes: tenant, Cost: 2 * quota.Token})
			if err != nil || answer.Allowed {
				t.Errorf("round %d, node %d: two tokens of a limit of one: allowed, error %v", i, node, err)
			}
		}
	}
	l.stop()
	if l.failed.Load() > 0 {
		t.Errorf("%d checks failed meanwhile", l.failed.Load())
	}
}

// Without its coordinator a region goes on as it is; what changed meanwhile is in force
// soon after the coordinator is back.
func TestCoordinatorAway(t *testing.T) {
	f := startFleet(t, tenantPolicy(1000))
	l := f.load(t)
	before := l.calls.Load()
	address := strings.TrimPrefix(f.coordinator.URL, "http://")
	stopRole(t, f.coordinator)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for l.calls.Load() < before+300 && ctx.Err() == nil {
		<-tick.C
	}
	f.startCoordinator(t, address)
	var last int64
	for i := range 50 {
		last = f.apply(t, tenantPolicy(2000+i))
	}
	f.inForce(t, last)
	l.stop()
	if l.failed.Load() > 0 || l.undecided.Load() > 0 {
		t.Errorf("of %d checks %d failed and %d were not decided by the store", l.calls.Load(), l.failed.Load(), l.undecided.Load())
	}
}

// A node that restarts while the coordinator is away takes the policies from its snapshot.
func TestNodeRestartsWithoutCoordinator(t *testing.T) {
	f := startFleet(t, tenantPolicy(3))
	cfg := f.node(t, "eu-west")
	cfg.Redis.Addrs = testenv.RedisCluster(t).Addrs
	first, err := app.StartRegional(t.Context(), cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	stopRole(t, first)
	stopRole(t, f.coordinator)
	second, err := app.StartRegional(t.Context(), cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer stopRole(t, second)
	client, err := rpc.NewClient(rpc.ClientConfig{URL: second.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	admitted := 0
	for range 10 {
		answer, err := client.Check(t.Context(), quota.Request{Attributes: map[string]string{"tenant": "acme"}, Cost: quota.Token})
		if err != nil {
			t.Fatal(err)
		}
		if answer.Allowed {
			admitted++
		}
	}
	if admitted != 3 {
		t.Errorf("admitted %d of a limit of 3", admitted)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, second.URL+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || !strings.Contains(string(text), "weir_policy_revision 1") {
		t.Errorf("the node does not say which revision it runs: %v", err)
	}
}
