package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/ledgertest"
	"github.com/weirhq/weir/coordinator/postgres"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// pool returns a pool on a database with the schema in place.
func pool(tb testing.TB, url string) *pgxpool.Pool {
	tb.Helper()
	p, err := pgxpool.New(tb.Context(), url)
	require.NoError(tb, err)
	tb.Cleanup(p.Close)
	db := stdlib.OpenDBFromPool(p)
	_, err = migrations.Up(tb.Context(), db)
	require.NoError(tb, err)
	require.NoError(tb, db.Close())
	return p
}

func TestLedger(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T) func() coordinator.Ledger {
		p := pool(t, testenv.Postgres(t))
		return func() coordinator.Ledger { return postgres.NewLedger(postgres.Config{Pool: p}) }
	})
}

// TestLedgerOfATenure: the same while the tenure lasts.
func TestLedgerOfATenure(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T) func() coordinator.Ledger {
		e := postgres.NewElection(postgres.Config{Pool: pool(t, testenv.Postgres(t))})
		require.NoError(t, e.Claim(t.Context(), coordinator.Leader{Tenure: "mine"}, coordinator.Leader{}))
		return func() coordinator.Ledger { return e.Ledger("mine") }
	})
}
