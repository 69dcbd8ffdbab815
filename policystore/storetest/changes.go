package storetest

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func testEmpty(b *bundle) {
	cur := b.current()
	require.Zero(b, cur.Number)
	b.requireSet(cur)
	at, err := b.store.At(b.Context(), 0)
	require.NoError(b, err)
	b.requireSet(at)
	in, err := b.store.InForce(b.Context(), "us-east")
	require.NoError(b, err)
	b.requireSet(in)
	list, err := b.store.ListRevisions(b.Context(), policystore.RevisionQuery{})
	require.NoError(b, err)
	require.Empty(b, list)
	require.Equal(b, policystore.Position{}, b.position())
	_, err = b.store.At(b.Context(), 1)
	require.ErrorIs(b, err, quota.ErrNotFound)
	_, err = b.store.At(b.Context(), -1)
	require.ErrorIs(b, err, quota.ErrNotFound)
}

func testReplace(b *bundle) {
	out := b.replace(policy("b", 1), policy("a", 1))
	require.True(b, out.Committed)
	require.Equal(b, policystore.Revision{
		Number: 1, Author: "ann", Message: "because", Time: b.clock.Now(), Policies: 2,
		Summary: policystore.Summary{Added: []string{"a", "b"}},
	}, out.Revision)
	b.requireSet(b.current(), policy("a", 1), policy("b", 1))
	require.Equal(b, out.Revision, b.current().Revision)
	require.EqualValues(b, 1, b.position().Revision)

	out = b.replace(policy("b", 2), policy("c", 1))
	require.Equal(b, policystore.Summary{Added: []string{"c"}, Changed: []string{"b"}, Removed: []string{"a"}}, out.Revision.Summary)
	require.Equal(b, out.Revision.Summary, out.Diff.Summary())
	b.requireSet(b.current(), policy("b", 2), policy("c", 1))

	b.replace()
	b.requireSet(b.current())
}

func testPatch(b *bundle) {
	b.replace(policy("a", 1), policy("b", 1), policy("c", 1))
	out, err := b.store.Apply(b.Context(), policystore.Change{
		Edit: ann, Policies: []*quota.Policy{policy("d", 1), policy("b", 2)}, Delete: []string{"c"}, Expect: new(int64(1)),
	})
	require.NoError(b, err)
	require.Equal(b, policystore.Summary{Added: []string{"d"}, Changed: []string{"b"}, Removed: []string{"c"}}, out.Revision.Summary)
	b.requireSet(b.current(), policy("a", 1), policy("b", 2), policy("d", 1))

	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("e", 1)}, Delete: []string{"c"}})
	require.ErrorIs(b, err, quota.ErrNotFound)
	require.ErrorContains(b, err, `"c"`)
	b.requireSet(b.current(), policy("a", 1), policy("b", 2), policy("d", 1))
}

// everyField is a set in which each field of a policy is used.
func everyField() []*quota.Policy {
	log := &quota.Policy{
		ID: "login_/a:b", Match: []quota.Condition{{Attribute: "method", Pattern: "*"}, {Attribute: "route", Pattern: "POST /\x00\"';--%_\\ ü*"}},
		Key: []string{"username", "ip"}, Algorithm: quota.SlidingLog,
		Limit: quota.Limit{Capacity: quota.MaxTokens, Period: 8760*time.Hour + time.Microsecond},
		Scope: quota.Regional, OnStoreFailure: quota.FailClosed, StoreDeadline: 1500 * time.Microsecond,
		MissingKey: quota.MissingDeny, Priority: -7, Shadow: true,
	}
	bucket := &quota.Policy{
		ID: "bucket", Key: []string{"tenant"}, Algorithm: quota.TokenBucket,
		Limit: quota.Limit{Capacity: 1, Refill: 7 * quota.Token, Period: 13 * time.Second},
		Split: quota.Split{
			Strategy: quota.SplitExplicit, FloorPercent: new(0.1), OnPartition: quota.Strict,
			Weights: map[quota.Region]float64{"us-east": 1.0 / 3, "eu-west": 0},
		},
		OnStoreFailure: quota.FailOpen, Enforcement: quota.Leased, MissingKey: quota.MissingShared, SubBuckets: 4,
	}
	slots := &quota.Policy{
		ID: "reports", Algorithm: quota.Concurrency, Limit: quota.Limit{Capacity: 5 * quota.Token},
		Split: quota.Split{Strategy: quota.SplitEqual, FloorPercent: new(0.0)}, OnStoreFailure: quota.FailLocal, LeaseTTL: 2 * time.Minute,
	}
	free := &quota.Policy{ID: "unlimited", Unlimited: true, OnStoreFailure: quota.FailOpen}
	return []*quota.Policy{bucket, log, slots, free}
}

func testEveryField(b *bundle) {
	b.replace(everyField()...)
	b.requireSet(b.current(), everyField()...)
	at, err := b.store.At(b.Context(), 1)
	require.NoError(b, err)
	b.requireSet(at, everyField()...)
}

