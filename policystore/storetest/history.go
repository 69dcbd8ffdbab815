package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func testHistory(b *bundle) {
	want := [][]*quota.Policy{nil}
	for i := range int64(6) {
		set := []*quota.Policy{policy("a", i), policy(fmt.Sprintf("p%d", i), 1)}
		b.replace(set...)
		want = append(want, set)
	}
	for n, set := range want {
		s, err := b.store.At(b.Context(), int64(n))
		require.NoError(b, err)
		require.EqualValues(b, n, s.Number)
		b.requireSet(s, set...)
	}
	old, err := b.store.At(b.Context(), 2)
	require.NoError(b, err)
	d := policystore.Compare(old.Policies, b.current().Policies)
	require.Equal(b, policystore.Summary{Added: []string{"p5"}, Changed: []string{"a"}, Removed: []string{"p1"}}, d.Summary())
}

func testHistoryPages(b *bundle) {
	for i := range int64(25) {
		b.clock.Advance(time.Second)
		b.patch([]string{"ann", "bob"}[i%2], policy("a", i+1))
	}
	var got []int64
	q := policystore.RevisionQuery{Limit: 10}
	for {
		page, err := b.store.ListRevisions(b.Context(), q)
		require.NoError(b, err)
		for _, r := range page {
			got = append(got, r.Number)
			at, err := b.store.At(b.Context(), r.Number)
			require.NoError(b, err)
			require.Equal(b, at.Revision, r)
		}
		if len(page) < q.Limit {
			break
		}
		q.Before = page[len(page)-1].Number
	}
	require.Len(b, got, 25)
	for i, n := range got {
		require.EqualValues(b, 25-i, n)
	}
	page, err := b.store.ListRevisions(b.Context(), policystore.RevisionQuery{Author: "bob", Before: 7})
	require.NoError(b, err)
	require.Len(b, page, 3)
	require.EqualValues(b, 6, page[0].Number)
}

