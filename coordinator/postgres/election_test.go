package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/postgres"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/quota"
)

// failover is within which somebody must lead again after a crash.
const failover = 12 * time.Second

func TestElection(t *testing.T) {
	t.Parallel()
	p := pool(t, testenv.Postgres(t))
	e := postgres.NewElection(postgres.Config{Pool: p})
	look := func() coordinator.Leader {
		l, err := e.Look(t.Context())
		require.NoError(t, err)
		return l
	}
	require.Equal(t, coordinator.Leader{}, look())
	a := coordinator.Leader{Tenure: "a1", Holder: "a", URL: "http://a"}
	b := coordinator.Leader{Tenure: "b1", Holder: "b", URL: "http://b"}
	nobody := look()
	require.NoError(t, e.Claim(t.Context(), a, nobody))
	require.ErrorIs(t, e.Claim(t.Context(), b, nobody), quota.ErrFenced)
	require.NoError(t, e.Claim(t.Context(), a, nobody), "asked again in the same words")
	first := look()
	require.Equal(t, coordinator.Leader{Tenure: "a1", Holder: "a", URL: "http://a", Beat: 2}, first)

	ledger := e.Ledger("a1")
	s := load(t, ledger, 0)
	require.NoError(t, e.Beat(t.Context(), "a1"))
	require.ErrorIs(t, e.Claim(t.Context(), b, first), quota.ErrFenced, "it has beaten since")
	require.Equal(t, s.Epoch, look().Epoch)
	require.NoError(t, e.Claim(t.Context(), b, look()))
	require.ErrorIs(t, e.Beat(t.Context(), "a1"), quota.ErrFenced)

	// Who no longer leads cannot fence who does, nor commit once that has loaded.
	_, err := ledger.Load(t.Context(), 0)
	require.ErrorIs(t, err, quota.ErrFenced)
	require.NoError(t, ledger.Commit(t.Context(), s.Epoch, rows(row("p", "us", 1))))
	require.Len(t, load(t, e.Ledger("b1"), 0).Rows, 1)
	require.ErrorIs(t, ledger.Commit(t.Context(), s.Epoch, rows(row("p", "us", 2))), quota.ErrFenced)

	require.NoError(t, e.Resign(t.Context(), "a1"))
	require.Equal(t, "b1", look().Tenure)
	before := look()
	require.NoError(t, e.Resign(t.Context(), "b1"))
	require.ErrorIs(t, e.Beat(t.Context(), "b1"), quota.ErrFenced)
	after := look()
	require.Empty(t, after.Tenure)
	require.Greater(t, after.Beat, before.Beat)
	require.ErrorIs(t, e.Claim(t.Context(), a, nobody), quota.ErrFenced, "nobody led then, but it is not now")
}

// gate is a way to the database that can be shut.
type gate struct {
	mu   sync.Mutex
	shut bool
	open map[net.Conn]bool
}

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, &net.OpError{Op: "dial", Err: errors.New("no way")}
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		g.open[c] = true
	}
	return c, err
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if shut {
		for c := range g.open {
			_ = c.Close()
		}
		clear(g.open)
	}
}

// contender is a running candidate with its own way to the database.
type contender struct {
	*coordinator.Candidate
	gate *gate
	stop func()
}

