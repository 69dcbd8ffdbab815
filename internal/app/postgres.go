package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/pflag"

	"github.com/weirhq/weir/migrations"
)

// PostgresConfig says how to reach Postgres.
type PostgresConfig struct {
	URL string
}

// Flags registers the configuration's flags.
func (c *PostgresConfig) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.URL, "postgres", "", "URL of the PostgreSQL database, postgres://user:password@host:5432/name; it may hold a password, so prefer the environment")
}

// pool opens a pool of the size that the URL states, or of pgx's default.
func (c *PostgresConfig) pool(ctx context.Context) (*pgxpool.Pool, error) { return c.poolOf(ctx, 0) }

// poolOf opens a pool of a size. The URL is never repeated: it may hold a password.
func (c *PostgresConfig) poolOf(ctx context.Context, size int32) (*pgxpool.Pool, error) {
	if c.URL == "" {
		return nil, invalid("postgres", "no URL; pass postgres://user:password@host:5432/name")
	}
	cfg, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, invalid("postgres", "not a PostgreSQL URL; write postgres://user:password@host:5432/name")
	}
	if size > 0 {
		cfg.MaxConns = size
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("reach postgres at %s: %w", cfg.ConnConfig.Host, err)
	}
	return pool, nil
}

// withDatabase runs f on a database/sql view of a pool.
func (c *PostgresConfig) withDatabase(ctx context.Context, f func(*sql.DB) error) error {
	pool, err := c.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	return errors.Join(f(db), db.Close())
}

// MigrateUp brings the database to the schema of this binary and says what it did. It
// is safe when run twice, by several at once, and after a crash.
func MigrateUp(ctx context.Context, cfg PostgresConfig, out io.Writer) error {
	return cfg.withDatabase(ctx, func(db *sql.DB) error {
		applied, err := migrations.Up(ctx, db)
		for _, m := range applied {
			_, _ = fmt.Fprintln(out, "applied", m.Name)
		}
		if err == nil && len(applied) == 0 {
			_, _ = fmt.Fprintln(out, "the schema is up to date")
		}
		return err
	})
}

// MigrateStatus lists the migrations and whether each is applied.
func MigrateStatus(ctx context.Context, cfg PostgresConfig, out io.Writer) error {
	return cfg.withDatabase(ctx, func(db *sql.DB) error {
		list, err := migrations.Status(ctx, db)
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "MIGRATION\tAPPLIED")
		for _, m := range list {
			when := "pending"
			if !m.Pending() {
				when = m.AppliedAt.UTC().Format(time.RFC3339)
			}
			_, _ = fmt.Fprintf(t, "%s\t%s\n", m.Name, when)
		}
		return t.Flush()
	})
}

// pendingMigrations is an error when the database lacks a migration of this binary.
func pendingMigrations(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	list, err := migrations.Status(ctx, db)
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	for _, m := range list {
		if m.Pending() {
			return fmt.Errorf("the database lacks migration %s; run 'weir migrate up' first", m.Name)
		}
	}
	return nil
}
