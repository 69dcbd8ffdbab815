package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// New makes a fresh, empty store that reads the time from now. The store is
// ready to use and to wake watchers, and is closed by a cleanup of t.
type New func(t *testing.T, now func() time.Time) policystore.Store

// Run runs the suite, each test on a store of its own.
func Run(t *testing.T, newStore New) {
	for _, tc := range []struct {
		name string
		run  func(*bundle)
	}{
		{"Empty", testEmpty},
		{"ReplaceWholeSet", testReplace},
		{"Patch", testPatch},
		{"EveryFieldIsKept", testEveryField},
		{"OrderDoesNotMatter", testOrder},
		{"NothingToChange", testNothingToChange},
		{"DryRun", testDryRun},
		{"InvalidChanges", testInvalidChanges},
		{"ConflictNamesWhoChangedWhat", testConflict},
		{"Rollback", testRollback},
		{"RollbackRefusals", testRollbackRefusals},
		{"RegionalRollout", testRollout},
		{"HistoryIsAppendOnly", testHistory},
		{"HistoryPages", testHistoryPages},
		{"SearchIsLiteral", testSearchIsLiteral},
		{"TimeNeverGoesBack", testTime},
		{"NothingIsShared", testNothingIsShared},
		{"AuditOneRowPerMutation", testAudit},
		{"AuditPages", testAuditPages},
		{"WatchWakes", testWatch},
		{"WatchEndsWithContext", testWatchEnds},
		{"CancelledContext", testCancelled},
		{"ParallelPatchesLoseNothing", testParallelPatches},
		{"ParallelEditorsOneWins", testParallelEditors},
		{"ReadersSeeWholeRevisions", testWholeRevisions},
		{"OverrideSetAndDelete", testOverrides},
		{"OverrideExpiry", testOverrideExpiry},
		{"OverrideRefusals", testOverrideRefusals},
		{"OverrideBatchesAreAtomic", testOverrideBatches},
		{"OverrideKeysAreLiteral", testOverrideKeys},
		{"OverridePages", testOverridePages},
		{"OverridesOutliveTheirPolicy", testOverridesOutlive},
		{"OverrideChanges", testOverrideChanges},
		{"OverrideChangesAreCompacted", testOverrideCompaction},
		{"ParallelOverridesLoseNothing", testParallelOverrides},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := &clock{now: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}
			tc.run(&bundle{T: t, clock: clock, store: newStore(t, clock.Now)})
		})
	}
}

// clock is a clock that stands still until told otherwise.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// bundle is what one test works with.
type bundle struct {
	*testing.T
	clock *clock
	store policystore.Store
}

var ann = policystore.Edit{Author: "ann", Message: "because"}

// policy is a small valid policy; burst tells versions of it apart.
func policy(id string, burst int64) *quota.Policy {
	return &quota.Policy{
		ID:             id,
		Match:          []quota.Condition{{Attribute: "plan", Pattern: "free"}},
		Key:            []string{"apiKey"},
		Algorithm:      quota.TokenBucket,
		Limit:          quota.Limit{Capacity: quota.Tokens(burst) * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
		OnStoreFailure: quota.FailLocal,
	}
}

// replace commits a whole set.
func (b *bundle) replace(set ...*quota.Policy) policystore.Applied {
	b.Helper()
	out, err := b.store.Apply(b.Context(), policystore.Change{Edit: ann, Replace: true, Policies: set})
	require.NoError(b, err)
	return out
}

// patch adds or replaces policies.
func (b *bundle) patch(by string, set ...*quota.Policy) policystore.Applied {
	b.Helper()
	out, err := b.store.Apply(b.Context(), policystore.Change{Edit: policystore.Edit{Author: by}, Policies: set})
	require.NoError(b, err)
	return out
}

func (b *bundle) current() policystore.Snapshot {
	b.Helper()
	s, err := b.store.Current(b.Context())
	require.NoError(b, err)
	return s
}

// requireSet checks that a snapshot holds exactly these policies, in order of id.
func (b *bundle) requireSet(s policystore.Snapshot, want ...*quota.Policy) {
	b.Helper()
	require.Len(b, s.Policies, len(want))
	require.Equal(b, len(want), s.Revision.Policies)
	for i := range want {
		require.Equal(b, want[i], s.Policies[i])
	}
}

func (b *bundle) position() policystore.Position {
	b.Helper()
	p, err := b.store.Position(b.Context())
	require.NoError(b, err)
	return p
}

func (b *bundle) auditRows() []policystore.AuditEntry {
	b.Helper()
	rows, err := b.store.Audit(b.Context(), policystore.AuditQuery{Limit: policystore.MaxPage})
	require.NoError(b, err)
	return rows
}
