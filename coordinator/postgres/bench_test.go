package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/postgres"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/quota"
)

// many returns the rows of n policies in five regions.
func many(n int, version int64) coordinator.Batch {
	var b coordinator.Batch
	for i := range n {
		for _, region := range []quota.Region{"ap-south", "eu-west", "sa-east", "us-east", "us-west"} {
			b.Rows = append(b.Rows, row(fmt.Sprintf("policy-%05d", i), region, version))
		}
	}
	return b
}

// TestTenThousandPoliciesLoadInTime: a new leader has them within a second, of
// which this allows fifteen to a machine that is busy with other tests, under
// the race detector. BenchmarkLedger measures it.
func TestTenThousandPoliciesLoadInTime(t *testing.T) {
	l := postgres.NewLedger(postgres.Config{Pool: pool(t, testenv.Postgres(t))})
	s := load(t, l, 0)
	require.NoError(t, l.Commit(t.Context(), s.Epoch, many(10_000, 1)))
	begin := time.Now()
	s = load(t, l, 0)
	took := time.Since(begin)
	require.Len(t, s.Rows, 50_000)
	require.Less(t, took, 15*time.Second)
	t.Logf("50,000 rows loaded in %v", took)
}

func BenchmarkLedger(b *testing.B) {
	l := postgres.NewLedger(postgres.Config{Pool: pool(b, testenv.Postgres(b))})
	s, err := l.Load(b.Context(), 0)
	require.NoError(b, err)
	version := int64(1)
	require.NoError(b, l.Commit(b.Context(), s.Epoch, many(10_000, version)))
	for _, policies := range []int{1, 20, 1000, 10_000} {
		b.Run(fmt.Sprintf("CommitRows=%d", 5*policies), func(b *testing.B) {
			for b.Loop() {
				version++
				require.NoError(b, l.Commit(b.Context(), s.Epoch, many(policies, version)))
			}
		})
	}
	b.Run("LoadRows=50000", func(b *testing.B) {
		for b.Loop() {
			s, err = l.Load(b.Context(), 0)
			require.NoError(b, err)
			require.Len(b, s.Rows, 50_000)
		}
	})
}
