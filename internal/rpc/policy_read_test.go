package rpc_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

func TestReading(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1, "b": 2, "c": 3})
	b.put(t, ann, map[string]int{"a": 1, "b": 9, "c": 3, "d": 4})

	p, err := b.Get(t.Context(), "b", nil)
	require.NoError(t, err)
	assert.EqualValues(t, 2, p.Revision)
	assert.Equal(t, b.current(t).Policy("b"), p.Policy)
	parsed, err := document.Policies([]byte(p.Document))
	require.NoError(t, err)
	assert.Equal(t, []*quota.Policy{p.Policy}, parsed)
	old, err := b.Get(t.Context(), "b", new(int64(1)))
	require.NoError(t, err)
	assert.Equal(t, 2*quota.Token, old.Policy.Limit.Capacity)
	for _, id := range []string{"nobody", "d"} {
		_, err = b.Get(t.Context(), id, new(int64(1)))
		require.ErrorIs(t, err, quota.ErrNotFound)
	}
	_, err = b.Get(t.Context(), "", nil)
	require.ErrorIs(t, err, quota.ErrInvalid)

	whole, err := b.GetRevision(t.Context(), nil)
	require.NoError(t, err)
	parsed, err = document.Policies([]byte(whole.Document))
	require.NoError(t, err)
	assert.Equal(t, b.current(t).Policies, parsed)
	empty, err := b.GetRevision(t.Context(), new(int64(0)))
	require.NoError(t, err)
	assert.Equal(t, "policies: []\n", empty.Document)
	_, err = b.GetRevision(t.Context(), new(int64(3)))
	require.ErrorIs(t, err, quota.ErrNotFound)
	status, _ := b.post(t, "/weir.v1.PolicyService/GetRevision", `{"number":"1","region":"us-east"}`)
	assert.Equal(t, 400, status)

	d, err := b.Diff(t.Context(), 1, nil)
	require.NoError(t, err)
	assert.Equal(t, policystore.Summary{Added: []string{"d"}, Changed: []string{"b"}}, d.Diff.Summary())
	assert.EqualValues(t, 2, d.To.Number)
	back, err := b.Diff(t.Context(), 2, new(int64(1)))
	require.NoError(t, err)
	assert.Equal(t, []string{"d"}, back.Diff.Summary().Removed)
	_, err = b.Diff(t.Context(), 7, nil)
	require.ErrorIs(t, err, quota.ErrNotFound)

	me, err := b.WhoAmI(t.Context())
	require.NoError(t, err)
	assert.False(t, me.Authenticated)
	_, body := b.post(t, "/weir.v1.PolicyService/WhoAmI", `{}`)
	assert.Equal(t, `{"authenticated":false}`, body)
}

// all reads every page of a list.
func all[T any](t *testing.T, q rpc.Query, list func(rpc.Query) (*rpc.Page[T], error)) []T {
	t.Helper()
	var out []T
	for range 1000 {
		page, err := list(q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Items), q.Size)
		out = append(out, page.Items...)
		if page.Next == "" {
			return out
		}
		q.Page = page.Next
	}
	t.Fatal("the pages do not end")
	return nil
}

