package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/postgres"
	"github.com/weirhq/weir/quota"
)

const wakeTimeout = time.Minute // only bounds a failing test

func await(t *testing.T, ch <-chan struct{}, why string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(wakeTimeout):
		t.Fatalf("no wake-up: %s", why)
	}
}

func patch(id string, burst int64) policystore.Change {
	return policystore.Change{
		Edit: policystore.Edit{Author: "ann"},
		Policies: []*quota.Policy{{
			ID: id, Key: []string{"apiKey"}, Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailLocal,
			Limit: quota.Limit{Capacity: quota.Tokens(burst) * quota.Token, Refill: quota.Token, Period: time.Second},
		}},
	}
}

// with returns a URL with another parameter.
func with(t *testing.T, base, name, value string) string {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// watched returns a listening store and its wake-ups, once it listens.
func watched(t *testing.T, p *pgxpool.Pool) (*postgres.Store, <-chan struct{}) {
	t.Helper()
	s := postgres.New(postgres.Config{Pool: p})
	ch := s.Watch(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Listen(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	await(t, ch, "connected")
	return s, ch
}

func TestOtherProcessesAreWoken(t *testing.T) {
	db := testenv.Postgres(t)
	writer := postgres.New(postgres.Config{Pool: pool(t, db)})
	_, heard := watched(t, pool(t, db))
	elsewhere := testenv.Postgres(t)
	neighbour, err := pgx.Connect(t.Context(), elsewhere)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, neighbour.Close(context.Background())) })
	var channel string
	require.NoError(t, neighbour.QueryRow(t.Context(), `SELECT 'weir_' || current_schema()`).Scan(&channel))
	_, err = neighbour.Exec(t.Context(), `LISTEN `+channel)
	require.NoError(t, err)

	_, err = writer.Apply(t.Context(), patch("a", 1))
	require.NoError(t, err)
	await(t, heard, "apply in another process")
	require.NoError(t, writer.SetOverrides(t.Context(), policystore.Edit{Author: "ann"}, []quota.Override{{
		Policy: "a", Key: []string{"k"}, Limit: quota.Limit{Capacity: quota.Token, Refill: quota.Token, Period: time.Second},
	}}))
	await(t, heard, "override in another process")

	// Another schema of the same database has a channel of its own. Notifications
	// come in the order of their commits, so ours would have come before this one.
	_, err = neighbour.Exec(t.Context(), `SELECT pg_notify($1, 'last')`, channel)
	require.NoError(t, err)
	n, err := neighbour.WaitForNotification(t.Context())
	require.NoError(t, err)
	require.Equal(t, "last", n.Payload)
}

// TestNobodyIsWokenForNothing: dry runs and refused changes announce nothing.
func TestNobodyIsWokenForNothing(t *testing.T) {
	s, heard := watched(t, pool(t, testenv.Postgres(t)))
	c := patch("a", 1)
	c.DryRun = true
	_, err := s.Apply(t.Context(), c)
	require.NoError(t, err)
	c.Author = ""
	_, err = s.Apply(t.Context(), c)
	require.ErrorIs(t, err, quota.ErrInvalid)
	require.Empty(t, heard)
}

