package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/postgres"
	"github.com/weirhq/weir/policystore/storetest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// pool returns a pool on a database with the schema in place.
func pool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	db := stdlib.OpenDBFromPool(p)
	_, err = migrations.Up(t.Context(), db)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	return p
}

// listening returns a store whose watchers hear of other processes.
func listening(t *testing.T, p *pgxpool.Pool, now func() time.Time) *postgres.Store {
	t.Helper()
	s := postgres.New(postgres.Config{Pool: p, Now: now})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Listen(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, now func() time.Time) policystore.Store {
		return listening(t, pool(t, testenv.Postgres(t)), now)
	})
}

func TestTokens(t *testing.T) {
	storetest.RunTokens(t, func(t *testing.T, now func() time.Time) storetest.TokenStore {
		return postgres.New(postgres.Config{Pool: pool(t, testenv.Postgres(t)), Now: now})
	})
}