// hostile are texts that mean something to SQL, LIKE, arrays or JSON.
var hostile = []string{
	"';--", `"`, `\`, "%", "_", "a%b", "a_b", "axb", "{a,b}", "{}", "NULL", "$1", "' OR 1=1 --", `\x00`, "?", "*", "ü", "日本",
}

func testSearchIsLiteral(b *bundle) {
	for i, text := range hostile {
		_, err := b.store.Apply(b.Context(), policystore.Change{
			Edit:     policystore.Edit{Author: "by " + text, Message: "say <" + text + "> now"},
			Policies: []*quota.Policy{policy("a", int64(i+1))},
		})
		require.NoError(b, err)
	}
	for i, text := range hostile {
		want := []int64{int64(i + 1)}
		byMessage, err := b.store.ListRevisions(b.Context(), policystore.RevisionQuery{Search: "<" + text + ">"})
		require.NoError(b, err)
		byAuthor, err := b.store.ListRevisions(b.Context(), policystore.RevisionQuery{Author: "by " + text})
		require.NoError(b, err)
		require.Equal(b, want, numbers(byMessage), text)
		require.Equal(b, want, numbers(byAuthor), text)

		rows, err := b.store.Audit(b.Context(), policystore.AuditQuery{Search: "<" + text + ">"})
		require.NoError(b, err)
		require.Len(b, rows, 1, text)
		rows, err = b.store.Audit(b.Context(), policystore.AuditQuery{Author: "by " + text})
		require.NoError(b, err)
		require.Len(b, rows, 1, text)
	}
	none, err := b.store.ListRevisions(b.Context(), policystore.RevisionQuery{Author: "by"})
	require.NoError(b, err)
	require.Empty(b, none)
}

func numbers(rs []policystore.Revision) []int64 {
	var out []int64
	for _, r := range rs {
		out = append(out, r.Number)
	}
	return out
}

func testTime(b *bundle) {
	b.clock.Advance(1234567 * time.Nanosecond)
	first := b.replace(policy("a", 1)).Revision.Time
	require.Equal(b, b.clock.Now().Truncate(time.Microsecond), first)
	require.Equal(b, time.UTC, first.Location())
	b.clock.Advance(-time.Hour)
	require.Equal(b, first, b.replace(policy("a", 2)).Revision.Time)
	b.clock.Advance(2 * time.Hour)
	require.True(b, b.replace(policy("a", 3)).Revision.Time.After(first))
}

// spoil changes everything that a caller could reach through a policy.
func spoil(p *quota.Policy) {
	p.ID = "spoilt"
	p.Limit.Capacity = -1
	for i := range p.Match {
		p.Match[i].Pattern = "spoilt"
	}
	for i := range p.Key {
		p.Key[i] = "spoilt"
	}
	for r := range p.Split.Weights {
		p.Split.Weights[r] = -1
	}
	if p.Split.FloorPercent != nil {
		*p.Split.FloorPercent = -1
	}
}

func testNothingIsShared(b *bundle) {
	in := everyField()
	out := b.replace(in...)
	for _, p := range in {
		spoil(p)
	}
	for _, p := range out.Diff.Added {
		spoil(p)
	}
	out.Revision.Summary.Added[0] = "spoilt"
	b.requireSet(b.current(), everyField()...)

	cur := b.current()
	for _, p := range cur.Policies {
		spoil(p)
	}
	cur.Summary.Added[0] = "spoilt"
	at, err := b.store.At(b.Context(), 1)
	require.NoError(b, err)
	b.requireSet(at, everyField()...)
	require.Equal(b, "bucket", at.Summary.Added[0])
	for _, p := range at.Policies {
		spoil(p)
	}

	changed := b.patch("bob", policy("bucket", 1))
	spoil(changed.Diff.Changed[0].Old)
	spoil(changed.Diff.Changed[0].New)
	at, err = b.store.At(b.Context(), 1)
	require.NoError(b, err)
	b.requireSet(at, everyField()...)
	require.Equal(b, policy("bucket", 1), b.current().Policies[0])

	_, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 1})
	require.NoError(b, err)
	spoil(b.current().Policies[0])
	b.requireSet(b.current(), everyField()...)
}

func testAudit(b *bundle) {
	b.replace(policy("a", 1))
	b.clock.Advance(time.Second)
	require.NoError(b, b.store.SetOverrides(b.Context(), policystore.Edit{Author: "bob"}, []quota.Override{override("a", "k1"), override("a", "k2")}))
	require.NoError(b, b.store.DeleteOverrides(b.Context(), policystore.Edit{Author: "bob"}, []policystore.OverrideID{{Policy: "a", Key: []string{"k1"}}}))
	_, err := b.store.Apply(b.Context(), policystore.Change{Edit: ann, Delete: []string{"a"}, Regions: []quota.Region{"us-east"}})
	require.NoError(b, err)
	_, err = b.store.Rollback(b.Context(), policystore.Rollback{Edit: policystore.Edit{Author: "cy", Message: "undo"}, To: 1})
	require.NoError(b, err)

	start := b.clock.Now().Add(-time.Second)
	require.Equal(b, []policystore.AuditEntry{
		{Number: 5, Time: b.clock.Now(), Author: "cy", Action: policystore.ActionRollback, Message: "undo", Revision: 3, Detail: "added a"},
		{Number: 4, Time: b.clock.Now(), Author: "ann", Action: policystore.ActionApply, Message: "because", Revision: 2, Detail: "removed a; live in us-east only"},
		{Number: 3, Time: b.clock.Now(), Author: "bob", Action: policystore.ActionDeleteOverrides, Revision: 1, Detail: `deleted a["k1"]`},
		{Number: 2, Time: b.clock.Now(), Author: "bob", Action: policystore.ActionSetOverrides, Revision: 1, Detail: `set a["k1"], a["k2"]`},
		{Number: 1, Time: start, Author: "ann", Action: policystore.ActionApply, Message: "because", Revision: 1, Detail: "added a"},
	}, b.auditRows())
}

func testAuditPages(b *bundle) {
	for i := range int64(7) {
		b.patch("ann", policy("a", i+1))
	}
	page, err := b.store.Audit(b.Context(), policystore.AuditQuery{Limit: 3})
	require.NoError(b, err)
	require.Len(b, page, 3)
	page, err = b.store.Audit(b.Context(), policystore.AuditQuery{Before: page[2].Number})
	require.NoError(b, err)
	require.Len(b, page, 4)
	require.EqualValues(b, 4, page[0].Number)
	page, err = b.store.Audit(b.Context(), policystore.AuditQuery{Action: policystore.ActionRollback})
	require.NoError(b, err)
	require.Empty(b, page)
}

// wakeTimeout only bounds a failing test.
const wakeTimeout = 30 * time.Second

func (b *bundle) awaitWake(ch <-chan struct{}, why string) {
	b.Helper()
	select {
	case _, open := <-ch:
		require.True(b, open, why)
	case <-time.After(wakeTimeout):
		b.Fatalf("no wake-up after %s", why)
	}
}

func testWatch(b *bundle) {
	first, second := b.store.Watch(b.Context()), b.store.Watch(b.Context())
	for _, step := range []struct {
		why string
		do  func()
	}{
		{"apply", func() { b.replace(policy("a", 1)) }},
		{"set override", func() {
			require.NoError(b, b.store.SetOverrides(b.Context(), ann, []quota.Override{override("a", "k")}))
		}},
		{"delete override", func() {
			require.NoError(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{{Policy: "a", Key: []string{"k"}}}))
		}},
		{"rollback", func() {
			_, err := b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 0})
			require.NoError(b, err)
		}},
	} {
		step.do()
		b.awaitWake(first, step.why)
		b.awaitWake(second, step.why)
	}
	// A watcher that does not look never blocks a writer.
	for i := range int64(20) {
		b.replace(policy("a", i+1))
	}
	b.awaitWake(first, "many")
}

func testWatchEnds(b *bundle) {
	ctx, cancel := context.WithCancel(b.Context())
	ch := b.store.Watch(ctx)
	cancel()
	deadline := time.After(wakeTimeout)
	for {
		select {
		case _, open := <-ch:
			if !open {
				b.replace(policy("a", 1))
				return
			}
		case <-deadline:
			b.Fatal("the channel is still open after the context ended")
		}
	}
}

func testCancelled(b *bundle) {
	b.replace(policy("a", 1))
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	_, err := b.store.Apply(ctx, policystore.Change{Edit: ann, Replace: true})
	require.ErrorIs(b, err, context.Canceled)
	_, err = b.store.Current(ctx)
	require.ErrorIs(b, err, context.Canceled)
	err = b.store.SetOverrides(ctx, ann, []quota.Override{override("a", "k")})
	require.ErrorIs(b, err, context.Canceled)
	_, err = b.store.ListOverrides(ctx, policystore.OverrideQuery{})
	require.ErrorIs(b, err, context.Canceled)
	b.requireSet(b.current(), policy("a", 1))
}