func TestListenerComesBack(t *testing.T) {
	db := testenv.Postgres(t)
	writer := postgres.New(postgres.Config{Pool: pool(t, db)})
	_, heard := watched(t, pool(t, db))
	for range 3 {
		admin, err := pgx.Connect(t.Context(), db)
		require.NoError(t, err)
		var killed int
		err = admin.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE query = 'LISTEN weir_' || current_schema()`).Scan(&killed)
		require.NoError(t, err)
		require.Equal(t, 1, killed)
		require.NoError(t, admin.Close(t.Context()))
		await(t, heard, "connected again")
		_, err = writer.Apply(t.Context(), patch(fmt.Sprintf("p%d", time.Now().UnixNano()), 1))
		require.NoError(t, err)
		await(t, heard, "apply after it came back")
	}
}

// TestLongSchemaName: a channel has at most 63 bytes, and so has a schema.
func TestLongSchemaName(t *testing.T) {
	base := testenv.Postgres(t)
	admin, err := pgx.Connect(t.Context(), base)
	require.NoError(t, err)
	schema := strings.Repeat("ü", 31)
	t.Cleanup(func() {
		_, err := admin.Exec(context.Background(), `DROP SCHEMA IF EXISTS `+schema+` CASCADE`)
		require.NoError(t, err)
		require.NoError(t, admin.Close(context.Background()))
	})
	_, err = admin.Exec(t.Context(), `CREATE SCHEMA `+schema)
	require.NoError(t, err)
	s, heard := watched(t, pool(t, with(t, base, "search_path", schema)))
	_, err = s.Apply(t.Context(), patch("a", 1))
	require.NoError(t, err)
	await(t, heard, "apply")
}

// TestManyCoordinators: several processes, each with a pool and a cache of its own.
func TestManyCoordinators(t *testing.T) {
	const coordinators, each = 5, 10
	db := testenv.Postgres(t)
	errs := make(chan error, coordinators*each)
	var wg sync.WaitGroup
	for i := range coordinators {
		s := postgres.New(postgres.Config{Pool: pool(t, db)})
		wg.Go(func() {
			for j := range each {
				_, err := s.Apply(t.Context(), patch(fmt.Sprintf("p%d-%d", i, j), 1))
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	cur, err := postgres.New(postgres.Config{Pool: pool(t, db)}).Current(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, coordinators*each, cur.Number)
	require.Len(t, cur.Policies, coordinators*each)
}

func TestDriverErrorsAreTranslated(t *testing.T) {
	db := testenv.Postgres(t)
	migrated := pool(t, db)
	open := func(url string) *postgres.Store {
		p, err := pgxpool.New(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		return postgres.New(postgres.Config{Pool: p})
	}
	closedPool, err := pgxpool.New(t.Context(), db)
	require.NoError(t, err)
	closedPool.Close()
	closed := postgres.New(postgres.Config{Pool: closedPool})

	lock, err := migrated.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `SELECT FROM store_state FOR UPDATE`)
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })

	for name, tc := range map[string]struct {
		store *postgres.Store
		want  string
	}{
		"not migrated":      {open(testenv.Postgres(t)), `run "weir migrate up"`},
		"read-only standby": {open(with(t, db, "default_transaction_read_only", "on")), "read-only"},
		"statement timeout": {open(with(t, db, "statement_timeout", "10")), "statement timeout"},
		"lock timeout":      {open(with(t, db, "lock_timeout", "10")), "lock timeout"},
		"closed pool":       {closed, "closed pool"},
		"nobody listens":    {open("postgres://postgres@127.0.0.1:1/postgres"), "connect"},
	} {
		_, err := tc.store.Apply(t.Context(), patch("a", 1))
		require.ErrorIs(t, err, quota.ErrUnavailable, name)
		require.ErrorContains(t, err, tc.want, name)
		require.ErrorContains(t, err, "apply policies", name)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = open(db).Apply(ctx, patch("a", 1))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestCrashWhileCommitting kills the session of a change that waits for the
// lock: the caller is told, nothing is left, and the next try works.
func TestCrashWhileCommitting(t *testing.T) {
	db := testenv.Postgres(t)
	p := pool(t, db)
	s := postgres.New(postgres.Config{Pool: p})
	blocker, err := pgx.Connect(t.Context(), db)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, blocker.Close(context.Background())) })
	lock, err := blocker.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `SELECT FROM store_state FOR UPDATE`)
	require.NoError(t, err)

	failed := make(chan error, 1)
	go func() {
		_, err := s.Apply(t.Context(), patch("a", 1))
		failed <- err
	}()
	require.Eventually(t, func() bool {
		var killed bool
		err := p.QueryRow(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))`,
			blocker.PgConn().PID()).Scan(&killed)
		return err == nil && killed
	}, time.Minute, 5*time.Millisecond)
	require.ErrorIs(t, <-failed, quota.ErrUnavailable)
	require.NoError(t, lock.Rollback(t.Context()))

	out, err := s.Apply(t.Context(), patch("a", 1))
	require.NoError(t, err)
	require.EqualValues(t, 1, out.Revision.Number)
	rows, err := s.Audit(t.Context(), policystore.AuditQuery{})
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

// TestRestoredBackup: the same number with another content is not taken for
// what was read before.
func TestRestoredBackup(t *testing.T) {
	db := testenv.Postgres(t)
	p := pool(t, db)
	s := postgres.New(postgres.Config{Pool: p})
	_, err := s.Apply(t.Context(), patch("a", 1))
	require.NoError(t, err)
	_, err = p.Exec(t.Context(), `TRUNCATE policies, revisions; UPDATE store_state SET revision = 0`)
	require.NoError(t, err)
	_, err = postgres.New(postgres.Config{Pool: p}).Apply(t.Context(), patch("b", 1))
	require.NoError(t, err)
	cur, err := s.Current(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, cur.Number)
	require.Equal(t, "b", cur.Policies[0].ID)
}

// TestPolicyOfANewerVersion: a set that cannot be understood in full is an
// error, never a part of itself.
func TestPolicyOfANewerVersion(t *testing.T) {
	p := pool(t, testenv.Postgres(t))
	s := postgres.New(postgres.Config{Pool: p})
	_, err := s.Apply(t.Context(), patch("a", 1))
	require.NoError(t, err)
	_, err = s.Apply(t.Context(), patch("b", 1))
	require.NoError(t, err)
	_, err = p.Exec(t.Context(), `UPDATE policies SET body = '{"id":"b","algorithm":"telepathy"}' WHERE id = 'b'`)
	require.NoError(t, err)
	_, err = postgres.New(postgres.Config{Pool: p}).Current(t.Context())
	require.ErrorContains(t, err, "telepathy")
}
