package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// override fits the policies of policy.
func override(policy string, key ...string) quota.Override {
	return quota.Override{
		Policy: policy, Key: key,
		Limit: quota.Limit{Capacity: 7 * quota.Token, Refill: 11 * quota.Token, Period: time.Second},
	}
}

func (b *bundle) set(os ...quota.Override) {
	b.Helper()
	require.NoError(b, b.store.SetOverrides(b.Context(), ann, os))
}

func (b *bundle) listOverrides(q policystore.OverrideQuery) []quota.Override {
	b.Helper()
	got, err := b.store.ListOverrides(b.Context(), q)
	require.NoError(b, err)
	return got
}

func (b *bundle) changes(after int64) []policystore.OverrideChange {
	b.Helper()
	got, err := b.store.OverrideChanges(b.Context(), after, 0)
	require.NoError(b, err)
	return got
}

func testOverrides(b *bundle) {
	b.replace(policy("a", 1), policy("b", 1))
	id := policystore.OverrideID{Policy: "a", Key: []string{"k"}}
	_, err := b.store.Override(b.Context(), id)
	require.ErrorIs(b, err, quota.ErrNotFound)

	in := override("a", "k")
	b.set(in)
	in.Key[0] = "spoilt"
	got, err := b.store.Override(b.Context(), id)
	require.NoError(b, err)
	require.Equal(b, override("a", "k"), got)
	got.Key[0] = "spoilt"
	require.Equal(b, []quota.Override{override("a", "k")}, b.listOverrides(policystore.OverrideQuery{}))
	_, err = b.store.Override(b.Context(), policystore.OverrideID{Policy: "b", Key: []string{"k"}})
	require.ErrorIs(b, err, quota.ErrNotFound)

	unlimited := quota.Override{Policy: "a", Key: []string{"k"}, Unlimited: true}
	b.set(unlimited)
	got, err = b.store.Override(b.Context(), id)
	require.NoError(b, err)
	require.Equal(b, unlimited, got)

	require.NoError(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{id}))
	_, err = b.store.Override(b.Context(), id)
	require.ErrorIs(b, err, quota.ErrNotFound)
	require.ErrorIs(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{id}), quota.ErrNotFound)
	require.EqualValues(b, 1, b.position().Revision, "an override makes no revision")

	b.set(override("a", "k"))
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), 1)
}

func testOverrideExpiry(b *bundle) {
	b.replace(policy("a", 1))
	o := override("a", "k")
	o.Expires = b.clock.Now().Add(time.Minute).In(time.FixedZone("x", 3600))
	b.set(o, override("a", "stays"))
	id := policystore.IDOf(o)

	b.clock.Advance(time.Minute - time.Microsecond)
	got, err := b.store.Override(b.Context(), id)
	require.NoError(b, err)
	require.Equal(b, o.Expires.UTC(), got.Expires)
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), 2)

	b.clock.Advance(time.Microsecond)
	_, err = b.store.Override(b.Context(), id)
	require.ErrorIs(b, err, quota.ErrNotFound)
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), 1)
	require.ErrorIs(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{id}), quota.ErrNotFound)

	o.Expires = time.Time{}
	b.set(o)
	b.clock.Advance(1000 * time.Hour)
	_, err = b.store.Override(b.Context(), id)
	require.NoError(b, err)
}