func testOrder(b *bundle) {
	set := everyField()
	b.replace(set...)
	slices.Reverse(set)
	require.False(b, b.replace(set...).Committed)
	b.requireSet(b.current(), everyField()...)
}

func testNothingToChange(b *bundle) {
	require.False(b, b.replace().Committed)
	first := b.replace(policy("a", 1))
	rows := len(b.auditRows())
	for _, out := range []policystore.Applied{b.replace(policy("a", 1)), b.patch("bob", policy("a", 1))} {
		require.False(b, out.Committed)
		require.True(b, out.Diff.Empty())
		require.Equal(b, first.Revision, out.Revision)
	}
	require.EqualValues(b, 1, b.position().Revision)
	require.Len(b, b.auditRows(), rows)
}

func testDryRun(b *bundle) {
	first := b.replace(policy("a", 1), policy("b", 1))
	out, err := b.store.Apply(b.Context(), policystore.Change{Edit: ann, DryRun: true, Policies: []*quota.Policy{policy("a", 2)}, Delete: []string{"b"}})
	require.NoError(b, err)
	require.False(b, out.Committed)
	require.Equal(b, first.Revision, out.Revision)
	require.Equal(b, "~ a\n    capacity: 1 -> 2\n- b\n    match.plan: \"free\"\n    key: [apiKey]\n    algorithm: token-bucket\n    capacity: 1\n    refill: 100/1m\n    onStoreFailure: local\n", out.Diff.String())
	b.requireSet(b.current(), policy("a", 1), policy("b", 1))

	out, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, DryRun: true, To: 0})
	require.NoError(b, err)
	require.False(b, out.Committed)
	require.Equal(b, policystore.Summary{Removed: []string{"a", "b"}}, out.Diff.Summary())
	require.EqualValues(b, 1, b.position().Revision)
	require.Len(b, b.auditRows(), 1)

	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, DryRun: true, Expect: new(int64(0)), Policies: []*quota.Policy{policy("a", 2)}})
	require.ErrorIs(b, err, quota.ErrConflict)
}

func testInvalidChanges(b *bundle) {
	b.replace(policy("a", 1))
	with := func(change func(c *policystore.Change)) policystore.Change {
		c := policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("b", 1)}}
		change(&c)
		return c
	}
	broken := func(change func(p *quota.Policy)) policystore.Change {
		return with(func(c *policystore.Change) { change(c.Policies[0]) })
	}
	for name, c := range map[string]policystore.Change{
		"no author":           with(func(c *policystore.Change) { c.Author = "" }),
		"blank author":        with(func(c *policystore.Change) { c.Author = " \t" }),
		"author with newline": with(func(c *policystore.Change) { c.Author = "a\nb" }),
		"long author":         with(func(c *policystore.Change) { c.Author = strings.Repeat("a", policystore.MaxAuthor+1) }),
		"NUL in message":      with(func(c *policystore.Change) { c.Message = "a\x00b" }),
		"message not UTF-8":   with(func(c *policystore.Change) { c.Message = "\xff" }),
		"long message":        with(func(c *policystore.Change) { c.Message = strings.Repeat("a", policystore.MaxMessage+1) }),
		"nil policy":          with(func(c *policystore.Change) { c.Policies = append(c.Policies, nil) }),
		"policy twice":        with(func(c *policystore.Change) { c.Policies = append(c.Policies, policy("b", 2)) }),
		"set and delete":      with(func(c *policystore.Change) { c.Delete = []string{"b"} }),
		"delete twice":        with(func(c *policystore.Change) { c.Delete = []string{"a", "a"} }),
		"replace and delete":  with(func(c *policystore.Change) { c.Replace, c.Delete = true, []string{"a"} }),
		"empty region":        with(func(c *policystore.Change) { c.Regions = []quota.Region{""} }),
		"no id":               broken(func(p *quota.Policy) { p.ID = "" }),
		"NUL in id":           broken(func(p *quota.Policy) { p.ID = "a\x00" }),
		"long id":             broken(func(p *quota.Policy) { p.ID = strings.Repeat("a", quota.MaxPolicyID+1) }),
		"pattern not UTF-8":   broken(func(p *quota.Policy) { p.Match[0].Pattern = "\xc3(" }),
		"weight not a number": broken(func(p *quota.Policy) { p.Split.Weights = map[quota.Region]float64{"r": math.NaN()} }),
		"infinite floor":      broken(func(p *quota.Policy) { p.Split.FloorPercent = new(math.Inf(1)) }),
	} {
		_, err := b.store.Apply(b.Context(), c)
		require.ErrorIs(b, err, quota.ErrInvalid, name)
	}
	b.requireSet(b.current(), policy("a", 1))
	require.Len(b, b.auditRows(), 1)
}

