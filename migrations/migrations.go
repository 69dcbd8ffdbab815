package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"path"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the files, named NNNNN_what.sql.
//
//go:embed *.sql
var FS embed.FS

// Table records which files have been applied.
const Table = "weir_migrations"

// How long Up waits for another process that migrates, in tries one second apart.
const lockTries = 300

// Migration is one file and whether it is applied.
type Migration struct {
	Version int64
	// Name is the name of the file.
	Name string
	// AppliedAt is zero while it is pending.
	AppliedAt time.Time
}

// Pending reports whether the file is still to be applied.
func (m Migration) Pending() bool { return m.AppliedAt.IsZero() }

// Up applies what is pending and returns it in order; nothing when the schema
// is up to date. When a file fails, those before it stay applied.
func Up(ctx context.Context, db *sql.DB) ([]Migration, error) {
	p, err := provider(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	results, err := p.Up(ctx)
	var done []Migration
	for _, r := range results {
		done = append(done, Migration{Version: r.Source.Version, Name: path.Base(r.Source.Path), AppliedAt: time.Now()})
	}
	if err != nil {
		return done, fmt.Errorf("migrate: %w", err)
	}
	return done, nil
}

// Status lists all files in order. It changes nothing.
func Status(ctx context.Context, db *sql.DB) ([]Migration, error) {
	p, err := provider(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	var out []Migration
	for _, s := range p.ListSources() {
		out = append(out, Migration{Version: s.Version, Name: path.Base(s.Path)})
	}
	applied, err := appliedAt(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	for i := range out {
		out[i].AppliedAt = applied[out[i].Version]
	}
	return out, nil
}

func appliedAt(ctx context.Context, db *sql.DB) (map[int64]time.Time, error) {
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT to_regclass(quote_ident(current_schema()) || '.`+Table+`') IS NOT NULL`).Scan(&exists)
	if err != nil || !exists {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id, max(tstamp AT TIME ZONE current_setting('TimeZone')) FROM `+Table+` WHERE is_applied GROUP BY version_id`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what matters
	applied := make(map[int64]time.Time)
	for rows.Next() {
		var (
			version int64
			at      time.Time
		)
		if err := rows.Scan(&version, &at); err != nil {
			return nil, err
		}
		applied[version] = at.UTC()
	}
	return applied, rows.Err()
}

// provider needs the database for the lock's number only: it is per database,
// so it carries the schema, and schemas do not wait for each other.
func provider(ctx context.Context, db *sql.DB) (*goose.Provider, error) {
	var id int64
	if err := db.QueryRowContext(ctx, `SELECT hashtextextended('weir migrations in ' || current_schema(), 0)`).Scan(&id); err != nil {
		return nil, err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(id), lock.WithLockTimeout(1, lockTries))
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, FS,
		goose.WithTableName(Table), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
}