func testOverrideRefusals(b *bundle) {
	log := &quota.Policy{ID: "log", Key: []string{"ip"}, Algorithm: quota.SlidingLog, Limit: quota.Limit{Capacity: quota.Token, Period: time.Minute}}
	three := policy("three", 1)
	three.Key = []string{"x", "y", "z"}
	long := strings.Repeat("x", quota.MaxAttributeValue)
	whole := policy("whole", 1)
	whole.Key = nil
	free := &quota.Policy{ID: "free", Key: []string{"ip"}, Unlimited: true}
	b.replace(policy("a", 1), log, whole, free, three)
	limited := func(policy string, l quota.Limit) quota.Override {
		return quota.Override{Policy: policy, Key: []string{"k"}, Limit: l}
	}
	expired := override("a", "k")
	expired.Expires = b.clock.Now()
	both := override("a", "k")
	both.Unlimited = true
	for name, o := range map[string]quota.Override{
		"too few values":    override("a"),
		"too many values":   override("a", "k", "l"),
		"policy has no key": override("whole"),
		"unlimited policy":  override("free", "k"),
		"long value":        override("a", strings.Repeat("x", quota.MaxAttributeValue+1)),
		"long key":          override("three", long, long, long),
		"expired":           expired,
		"both":              both,
		"negative":          limited("a", quota.Limit{Capacity: -1, Refill: 1, Period: time.Second}),
		"huge":              limited("a", quota.Limit{Capacity: quota.MaxTokens + 1, Refill: 1, Period: time.Second}),
		"no period":         limited("a", quota.Limit{Capacity: quota.Token, Refill: 1}),
		"fine period":       limited("a", quota.Limit{Capacity: quota.Token, Refill: 1, Period: time.Nanosecond}),
		"no refill":         limited("a", quota.Limit{Capacity: quota.Token, Period: time.Second}),
		"other window":      limited("log", quota.Limit{Capacity: quota.Token, Period: time.Second}),
		"refill of a log":   limited("log", quota.Limit{Capacity: quota.Token, Refill: 1, Period: time.Minute}),
	} {
		require.ErrorIs(b, b.store.SetOverrides(b.Context(), ann, []quota.Override{o}), quota.ErrInvalid, name)
	}
	require.ErrorIs(b, b.store.SetOverrides(b.Context(), ann, []quota.Override{override("none", "k")}), quota.ErrNotFound)
	require.ErrorIs(b, b.store.SetOverrides(b.Context(), ann, nil), quota.ErrInvalid)
	require.ErrorIs(b, b.store.DeleteOverrides(b.Context(), ann, nil), quota.ErrInvalid)
	require.ErrorIs(b, b.store.SetOverrides(b.Context(), policystore.Edit{}, []quota.Override{override("a", "k")}), quota.ErrInvalid)
	require.Len(b, b.auditRows(), 1)
	b.set(limited("log", quota.Limit{Capacity: 5 * quota.Token, Period: time.Minute}), limited("a", quota.Limit{Period: time.Second}))
}

func testOverrideBatches(b *bundle) {
	b.replace(policy("a", 1))
	bad := override("a", "k2")
	bad.Limit.Refill = -1
	require.ErrorIs(b, b.store.SetOverrides(b.Context(), ann, []quota.Override{override("a", "k1"), bad}), quota.ErrInvalid)
	require.ErrorIs(b, b.store.SetOverrides(b.Context(), ann, []quota.Override{override("a", "k1"), override("a", "k1")}), quota.ErrInvalid)
	require.Empty(b, b.listOverrides(policystore.OverrideQuery{}))

	b.set(override("a", "k1"), override("a", "k2"))
	id := func(k string) policystore.OverrideID { return policystore.OverrideID{Policy: "a", Key: []string{k}} }
	require.ErrorIs(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{id("k1"), id("k3")}), quota.ErrNotFound)
	require.ErrorIs(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{id("k1"), id("k1")}), quota.ErrInvalid)
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), 2)
	require.NoError(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{id("k1"), id("k2")}))
	require.Empty(b, b.listOverrides(policystore.OverrideQuery{}))
	require.Len(b, b.auditRows(), 3)
}

