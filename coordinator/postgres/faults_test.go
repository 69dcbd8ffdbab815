package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/postgres"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/quota"
)

const limit = 100 * quota.Token

func row(policy string, region quota.Region, version int64) coordinator.Row {
	share := quota.Share{Capacity: quota.Tokens(version), Refill: quota.Token}
	return coordinator.Row{
		ID: quota.ID{Policy: policy}, Region: region, Algorithm: quota.TokenBucket,
		Limit:   quota.Limit{Capacity: limit, Refill: limit, Period: time.Second},
		Version: version, Sent: share, MaxSent: share,
	}
}

func rows(r ...coordinator.Row) coordinator.Batch { return coordinator.Batch{Rows: r} }

func load(t *testing.T, l coordinator.Ledger, above quota.Epoch) coordinator.Snapshot {
	t.Helper()
	s, err := l.Load(t.Context(), above)
	require.NoError(t, err)
	return s
}

// hold locks a row with a session of its own and returns how to let go of it.
func hold(t *testing.T, p *pgxpool.Pool, lock string) (pid uint32, release func()) {
	t.Helper()
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), lock)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx.Conn().PgConn().PID(), func() { require.NoError(t, tx.Rollback(t.Context())) }
}

// blocked waits until a number of sessions wait for the given one.
func blocked(t *testing.T, p *pgxpool.Pool, pid uint32, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var got int
		err := p.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))`, pid).Scan(&got)
		return err == nil && got >= n
	}, time.Minute, 5*time.Millisecond)
}

// TestLateCommitDoesNotUndoALaterOne: the server is still at a commit whose
// connection is gone, when its coordinator commits the rows again, changed.
func TestLateCommitDoesNotUndoALaterOne(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	l := postgres.NewLedger(postgres.Config{Pool: p})
	s := load(t, l, 0)
	pid, release := hold(t, p, `SELECT FROM ledger_state FOR UPDATE`)

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- l.Commit(ctx, s.Epoch, rows(row("a", "us", 1), row("b", "us", 1))) }()
	blocked(t, p, pid, 1)
	cancel()
	err := <-failed
	require.ErrorIs(t, err, quota.ErrUnavailable)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, quota.ErrFenced)

	again := make(chan error, 1)
	go func() {
		b := rows(row("a", "us", 2))
		b.DropRows = []coordinator.RowKey{{ID: quota.ID{Policy: "b"}, Region: "us"}}
		again <- l.Commit(t.Context(), s.Epoch, b)
	}()
	release()
	require.NoError(t, <-again)
	require.Equal(t, []coordinator.Row{row("a", "us", 2)}, load(t, l, 0).Rows)
}

// TestLoadWaitsForACommitUnderWay, and reads it.
func TestLoadWaitsForACommitUnderWay(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	old, next := postgres.NewLedger(postgres.Config{Pool: p}), postgres.NewLedger(postgres.Config{Pool: p})
	s := load(t, old, 0)
	require.NoError(t, old.Commit(t.Context(), s.Epoch, rows(row("a", "us", 1))))
	pid, release := hold(t, p, `SELECT FROM ledger FOR UPDATE`)
	done := make(chan error, 1)
	go func() { done <- old.Commit(t.Context(), s.Epoch, rows(row("a", "us", 2))) }()
	blocked(t, p, pid, 1) // it holds ledger_state
	loaded := make(chan coordinator.Snapshot, 1)
	go func() {
		s, err := next.Load(t.Context(), 0)
		if err != nil {
			t.Error(err)
		}
		loaded <- s
	}()
	require.Eventually(t, func() bool {
		var waits bool
		err := p.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'WITH elected%' AND wait_event_type = 'Lock')`).Scan(&waits)
		return err == nil && waits
	}, time.Minute, 5*time.Millisecond)
	release()
	require.NoError(t, <-done)
	require.Equal(t, []coordinator.Row{row("a", "us", 2)}, (<-loaded).Rows)
	require.ErrorIs(t, old.Commit(t.Context(), s.Epoch, rows(row("a", "us", 3))), quota.ErrFenced)
}