func contend(t *testing.T, url, name string) contender {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	g := &gate{open: map[net.Conn]bool{}}
	cfg.ConnConfig.DialFunc = g.dial
	cfg.ConnConfig.RuntimeParams["application_name"] = name + cfg.ConnConfig.RuntimeParams["search_path"]
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	c, err := coordinator.NewCandidate(coordinator.CandidateConfig{
		Config:   coordinator.Config{Regions: []quota.Region{"eu", "us"}},
		Election: postgres.NewElection(postgres.Config{Pool: p}), Name: name, URL: "http://" + name,
	})
	require.NoError(t, err)
	require.NoError(t, c.SetPolicies(1, split()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return contender{c, g, stop}
}

func split() []*quota.Policy {
	return []*quota.Policy{{
		ID: "p", Scope: quota.Global, Algorithm: quota.TokenBucket,
		Limit: quota.Limit{Capacity: limit, Refill: limit, Period: time.Second},
	}}
}

func serving(c contender) bool { return c.Status().Leadership.Serving }

// awaitServing waits until c may answer, while others may not.
func awaitServing(t *testing.T, c contender, within time.Duration, others ...contender) {
	t.Helper()
	begin := time.Now()
	require.Eventually(t, func() bool {
		yes := serving(c)
		for _, o := range others {
			require.False(t, yes && serving(o), "two may answer")
		}
		return yes
	}, within, time.Millisecond)
	t.Logf("serves after %v", time.Since(begin))
}

func duo(t *testing.T) (db *pgxpool.Pool, a, b contender) {
	t.Helper()
	url := testenv.Postgres(t)
	db = pool(t, url)
	a = contend(t, url, "a")
	awaitServing(t, a, failover)
	b = contend(t, url, "b")
	require.Eventually(t, func() bool { return b.Status().Leadership.Leader == "a" }, failover, time.Millisecond)
	return db, a, b
}

func report(c contender, epoch quota.Epoch) error {
	_, err := c.Report(context.Background(), quota.Report{Region: "us", Gen: "g", Epoch: epoch, SentAt: time.Now().UnixMicro()})
	return err
}

func requireElsewhere(t *testing.T, c contender, url string) {
	t.Helper()
	require.Eventually(t, func() bool {
		not, ok := errors.AsType[*coordinator.NotLeaderError](report(c, 0))
		return ok && not.URL == url
	}, failover, time.Millisecond)
}

func TestCutOffLeaderIsSucceeded(t *testing.T) {
	t.Parallel()
	_, a, b := duo(t)
	require.NoError(t, report(a, a.Status().Epoch))
	epoch := a.Status().Epoch
	a.gate.set(true)
	awaitServing(t, b, failover, a)
	require.Greater(t, b.Status().Epoch, epoch)
	requireElsewhere(t, a, "")
	a.gate.set(false)
	requireElsewhere(t, a, "http://b")
	require.True(t, serving(b))
}

func TestRollingRestartIsImmediate(t *testing.T) {
	t.Parallel()
	_, a, b := duo(t)
	a.stop()
	awaitServing(t, b, 3*time.Second, a)
	requireElsewhere(t, a, "")
}

// TestKilledConnectionsCostNothing: each call makes a new one.
func TestKilledConnectionsCostNothing(t *testing.T) {
	t.Parallel()
	db, a, b := duo(t)
	epoch := a.Status().Epoch
	first := beats(t, db)
	var killed int
	require.Eventually(t, func() bool {
		var n int
		err := db.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = 'a' || current_schema()`).Scan(&n)
		killed += n
		require.False(t, serving(b))
		return err == nil && killed >= 2 && beats(t, db) >= first+3
	}, time.Minute, 100*time.Millisecond)
	awaitServing(t, a, failover, b)
	require.Equal(t, epoch, a.Status().Epoch)
}

func beats(t *testing.T, db *pgxpool.Pool) (n int64) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), `SELECT beat FROM leader`).Scan(&n))
	return n
}

func TestDatabaseDownAndBack(t *testing.T) {
	t.Parallel()
	_, a, b := duo(t)
	a.gate.set(true)
	b.gate.set(true)
	require.Eventually(t, func() bool { return !serving(a) }, failover, time.Millisecond)
	require.ErrorIs(t, report(a, 0), quota.ErrUnavailable)
	a.gate.set(false)
	b.gate.set(false)
	require.Eventually(t, func() bool {
		x, y := serving(a), serving(b)
		require.False(t, x && y, "two may answer")
		return x || y
	}, failover, time.Millisecond)
}
