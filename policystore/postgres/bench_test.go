package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/postgres"
	"github.com/weirhq/weir/quota"
)

const (
	manyPolicies  = 10_000
	manyOverrides = 100_000
)

// full returns a pool on a database with many policies and overrides.
func full(b *testing.B) *pgxpool.Pool {
	b.Helper()
	p, err := pgxpool.New(b.Context(), testenv.Postgres(b))
	require.NoError(b, err)
	b.Cleanup(p.Close)
	db := stdlib.OpenDBFromPool(p)
	_, err = migrations.Up(b.Context(), db)
	require.NoError(b, err)
	require.NoError(b, db.Close())
	s := postgres.New(postgres.Config{Pool: p})
	c := policystore.Change{Edit: policystore.Edit{Author: "ann"}, Replace: true}
	for i := range manyPolicies {
		c.Policies = append(c.Policies, patch(fmt.Sprintf("policy-%05d", i), 1).Policies...)
	}
	_, err = s.Apply(b.Context(), c)
	require.NoError(b, err)
	for i := 0; i < manyOverrides; i += policystore.MaxOverrideBatch {
		var set []quota.Override
		for j := range policystore.MaxOverrideBatch {
			set = append(set, quota.Override{
				Policy: fmt.Sprintf("policy-%05d", j%manyPolicies), Key: []string{fmt.Sprintf("key-%d", i+j)},
				Limit: quota.Limit{Capacity: quota.Token, Refill: quota.Token, Period: time.Second},
			})
		}
		require.NoError(b, s.SetOverrides(b.Context(), c.Edit, set))
	}
	return p
}

// BenchmarkFull measures on 10,000 policies and 100,000 overrides.
func BenchmarkFull(b *testing.B) {
	p := full(b)
	s := postgres.New(postgres.Config{Pool: p})
	ctx := b.Context()
	b.Run("PatchOnePolicy", func(b *testing.B) {
		n := int64(1)
		for b.Loop() {
			n++
			_, err := s.Apply(ctx, patch("policy-00007", n))
			require.NoError(b, err)
		}
	})
	b.Run("ReplaceWholeSet", func(b *testing.B) {
		burst := int64(2)
		for b.Loop() {
			burst++
			c := policystore.Change{Edit: policystore.Edit{Author: "ann"}, Replace: true}
			for i := range manyPolicies {
				c.Policies = append(c.Policies, patch(fmt.Sprintf("policy-%05d", i), burst).Policies...)
			}
			_, err := s.Apply(ctx, c)
			require.NoError(b, err)
		}
	})
	b.Run("CurrentFromMemory", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Current(ctx)
			require.NoError(b, err)
		}
	})
	b.Run("CurrentFromTables", func(b *testing.B) {
		for b.Loop() {
			_, err := postgres.New(postgres.Config{Pool: p}).Current(ctx)
			require.NoError(b, err)
		}
	})
	b.Run("DiffOfTwoRevisions", func(b *testing.B) {
		first, err := s.At(ctx, 1)
		require.NoError(b, err)
		current, err := s.Current(ctx)
		require.NoError(b, err)
		for b.Loop() {
			require.False(b, policystore.Compare(first.Policies, current.Policies).Empty())
		}
	})
	b.Run("SetOneOverride", func(b *testing.B) {
		o := quota.Override{Policy: "policy-00001", Key: []string{"key-1"}, Limit: quota.Limit{Capacity: quota.Token, Refill: quota.Token, Period: time.Second}}
		for b.Loop() {
			require.NoError(b, s.SetOverrides(ctx, policystore.Edit{Author: "ann"}, []quota.Override{o}))
		}
	})
	b.Run("OverrideLookup", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Override(ctx, policystore.OverrideID{Policy: "policy-05000", Key: []string{"key-5000"}})
			require.NoError(b, err)
		}
	})
	b.Run("ListAllOverrides", func(b *testing.B) {
		for b.Loop() {
			q, n := policystore.OverrideQuery{Limit: policystore.MaxPage}, 0
			for {
				page, err := s.ListOverrides(ctx, q)
				require.NoError(b, err)
				n += len(page)
				if len(page) < q.Limit {
					break
				}
				q.After = new(policystore.IDOf(page[len(page)-1]))
			}
			require.Equal(b, manyOverrides, n)
		}
	})
}