func testOverrideKeys(b *bundle) {
	two := policy("two", 1)
	two.Key = []string{"x", "y"}
	b.replace(policy("a", 1), two)
	bytes := append(slices.Clone(hostile), "", "\x00", "a\x00", "\xff\xfe", strings.Repeat("k", quota.MaxAttributeValue))
	var all []quota.Override
	for i, k := range bytes {
		o := override("a", k)
		o.Limit.Capacity = quota.Tokens(i) * quota.Token
		all = append(all, o)
	}
	// Where one value ends and the next begins is part of the key.
	half := strings.Repeat("k", policystore.MaxOverrideKey/2)
	for i, k := range [][]string{{half, half}, {"a", "b_c"}, {"a_b", "c"}, {"a:b", "c"}, {"a", "b:c"}, {"", "ab"}, {"ab", ""}, {"a\x00", "b"}, {"a", "\x00b"}, {"{a", "b}"}, {"a,b", "c"}, {"a", "b,c"}} {
		o := override("two", k...)
		o.Limit.Capacity = quota.Tokens(1000+i) * quota.Token
		all = append(all, o)
	}
	b.set(all...)
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), len(all))
	for _, o := range all {
		got, err := b.store.Override(b.Context(), policystore.IDOf(o))
		require.NoError(b, err)
		require.Equal(b, o, got)
	}
	for _, text := range []string{"%", "_", `\`, "'", "\x00", "\xff"} {
		var want []quota.Override
		for _, o := range all {
			if slices.ContainsFunc(o.Key, func(k string) bool { return strings.Contains(k, text) }) {
				want = append(want, o)
			}
		}
		require.ElementsMatch(b, want, b.listOverrides(policystore.OverrideQuery{Search: text}), "%q", text)
	}
	require.Empty(b, b.listOverrides(policystore.OverrideQuery{Policy: "%"}))
	require.Len(b, b.listOverrides(policystore.OverrideQuery{Policy: "a"}), len(bytes))
}

func testOverridePages(b *bundle) {
	b.replace(policy("a", 1), policy("b", 1), policy("B", 1))
	var want []quota.Override
	for _, p := range []string{"b", "a", "B"} {
		for i := range 9 {
			want = append(want, override(p, fmt.Sprintf("K%d", i)), override(p, fmt.Sprintf("k%d", i)))
		}
	}
	b.set(want...)
	slices.SortFunc(want, func(x, y quota.Override) int { return policystore.IDOf(x).Compare(policystore.IDOf(y)) })
	var got []quota.Override
	q := policystore.OverrideQuery{Limit: 10}
	for {
		page := b.listOverrides(q)
		got = append(got, page...)
		if len(page) < q.Limit {
			break
		}
		q.After = new(policystore.IDOf(page[len(page)-1]))
	}
	require.Equal(b, want, got)
	page := b.listOverrides(policystore.OverrideQuery{Policy: "b", Limit: 5, After: &policystore.OverrideID{Policy: "b", Key: []string{"k6"}}})
	require.Len(b, page, 2)
	require.Len(b, b.listOverrides(policystore.OverrideQuery{Search: "k3"}), 3)
}

func testOverridesOutlive(b *bundle) {
	b.replace(policy("a", 1), policy("b", 1))
	b.set(override("a", "k"))
	b.replace(policy("b", 1))
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), 1)
	require.ErrorIs(b, b.store.SetOverrides(b.Context(), ann, []quota.Override{override("a", "l")}), quota.ErrNotFound)
	_, err := b.store.Rollback(b.Context(), policystore.Rollback{Edit: ann, To: 1})
	require.NoError(b, err)
	got, err := b.store.Override(b.Context(), policystore.OverrideID{Policy: "a", Key: []string{"k"}})
	require.NoError(b, err)
	require.Equal(b, override("a", "k"), got)
}

func testOverrideChanges(b *bundle) {
	b.replace(policy("a", 1))
	require.Empty(b, b.changes(0))
	b.set(override("a", "k1"), override("a", "k2"), override("a", "k3"))
	start := b.position().Overrides
	require.Len(b, b.changes(0), 3)
	require.Empty(b, b.changes(start))

	changed := override("a", "k2")
	changed.Limit.Capacity = quota.Token
	b.set(changed)
	b.set(override("a", "k4"))
	require.NoError(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{{Policy: "a", Key: []string{"k1"}}}))
	changed.Limit.Capacity = 2 * quota.Token
	b.set(changed)

	got := b.changes(start)
	require.Len(b, got, 3, "only the last change of a key")
	require.Equal(b, override("a", "k4"), *got[0].Override)
	require.Equal(b, policystore.OverrideID{Policy: "a", Key: []string{"k1"}}, got[1].ID)
	require.Nil(b, got[1].Override)
	require.Equal(b, changed, *got[2].Override)
	require.Equal(b, b.position().Overrides, got[2].Position)

	// Pages give the same, and a caller that follows them has the whole table.
	var paged []policystore.OverrideChange
	for after := int64(0); ; {
		page, err := b.store.OverrideChanges(b.Context(), after, 1)
		require.NoError(b, err)
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
		after = page[0].Position
	}
	require.Equal(b, b.changes(0), paged)

	_, err := b.store.OverrideChanges(b.Context(), b.position().Overrides+1, 0)
	require.ErrorIs(b, err, policystore.ErrCompacted, "a position of another store")
}

func testOverrideCompaction(b *bundle) {
	b.replace(policy("a", 1))
	expiring := override("a", "k1")
	expiring.Expires = b.clock.Now().Add(time.Second)
	b.set(expiring, override("a", "k2"), override("a", "k3"))
	start := b.position().Overrides
	require.NoError(b, b.store.DeleteOverrides(b.Context(), ann, []policystore.OverrideID{{Policy: "a", Key: []string{"k2"}}}))

	b.clock.Advance(policystore.OverrideRetention - time.Second)
	b.set(override("a", "k4"))
	require.Len(b, b.changes(start), 2, "still remembered")
	late := b.position().Overrides

	b.clock.Advance(time.Minute)
	b.set(override("a", "k5"))
	_, err := b.store.OverrideChanges(b.Context(), start, 0)
	require.ErrorIs(b, err, policystore.ErrCompacted)
	require.Len(b, b.changes(late), 1, "who kept up is not troubled")
	require.Len(b, b.listOverrides(policystore.OverrideQuery{}), 3)
}