// TestKilledCommit: the session dies in the middle of it.
func TestKilledCommit(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	l := postgres.NewLedger(postgres.Config{Pool: p})
	s := load(t, l, 0)
	pid, release := hold(t, p, `SELECT FROM ledger_state FOR UPDATE`)
	failed := make(chan error, 1)
	go func() { failed <- l.Commit(t.Context(), s.Epoch, rows(row("a", "us", 1))) }()
	blocked(t, p, pid, 1)
	_, err := p.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))`, pid)
	require.NoError(t, err)
	require.ErrorIs(t, <-failed, quota.ErrUnavailable)
	release()
	require.NoError(t, l.Commit(t.Context(), s.Epoch, rows(row("b", "us", 1))))
	require.Equal(t, []coordinator.Row{row("b", "us", 1)}, load(t, l, 0).Rows)
}

// regress gives the database back a state from before, as an asynchronous standby would.
func regress(t *testing.T, p *pgxpool.Pool, state string) {
	t.Helper()
	_, err := p.Exec(t.Context(), `UPDATE ledger_state SET `+state)
	require.NoError(t, err)
}

func requireLossy(t *testing.T, l coordinator.Ledger, want bool) coordinator.Snapshot {
	t.Helper()
	s := load(t, l, 0)
	require.Equal(t, want, s.Lossy)
	return s
}

// TestLostCommitsAreNoticed: by the number of a commit, by the epoch, or by what a
// region follows. The rows stay, no region counts as known, and everybody is told
// until somebody vouches for the ledger.
func TestLostCommitsAreNoticed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		lost   string
		notice func(t *testing.T, l *postgres.Ledger, epoch quota.Epoch)
	}{
		{"commits", `sequence = 1`, func(t *testing.T, l *postgres.Ledger, epoch quota.Epoch) {
			require.ErrorIs(t, l.Commit(t.Context(), epoch, rows(row("b", "us", 1))), quota.ErrFenced)
		}},
		{"the epoch", `epoch = 1`, func(t *testing.T, l *postgres.Ledger, epoch quota.Epoch) {
			require.ErrorIs(t, l.Commit(t.Context(), epoch, rows(row("b", "us", 1))), quota.ErrFenced)
		}},
		{"the epoch that a region follows", `epoch = 1`, func(t *testing.T, l *postgres.Ledger, epoch quota.Epoch) {
			require.Greater(t, load(t, l, epoch).Epoch, epoch)
		}},
		{"as an operator says", `lossy = false`, func(t *testing.T, l *postgres.Ledger, epoch quota.Epoch) {
			require.NoError(t, l.Distrust(t.Context()))
			require.ErrorIs(t, l.Commit(t.Context(), epoch, rows(row("b", "us", 1))), quota.ErrFenced)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := pool(t, testenv.Postgres(t))
			l := postgres.NewLedger(postgres.Config{Pool: p})
			for range 3 {
				requireLossy(t, l, false)
			}
			epoch := requireLossy(t, l, false).Epoch
			known := coordinator.Batch{Rows: []coordinator.Row{row("a", "us", 1)}, Regions: []coordinator.RegionRow{{Region: "us", Gen: "g"}}}
			require.NoError(t, l.Commit(t.Context(), epoch, known))
			require.NoError(t, l.Commit(t.Context(), epoch, rows(row("a", "us", 2))))
			regress(t, p, tc.lost)

			tc.notice(t, l, epoch)
			s := requireLossy(t, l, true)
			require.Greater(t, s.Epoch, epoch)
			require.Equal(t, []coordinator.Row{row("a", "us", 2)}, s.Rows)
			require.Empty(t, s.Regions)

			require.NoError(t, l.Commit(t.Context(), s.Epoch, known))
			require.Len(t, requireLossy(t, l, true).Regions, 1)
			seen := requireLossy(t, l, true).Epoch
			require.NoError(t, l.Distrust(t.Context()))
			require.ErrorIs(t, l.TrustAt(t.Context(), seen), quota.ErrFenced, "it was distrusted after somebody had looked")
			seen = requireLossy(t, l, true).Epoch
			require.NoError(t, l.TrustAt(t.Context(), seen))
			requireLossy(t, l, false)
			require.NoError(t, l.Distrust(t.Context()))
			require.NoError(t, l.Trust(t.Context()))
			require.Empty(t, requireLossy(t, l, false).Regions)
		})
	}
}

func TestDriverErrorsAreTranslated(t *testing.T) {
	open := func(url string) *postgres.Ledger {
		p, err := pgxpool.New(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		return postgres.NewLedger(postgres.Config{Pool: p})
	}
	for name, tc := range map[string]struct{ url, want string }{
		"not migrated":   {testenv.Postgres(t), `run "weir migrate up"`},
		"nobody listens": {"postgres://postgres@127.0.0.1:1/postgres", "connect"},
	} {
		_, err := open(tc.url).Load(t.Context(), 0)
		require.ErrorIs(t, err, quota.ErrUnavailable, name)
		require.ErrorContains(t, err, tc.want, name)
	}
	// What can never succeed is not said to be unavailable.
	l := postgres.NewLedger(postgres.Config{Pool: pool(t, testenv.Postgres(t))})
	s := load(t, l, 0)
	err := l.Commit(t.Context(), s.Epoch, rows(row("no\x00text", "us", 1)))
	require.Error(t, err)
	require.NotErrorIs(t, err, quota.ErrUnavailable)
	_, err = l.Load(t.Context(), 1<<63-1)
	require.Error(t, err)
}

// TestCommitsAreDurable whatever the role is set to.
func TestCommitsAreDurable(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	cfg := p.Config()
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	lazy, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(lazy.Close)
	// The setting is that of the commit; a deferred trigger sees it there.
	_, err = p.Exec(t.Context(), `CREATE TABLE seen (setting text);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER see AFTER UPDATE ON ledger_state DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
		CREATE CONSTRAINT TRIGGER see AFTER UPDATE ON leader DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
	require.NoError(t, err)
	e := postgres.NewElection(postgres.Config{Pool: lazy})
	require.NoError(t, e.Claim(t.Context(), coordinator.Leader{Tenure: "t"}, coordinator.Leader{}))
	require.NoError(t, e.Beat(t.Context(), "t"))
	l := e.Ledger("t")
	s := load(t, l, 0)
	require.NoError(t, l.Commit(t.Context(), s.Epoch, rows(row("a", "us", 1))))
	require.NoError(t, e.Resign(t.Context(), "t"))
	found, err := p.Query(t.Context(), `SELECT setting FROM seen`)
	require.NoError(t, err)
	settings, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"on", "on", "on", "on", "on"}, settings)
}

// TestPermanentPartsOfAnOlderVersionCountForNothing: a coordinator that does not know
// of leases has written the row since.
func TestPermanentPartsOfAnOlderVersionCountForNothing(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	l := postgres.NewLedger(postgres.Config{Pool: p})
	s := load(t, l, 0)
	leased := row("a", "us", 5)
	leased.Acked = quota.Share{Capacity: 9}
	leased.Perm, leased.PermAcked, leased.PermMax = quota.Share{Capacity: 1}, quota.Share{Capacity: 2}, quota.Share{Capacity: 3}
	require.NoError(t, l.Commit(t.Context(), s.Epoch, rows(leased)))
	require.Equal(t, []coordinator.Row{leased}, load(t, l, 0).Rows)
	_, err := p.Exec(t.Context(), `UPDATE ledger SET version = 6`)
	require.NoError(t, err)
	got := load(t, l, 0).Rows[0]
	require.Equal(t, got.Bound(), got.Permanent())
	require.Equal(t, got.Sent, got.Perm)
}
