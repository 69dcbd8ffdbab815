package migrations_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func names(ms []migrations.Migration) []string {
	var out []string
	for _, m := range ms {
		out = append(out, m.Name)
	}
	return out
}

func files(t *testing.T) []string {
	t.Helper()
	found, err := fs.Glob(migrations.FS, "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}

func pending(t *testing.T, db *sql.DB) []string {
	t.Helper()
	all, err := migrations.Status(t.Context(), db)
	require.NoError(t, err)
	require.Equal(t, files(t), names(all))
	var out []string
	for _, m := range all {
		if m.Pending() {
			out = append(out, m.Name)
		} else {
			require.WithinDuration(t, time.Now(), m.AppliedAt, time.Hour)
		}
	}
	return out
}

func tables(t *testing.T, db *sql.DB) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename <> $1 ORDER BY 1`, migrations.Table)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var out []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		out = append(out, name)
	}
	require.NoError(t, rows.Err())
	return out
}

func TestUpTwice(t *testing.T) {
	db := open(t, testenv.Postgres(t))
	require.Equal(t, files(t), pending(t, db))
	require.Empty(t, tables(t, db), "asking for the status changes nothing")

	done, err := migrations.Up(t.Context(), db)
	require.NoError(t, err)
	require.Equal(t, files(t), names(done))
	require.Empty(t, pending(t, db))

	done, err = migrations.Up(t.Context(), db)
	require.NoError(t, err)
	require.Empty(t, done)
}

// TestUpByManyAtOnce: every file is applied by exactly one of them, and all of
// them find the schema complete.
func TestUpByManyAtOnce(t *testing.T) {
	url := testenv.Postgres(t)
	const processes = 4
	var (
		wg   sync.WaitGroup
		done [processes][]migrations.Migration
		errs [processes]error
		left [processes][]string
	)
	begin := make(chan struct{})
	for i := range processes {
		db := open(t, url)
		wg.Go(func() {
			<-begin
			done[i], errs[i] = migrations.Up(t.Context(), db)
			all, err := migrations.Status(t.Context(), db)
			if err == nil {
				for _, m := range all {
					if m.Pending() {
						left[i] = append(left[i], m.Name)
					}
				}
			}
		})
	}
	close(begin)
	wg.Wait()
	var applied []string
	for i := range processes {
		require.NoError(t, errs[i])
		require.Empty(t, left[i])
		applied = append(applied, names(done[i])...)
	}
	require.Equal(t, files(t), applied)
}

// TestCrashInTheMiddle ends the migrating session in the middle of a file: a
// table that another session is just creating makes it wait there.
func TestCrashInTheMiddle(t *testing.T) {
	url := testenv.Postgres(t)
	db, other := open(t, url), open(t, url)
	blocker, err := other.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = blocker.ExecContext(t.Context(), `CREATE TABLE audit_log ()`)
	require.NoError(t, err)
	var blockerPID int
	require.NoError(t, blocker.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&blockerPID))

	failed := make(chan error, 1)
	go func() {
		_, err := migrations.Up(t.Context(), db)
		failed <- err
	}()
	terminateBlockedBy(t, other, blockerPID)
	require.Error(t, <-failed)
	require.NoError(t, blocker.Rollback())
	require.Empty(t, tables(t, db), "half a file was left behind")

	done, err := migrations.Up(t.Context(), db)
	require.NoError(t, err)
	require.Equal(t, files(t), names(done))
}

// terminateBlockedBy waits until a session waits for the given one, and kills it.
func terminateBlockedBy(t *testing.T, db *sql.DB, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var killed bool
		err := db.QueryRowContext(t.Context(),
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))`, pid).Scan(&killed)
		return err == nil && killed
	}, time.Minute, 5*time.Millisecond)
}

// TestUpWhenTheContextEnds: the lock is given back, so that the next one does not wait.
func TestUpWhenTheContextEnds(t *testing.T) {
	db := open(t, testenv.Postgres(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := migrations.Up(ctx, db)
	require.ErrorIs(t, err, context.Canceled)
	_, err = migrations.Up(t.Context(), db)
	require.NoError(t, err)
}

func TestUpDownUp(t *testing.T) {
	db := open(t, testenv.Postgres(t))
	_, err := migrations.Up(t.Context(), db)
	require.NoError(t, err)
	want := tables(t, db)

	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS, goose.WithTableName(migrations.Table))
	require.NoError(t, err)
	_, err = p.DownTo(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, tables(t, db))
	require.Equal(t, files(t), pending(t, db))

	_, err = migrations.Up(t.Context(), db)
	require.NoError(t, err)
	require.Equal(t, want, tables(t, db))
}

// TestNewerSchemaIsLeftAlone: during a rolling upgrade an older binary starts on
// a schema that a newer one has migrated.
func TestNewerSchemaIsLeftAlone(t *testing.T) {
	db := open(t, testenv.Postgres(t))
	_, err := migrations.Up(t.Context(), db)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), `INSERT INTO `+migrations.Table+` (version_id, is_applied) VALUES (99999, true)`)
	require.NoError(t, err)
	done, err := migrations.Up(t.Context(), db)
	require.NoError(t, err)
	require.Empty(t, done)
	require.Empty(t, pending(t, db))
}

// TestMigrationsOnlyAdd: while versions mix, the older one reads and writes tables that
// the newer one has migrated. So nothing that it names goes or changes, and it need not
// name what came.
func TestMigrationsOnlyAdd(t *testing.T) {
	for _, name := range files(t) {
		body, err := fs.ReadFile(migrations.FS, name)
		require.NoError(t, err)
		up, _, found := strings.Cut(string(body), "-- +goose Down")
		require.True(t, found, "%s has no way back", name)
		for line := range strings.SplitSeq(up, "\n") {
			code, _, _ := strings.Cut(strings.ToUpper(line), "--")
			require.NotRegexp(t, `\b(DROP|RENAME|ALTER COLUMN|TRUNCATE)\b`, code, "%s: %s", name, line)
			if strings.Contains(code, "ADD COLUMN") && strings.Contains(code, "NOT NULL") {
				require.Contains(t, code, "DEFAULT", "%s: %s", name, line)
			}
		}
	}
}

func TestFilesAreNamedInOrder(t *testing.T) {
	for i, name := range files(t) {
		require.Regexp(t, `^\d{5}_[a-z_]+\.sql$`, name)
		require.Equal(t, fmt.Sprintf("%05d", i+1), name[:5], "numbers have no gaps")
		body, err := fs.ReadFile(migrations.FS, name)
		require.NoError(t, err)
		require.NotContains(t, strings.ToUpper(string(body)), "NO TRANSACTION", "a crash would leave half of it")
	}
}
