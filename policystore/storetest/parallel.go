package storetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// parallel runs n functions at once and fails on the first error.
func (b *bundle) parallel(n int, do func(i int) error) {
	b.Helper()
	errs := make([]error, n)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			errs[i] = do(i)
		})
	}
	close(begin)
	wg.Wait()
	require.NoError(b, errors.Join(errs...))
}

const writers = 50

func testParallelPatches(b *bundle) {
	b.parallel(writers, func(i int) error {
		_, err := b.store.Apply(b.Context(), policystore.Change{
			Edit:     policystore.Edit{Author: fmt.Sprintf("editor-%d", i)},
			Policies: []*quota.Policy{policy(fmt.Sprintf("p%02d", i), 1)},
		})
		return err
	})
	cur := b.current()
	require.EqualValues(b, writers, cur.Number)
	require.Len(b, cur.Policies, writers)
	require.Len(b, b.auditRows(), writers)
	// Each revision adds exactly one policy to the one before.
	for n := int64(1); n <= writers; n++ {
		s, err := b.store.At(b.Context(), n)
		require.NoError(b, err)
		require.Len(b, s.Policies, int(n))
		require.Len(b, s.Summary.Added, 1)
	}
}

// testParallelEditors lets every editor read, change and write back the whole
// set with the revision it read, and begin again after a conflict.
func testParallelEditors(b *bundle) {
	const editors = 10
	b.parallel(editors, func(i int) error {
		for {
			cur, err := b.store.Current(b.Context())
			if err != nil {
				return err
			}
			_, err = b.store.Apply(b.Context(), policystore.Change{
				Edit:     policystore.Edit{Author: fmt.Sprintf("editor-%d", i)},
				Replace:  true,
				Policies: append(cur.Policies, policy(fmt.Sprintf("p%02d", i), 1)),
				Expect:   new(cur.Number),
			})
			var conflict *policystore.ConflictError
			if !errors.As(err, &conflict) {
				return err
			}
			if len(conflict.Since) == 0 || conflict.Since[0].Author == "" {
				return fmt.Errorf("conflict names nobody: %w", err)
			}
		}
	})
	cur := b.current()
	require.EqualValues(b, editors, cur.Number)
	require.Len(b, cur.Policies, editors)
}

// testWholeRevisions reads while sets change in which all policies carry the
// same number.
func testWholeRevisions(b *bundle) {
	const rounds, width = 20, 5
	set := func(burst int64) []*quota.Policy {
		var out []*quota.Policy
		for i := range width {
			out = append(out, policy(fmt.Sprintf("p%d", i), burst))
		}
		return out
	}
	b.replace(set(1)...)
	done := make(chan struct{})
	b.parallel(4, func(i int) error {
		if i == 0 {
			defer close(done)
			for n := range int64(rounds) {
				if _, err := b.store.Apply(b.Context(), policystore.Change{Edit: ann, Replace: true, Policies: set(n + 2)}); err != nil {
					return err
				}
			}
			return nil
		}
		for last := int64(0); ; {
			s, err := b.store.Current(b.Context())
			if err != nil {
				return err
			}
			if s.Number < last {
				return fmt.Errorf("revision went back from %d to %d", last, s.Number)
			}
			last = s.Number
			for _, p := range s.Policies {
				if p.Limit.Capacity != quota.Tokens(s.Number)*quota.Token {
					return fmt.Errorf("revision %d holds %s of another: %s", s.Number, p.ID, p.Limit.Capacity)
				}
			}
			if len(s.Policies) != width {
				return fmt.Errorf("revision %d has %d policies", s.Number, len(s.Policies))
			}
			select {
			case <-done:
				return nil
			default:
			}
		}
	})
}

func testParallelOverrides(b *bundle) {
	b.replace(policy("a", 1))
	b.parallel(writers, func(i int) error {
		return b.store.SetOverrides(b.Context(), ann, []quota.Override{override("a", fmt.Sprintf("k%02d", i)), override("a", "all")})
	})
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), writers+1)
	got := b.changes(0)
	require.Len(b, got, writers+1)
	for i := 1; i < len(got); i++ {
		require.Greater(b, got[i].Position, got[i-1].Position)
	}
	require.Equal(b, b.position().Overrides, got[len(got)-1].Position)
}