func testConflict(b *bundle) {
	b.replace(policy("a", 1))
	b.patch("bob", policy("a", 2), policy("b", 1))
	_, err := b.store.Apply(b.Context(), policystore.Change{Edit: policystore.Edit{Author: "cy", Message: "less"}, Delete: []string{"b"}})
	require.NoError(b, err)

	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("c", 1)}, Expect: new(int64(1))})
	require.ErrorIs(b, err, quota.ErrConflict)
	var conflict *policystore.ConflictError
	require.ErrorAs(b, err, &conflict)
	require.EqualValues(b, 1, conflict.Expected)
	require.EqualValues(b, 3, conflict.Current)
	require.Len(b, conflict.Since, 2)
	require.Equal(b, "cy", conflict.Since[0].Author)
	require.Equal(b, []string{"b"}, conflict.Since[0].Summary.Removed)
	require.ErrorContains(b, err, `expected revision 1, but the current one is 3: revision 3 by cy ("less") removed b; revision 2 by bob added b; changed a`)

	_, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 1, Expect: new(int64(2))})
	require.ErrorAs(b, err, &conflict)
	require.Len(b, conflict.Since, 1)

	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Replace: true, Expect: new(int64(9))})
	require.ErrorAs(b, err, &conflict)
	require.Empty(b, conflict.Since)
	b.requireSet(b.current(), policy("a", 2))

	for i := range int64(policystore.MaxConflictRevisions) {
		b.patch("bob", policy("a", 10+i))
	}
	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Replace: true, Expect: new(int64(1))})
	require.ErrorAs(b, err, &conflict)
	require.Len(b, conflict.Since, policystore.MaxConflictRevisions)
	require.ErrorContains(b, err, "and 2 more before")
}

func testRollback(b *bundle) {
	b.replace(policy("a", 1), policy("b", 1))
	b.clock.Advance(time.Second)
	b.patch("bob", policy("a", 2), policy("c", 1))
	b.clock.Advance(time.Second)

	out, err := b.store.Rollback(b.Context(), policystore.Rollback{Edit: policystore.Edit{Author: "cy", Message: "undo"}, To: 1, Expect: new(int64(2))})
	require.NoError(b, err)
	require.True(b, out.Committed)
	require.Equal(b, policystore.Revision{
		Number: 3, Author: "cy", Message: "undo", Time: b.clock.Now(), RestoredFrom: 1, Policies: 2,
		Summary: policystore.Summary{Changed: []string{"a"}, Removed: []string{"c"}},
	}, out.Revision)
	b.requireSet(b.current(), policy("a", 1), policy("b", 1))

	// What was rolled back is still there, and can be returned to.
	_, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 2})
	require.NoError(b, err)
	b.requireSet(b.current(), policy("a", 2), policy("b", 1), policy("c", 1))

	_, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 0})
	require.NoError(b, err)
	b.requireSet(b.current())
	require.EqualValues(b, 5, b.position().Revision)
}

func testRollbackRefusals(b *bundle) {
	b.replace(policy("a", 1))
	for _, to := range []int64{2, -1} {
		_, err := b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: to})
		require.ErrorIs(b, err, quota.ErrNotFound)
	}
	_, err := b.store.Rollback(b.Context(), policystore.Rollback{To: 0})
	require.ErrorIs(b, err, quota.ErrInvalid)
	out, err := b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 1})
	require.NoError(b, err)
	require.False(b, out.Committed)
	b.requireSet(b.current(), policy("a", 1))
}

func testRollout(b *bundle) {
	b.replace(policy("a", 1))
	first := []quota.Region{"us-east", "eu-west", "us-east"}
	out, err := b.store.Apply(b.Context(), policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("a", 2)}, Regions: first})
	require.NoError(b, err)
	require.Equal(b, []quota.Region{"eu-west", "us-east"}, out.Revision.Regions)
	inForce := func(region quota.Region, number, burst int64) {
		b.Helper()
		s, err := b.store.InForce(b.Context(), region)
		require.NoError(b, err)
		require.Equal(b, number, s.Number)
		b.requireSet(s, policy("a", burst))
	}
	inForce("us-east", 2, 2)
	inForce("ap-south", 1, 1)

	var rollout *policystore.RolloutError
	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("b", 1)}})
	require.ErrorAs(b, err, &rollout)
	require.ErrorIs(b, err, quota.ErrConflict)
	require.EqualValues(b, 2, rollout.Revision.Number)
	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("a", 3)}, Regions: []quota.Region{"ap-south"}})
	require.ErrorAs(b, err, &rollout)

	// The rollout can be amended where it is, and then promoted.
	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("a", 4)}, Regions: first})
	require.NoError(b, err)
	inForce("us-east", 3, 4)
	out, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 3})
	require.NoError(b, err)
	require.True(b, out.Committed)
	require.True(b, out.Diff.Empty())
	require.Empty(b, out.Revision.Regions)
	inForce("us-east", 4, 4)
	inForce("ap-south", 4, 4)

	// Another one is undone.
	_, err = b.store.Apply(b.Context(), policystore.Change{Edit: ann, Policies: []*quota.Policy{policy("a", 5)}, Regions: []quota.Region{"ap-south"}})
	require.NoError(b, err)
	inForce("ap-south", 5, 5)
	inForce("us-east", 4, 4)
	_, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 4})
	require.NoError(b, err)
	inForce("ap-south", 6, 4)
	inForce("us-east", 6, 4)
}
