package rpc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func TestOverrides(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1, "b": 1})
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	one := override("a", 7, "ak_1")
	one.Expires = expires
	require.NoError(t, b.SetOverrides(t.Context(), ann, one))
	got, err := b.GetOverride(t.Context(), "a", "ak_1")
	require.NoError(t, err)
	assert.Equal(t, one, got.Override)
	unlimited := quota.Override{Policy: "b", Key: []string{"ак_∞"}, Unlimited: true}
	require.NoError(t, b.SetOverrides(t.Context(), ann, unlimited, override("a", 9, "ak_2")))
	page, err := b.ListOverrides(t.Context(), rpc.Query{})
	require.NoError(t, err)
	assert.Equal(t, []quota.Override{one, override("a", 9, "ak_2"), unlimited}, page.Items)
	page, err = b.ListOverrides(t.Context(), rpc.Query{Policy: "b"})
	require.NoError(t, err)
	assert.Equal(t, []quota.Override{unlimited}, page.Items)

	require.NoError(t, b.DeleteOverrides(t.Context(), ann, policystore.IDOf(one)))
	_, err = b.GetOverride(t.Context(), "a", "ak_1")
	require.ErrorIs(t, err, quota.ErrNotFound)
	gone := []policystore.OverrideID{policystore.IDOf(unlimited), policystore.IDOf(one)}
	require.ErrorIs(t, b.DeleteOverrides(t.Context(), ann, gone...), quota.ErrNotFound, "all or none")
	require.NoError(t, b.DeleteOverrides(t.Context(), ann, gone[0], policystore.IDOf(override("a", 1, "ak_2"))))

	rows, err := b.ListAudit(t.Context(), rpc.Query{Author: "ann", Action: "set-overrides"})
	require.NoError(t, err)
	require.Len(t, rows.Items, 2)
	assert.Equal(t, `set a["ak_1"]`, rows.Items[1].Detail)
	assert.Equal(t, "because", rows.Items[1].Message)
}

func TestOverrideRefusals(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	expired := override("a", 1, "k")
	expired.Expires = time.Now().Add(-time.Second)
	for name, o := range map[string]quota.Override{
		"no policy":       override("", 1, "k"),
		"no key":          override("a", 1),
		"too many values": override("a", 1, "k", "l"),
		"negative":        override("a", -1, "k"),
		"expired":         expired,
		"no numbers":      {Policy: "a", Key: []string{"k"}},
	} {
		require.ErrorIs(t, b.SetOverrides(t.Context(), ann, o), quota.ErrInvalid, name)
		require.ErrorIs(t, b.SetOverrides(t.Context(), ann, override("a", 1, "fine"), o), quota.ErrInvalid, name)
	}
	require.ErrorIs(t, b.SetOverrides(t.Context(), ann, override("nobody", 1, "k")), quota.ErrNotFound)
	require.ErrorIs(t, b.SetOverrides(t.Context(), ann), quota.ErrInvalid)
	require.ErrorIs(t, b.DeleteOverrides(t.Context(), ann), quota.ErrInvalid)
	for _, body := range []string{
		`{}`, `{"override":{}}`,
		`{"override":{"id":{"policy":"a","key":["k"]},"limit":{"period":"9999999999999s"}}}`,
		`{"override":{"id":{"policy":"a","key":["k"]},"unlimited":true,"expires":"2030-01-01T00:00:00Z"}}`,
	} {
		status, _ := b.post(t, "/weir.v1.PolicyService/SetOverride", body)
		assert.Equal(t, 400, status, body)
	}
	page, err := b.ListOverrides(t.Context(), rpc.Query{})
	require.NoError(t, err)
	assert.Empty(t, page.Items)
}

// What a node could not compile is not committed: neither a policy that its
// overrides do not fit, nor an override that a revision in force elsewhere does not fit.
func TestNothingIsCommittedThatNodesWouldRefuse(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1, "b": 1})
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("a", 7, "ak_1")))
	twoParts := []byte("policies:\n  - {id: a, key: [apiKey, route], algorithm: token-bucket, capacity: 1, refill: 1/1s, onStoreFailure: open}\n")
	for _, dryRun := range []bool{true, false} {
		_, err := b.Apply(t.Context(), rpc.Change{Document: twoParts, Patch: true, DryRun: dryRun})
		require.ErrorIs(t, err, quota.ErrInvalid)
		assert.ErrorContains(t, err, `override a["ak_1"] does not fit the changed policy, delete or change it first`)
	}
	assert.EqualValues(t, 1, b.current(t).Number)

	_, err := b.Delete(t.Context(), rpc.Change{Delete: []string{"a"}})
	require.NoError(t, err, "an override outlives its policy")
	_, err = b.Apply(t.Context(), rpc.Change{Document: twoParts, Patch: true})
	require.ErrorIs(t, err, quota.ErrInvalid, "and holds for the next of that name")
	_, err = b.Rollback(t.Context(), rpc.Rollback{To: 1})
	require.NoError(t, err)
	require.NoError(t, b.DeleteOverrides(t.Context(), ann, policystore.OverrideID{Policy: "a", Key: []string{"ak_1"}}))

	_, err = b.Apply(t.Context(), rpc.Change{Document: twoParts, Patch: true, Regions: []quota.Region{"us-east"}})
	require.NoError(t, err)
	err = b.SetOverrides(t.Context(), ann, override("a", 1, "ak_1", "/x"))
	require.ErrorIs(t, err, quota.ErrInvalid)
	assert.ErrorContains(t, err, "must also fit revision 3, which is in force in other regions")
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("b", 1, "ak_1")))

	// Rollouts to one region after the other: all three sets are in force somewhere.
	_, err = b.Apply(t.Context(), rpc.Change{Document: doc(map[string]int{"a": 1, "b": 1}), Regions: []quota.Region{"eu-west"}})
	require.NoError(t, err)
	require.ErrorIs(t, b.SetOverrides(t.Context(), ann, override("a", 1, "ak_1")), quota.ErrInvalid)
	_, err = b.Rollback(t.Context(), rpc.Rollback{To: 5})
	require.NoError(t, err)
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("a", 1, "ak_1")))
}