func TestPaging(t *testing.T) {
	b := servePolicies(t)
	set := make(map[string]int)
	for i := range 25 {
		set[fmt.Sprintf("p%02d", i)] = 1
		b.put(t, rpc.Edit{Author: fmt.Sprint("author-", i%2), Message: fmt.Sprint("message ", i)}, set)
	}
	overrides := make([]quota.Override, 25)
	for i := range overrides {
		overrides[i] = override("p00", i+1, fmt.Sprintf("k%02d", i))
	}
	require.NoError(t, b.SetOverrides(t.Context(), ann, overrides...))

	for _, size := range []int{1, 5, 7, 25, 26} {
		policies := all(t, rpc.Query{Size: size}, func(q rpc.Query) (*rpc.Page[*quota.Policy], error) { return b.List(t.Context(), q) })
		assert.Equal(t, set, numbers(policies))
		revisions := all(t, rpc.Query{Size: size}, func(q rpc.Query) (*rpc.Page[rpc.Revision], error) { return b.ListRevisions(t.Context(), q) })
		require.Len(t, revisions, 25)
		assert.EqualValues(t, 25, revisions[0].Number)
		assert.EqualValues(t, 1, revisions[24].Number)
		rows := all(t, rpc.Query{Size: size}, func(q rpc.Query) (*rpc.Page[policystore.AuditEntry], error) { return b.ListAudit(t.Context(), q) })
		require.Len(t, rows, 26)
		assert.Equal(t, policystore.ActionSetOverrides, rows[0].Action)
		got := all(t, rpc.Query{Size: size}, func(q rpc.Query) (*rpc.Page[quota.Override], error) { return b.ListOverrides(t.Context(), q) })
		assert.Equal(t, overrides, got)
	}
	byAuthor, err := b.ListRevisions(t.Context(), rpc.Query{Author: "author-1"})
	require.NoError(t, err)
	assert.Len(t, byAuthor.Items, 12)
	applies, err := b.ListAudit(t.Context(), rpc.Query{Action: "apply", Search: "message 24"})
	require.NoError(t, err)
	assert.Len(t, applies.Items, 1)

	page, err := b.List(t.Context(), rpc.Query{Size: 20})
	require.NoError(t, err)
	b.put(t, ann, map[string]int{"zz": 1})
	rest, err := b.List(t.Context(), rpc.Query{Size: 20, Page: page.Next})
	require.NoError(t, err)
	assert.Len(t, rest.Items, 5, "later pages stay on the revision of the first")

	for _, token := range []string{"x", "-1", "1/", "%", strings.Repeat("A", 9<<10), "AAAA"} {
		for name, list := range map[string]func(rpc.Query) error{
			"policies":  func(q rpc.Query) error { _, err := b.List(t.Context(), q); return err },
			"revisions": func(q rpc.Query) error { _, err := b.ListRevisions(t.Context(), q); return err },
			"audit":     func(q rpc.Query) error { _, err := b.ListAudit(t.Context(), q); return err },
			"overrides": func(q rpc.Query) error { _, err := b.ListOverrides(t.Context(), q); return err },
		} {
			require.ErrorIs(t, list(rpc.Query{Page: token}), quota.ErrInvalid, "%s %.20s", name, token)
			require.ErrorIs(t, list(rpc.Query{Size: -1}), quota.ErrInvalid, name)
		}
	}
}

// Wildcards and quotes of SQL and of patterns stand for themselves in every field.
func TestSearchIsLiteral(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a_b": 1, "a.b": 1, "axb": 1})
	specials := []string{"%", "_", "'", `\`, "';--", `"`, "*", ".*", "[a]"}
	for i, s := range specials {
		b.put(t, rpc.Edit{Author: "by " + s, Message: "say " + s + " here"}, map[string]int{"a_b": i + 2, "a.b": 1, "axb": 1})
		require.NoError(t, b.SetOverrides(t.Context(), ann, override("a_b", 1, "k"+s+"y")))
	}
	b.put(t, rpc.Edit{Author: "plain", Message: "nothing of that"}, map[string]int{"a_b": 1, "a.b": 1, "axb": 1})
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("a_b", 1, "kxy")))
	count := func(s string, texts ...string) (n int) {
		for _, text := range texts {
			if strings.Contains(text, s) {
				n++
			}
		}
		return n
	}
	for _, s := range specials {
		var messages, keys []string
		for _, x := range specials {
			messages, keys = append(messages, "say "+x+" here"), append(keys, "k"+x+"y")
		}
		revisions, err := b.ListRevisions(t.Context(), rpc.Query{Search: s})
		require.NoError(t, err)
		assert.Len(t, revisions.Items, count(s, messages...), s)
		authors, err := b.ListRevisions(t.Context(), rpc.Query{Author: "by " + s})
		require.NoError(t, err)
		assert.Len(t, authors.Items, 1, s)
		overrides, err := b.ListOverrides(t.Context(), rpc.Query{Search: s})
		require.NoError(t, err)
		assert.Len(t, overrides.Items, count(s, keys...), s)
		rows, err := b.ListAudit(t.Context(), rpc.Query{Search: "say " + s + " here"})
		require.NoError(t, err)
		assert.Len(t, rows.Items, 1, s)
	}
	policies, err := b.List(t.Context(), rpc.Query{Search: "a_b"})
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"a_b": 1}, numbers(policies.Items))
	_, err = b.ListRevisions(t.Context(), rpc.Query{Search: "\x00"})
	require.ErrorIs(t, err, quota.ErrInvalid)
	_, err = b.ListOverrides(t.Context(), rpc.Query{Search: strings.Repeat("x", 257)})
	require.ErrorIs(t, err, quota.ErrInvalid)
	_, err = b.ListOverrides(t.Context(), rpc.Query{Policy: "%"})
	require.ErrorIs(t, err, quota.ErrInvalid)
}
