package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// TokenStore is a store that also keeps tokens.
type TokenStore interface {
	policystore.Store
	policystore.Tokens
}

// RunTokens runs the suite of those who keep tokens, each test on a store of its own.
func RunTokens(t *testing.T, newStore func(t *testing.T, now func() time.Time) TokenStore) {
	for name, run := range map[string]func(*bundle, policystore.Tokens){
		"AddFindRevoke": testTokenLife,
		"Expiry":        testTokenExpiry,
		"Refusals":      testTokenRefusals,
		"Pages":         testTokenPages,
		"Record":        testRecord,
	} {
		t.Run(name, func(t *testing.T) {
			clock := &clock{now: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}
			store := newStore(t, clock.Now)
			run(&bundle{T: t, clock: clock, store: store}, store)
		})
	}
}

func testTokenLife(b *bundle, tokens policystore.Tokens) {
	hash := policystore.HashToken("s3cret")
	want := policystore.Token{ID: "ci", Role: policystore.RoleEditor, Author: "ann", Created: b.clock.Now()}
	_, err := tokens.FindToken(b.Context(), hash)
	require.ErrorIs(b, err, quota.ErrNotFound)
	require.NoError(b, tokens.AddToken(b.Context(), ann, policystore.Token{ID: "ci", Role: policystore.RoleEditor}, hash))
	got, err := tokens.FindToken(b.Context(), hash)
	require.NoError(b, err)
	require.Equal(b, want, got)
	_, err = tokens.FindToken(b.Context(), policystore.HashToken("s3cret "))
	require.ErrorIs(b, err, quota.ErrNotFound)

	again := policystore.Token{ID: "other", Role: policystore.RoleViewer}
	require.ErrorIs(b, tokens.AddToken(b.Context(), ann, again, hash), quota.ErrConflict)
	again.ID = "ci"
	require.ErrorIs(b, tokens.AddToken(b.Context(), ann, again, policystore.HashToken("x")), quota.ErrConflict)

	b.clock.Advance(time.Minute)
	require.NoError(b, tokens.RevokeToken(b.Context(), policystore.Edit{Author: "bob"}, "ci"))
	_, err = tokens.FindToken(b.Context(), hash)
	require.ErrorIs(b, err, quota.ErrNotFound)
	require.ErrorIs(b, tokens.RevokeToken(b.Context(), ann, "ci"), quota.ErrNotFound)
	require.ErrorIs(b, tokens.RevokeToken(b.Context(), ann, "nobody"), quota.ErrNotFound)
	require.ErrorIs(b, tokens.AddToken(b.Context(), ann, policystore.Token{ID: "new", Role: policystore.RoleViewer}, hash), quota.ErrConflict,
		"a revoked secret does not come back")
	list, err := tokens.ListTokens(b.Context(), "", 0)
	require.NoError(b, err)
	want.Revoked = b.clock.Now()
	require.Equal(b, []policystore.Token{want}, list)

	rows := b.auditRows()
	require.Len(b, rows, 2)
	require.Equal(b, policystore.AuditEntry{
		Number: 2, Time: b.clock.Now(), Author: "bob", Action: policystore.ActionRevokeToken, Detail: "revoked token ci of role editor",
	}, rows[0])
	require.Equal(b, "added token ci of role editor", rows[1].Detail)
	require.NotContains(b, fmt.Sprint(rows), "s3cret")
}

func testTokenExpiry(b *bundle, tokens policystore.Tokens) {
	hash := policystore.HashToken("x")
	t := policystore.Token{ID: "node", Role: policystore.RoleRegion, Region: "us-east", Expires: b.clock.Now().Add(time.Hour)}
	require.NoError(b, tokens.AddToken(b.Context(), ann, t, hash))
	b.clock.Advance(time.Hour - time.Microsecond)
	got, err := tokens.FindToken(b.Context(), hash)
	require.NoError(b, err)
	require.Equal(b, t.Expires, got.Expires)
	require.Equal(b, quota.Region("us-east"), got.Region)
	b.clock.Advance(time.Microsecond)
	_, err = tokens.FindToken(b.Context(), hash)
	require.ErrorIs(b, err, quota.ErrNotFound)
}

func testTokenRefusals(b *bundle, tokens policystore.Tokens) {
	for name, t := range map[string]policystore.Token{
		"no id":             {Role: policystore.RoleViewer},
		"odd id":            {ID: "a b", Role: policystore.RoleViewer},
		"long id":           {ID: strings.Repeat("a", quota.MaxPolicyID+1), Role: policystore.RoleViewer},
		"no role":           {ID: "a"},
		"unknown role":      {ID: "a", Role: "root"},
		"region without":    {ID: "a", Role: policystore.RoleRegion},
		"viewer of a place": {ID: "a", Role: policystore.RoleViewer, Region: "us-east"},
		"expired":           {ID: "a", Role: policystore.RoleViewer, Expires: b.clock.Now()},
	} {
		require.ErrorIs(b, tokens.AddToken(b.Context(), ann, t, policystore.HashToken("x")), quota.ErrInvalid, name)
	}
	good := policystore.Token{ID: "a", Role: policystore.RoleViewer}
	require.ErrorIs(b, tokens.AddToken(b.Context(), policystore.Edit{}, good, policystore.HashToken("x")), quota.ErrInvalid)
	require.ErrorIs(b, tokens.RevokeToken(b.Context(), policystore.Edit{}, "a"), quota.ErrInvalid)
	require.Empty(b, b.auditRows())
}

func testTokenPages(b *bundle, tokens policystore.Tokens) {
	want := []string{"A", "B", "a", "a-1", "b"}
	for _, id := range []string{"b", "a", "B", "a-1", "A"} {
		require.NoError(b, tokens.AddToken(b.Context(), ann, policystore.Token{ID: id, Role: policystore.RoleAdmin}, policystore.HashToken(id)))
	}
	var got []string
	for after := ""; ; {
		page, err := tokens.ListTokens(b.Context(), after, 2)
		require.NoError(b, err)
		if len(page) == 0 {
			break
		}
		for _, t := range page {
			got = append(got, t.ID)
		}
		after = page[len(page)-1].ID
	}
	require.Equal(b, want, got)
}

// What is done elsewhere is recorded like a change, and changes nothing.
func testRecord(b *bundle, tokens policystore.Tokens) {
	recorder, ok := tokens.(policystore.Recorder)
	require.True(b, ok)
	b.replace(policy("a", 1))
	before := b.position()
	b.clock.Advance(time.Second)
	by := policystore.Edit{Author: "ops", Message: "fail-over"}
	require.NoError(b, recorder.Record(b.Context(), by, policystore.ActionDistrustLedger, "commits may be lost"))
	require.Equal(b, before, b.position())
	require.Equal(b, policystore.AuditEntry{
		Number: 2, Time: b.clock.Now(), Author: "ops", Action: policystore.ActionDistrustLedger, Message: "fail-over",
		Revision: 1, Detail: "commits may be lost",
	}, b.auditRows()[0])
	require.ErrorIs(b, recorder.Record(b.Context(), policystore.Edit{Author: "\x00"}, policystore.ActionTrustLedger, ""), quota.ErrInvalid)
	require.Len(b, b.auditRows(), 2)
}
