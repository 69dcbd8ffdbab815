package rpc_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

// FuzzApply: whatever is applied as a document is refused for its own sake or
// committed as it reads; nodes can compile what is in force, it reads back from
// its document, and nothing is an internal error.
func FuzzApply(f *testing.F) {
	f.Add(string(doc(map[string]int{"a": 1})), "", "why", false, int64(0), "")
	f.Add(`{"policies":[]}`, "a", "", true, int64(1), "us-east")
	f.Add("policies:\n  - {id: a, key: [apiKey, route], algorithm: token-bucket, capacity: 0, refill: 1/1s, onStoreFailure: open}\n", "", "", true, int64(-1), "")
	f.Add("policies:\n  - {id: log, algorithm: sliding-log, limit: 1, window: 1s, onStoreFailure: closed, shadow: true}\n", "base", "\x00", true, int64(2), "x y")
	f.Add("policies: &a [*a]", "%_'\\", "\xff", false, int64(1)<<62, "")
	store := &fresh{}
	b := servePolicies(f, func(c *rpc.ServerConfig) { c.Policies.Store = store })
	start, err := document.Policies(doc(map[string]int{"base": 1}))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text, remove, message string, patch bool, expect int64, region string) {
		store.Store = memory.New(nil)
		b.store = store.Store
		_, err := b.store.Apply(context.Background(), policystore.Change{Edit: policystore.Edit{Author: "fuzz"}, Replace: true, Policies: start})
		require.NoError(t, err)
		require.NoError(t, b.store.SetOverrides(context.Background(), policystore.Edit{Author: "fuzz"}, []quota.Override{override("base", 1, "k")}))
		request := map[string]any{"document": text, "message": message, "patch": patch, "author": "fuzz"}
		if remove != "" {
			request["delete"] = []string{remove}
		}
		if region != "" {
			request["regions"] = []string{region}
		}
		if expect != 0 {
			request["expectedRevision"] = expect
		}
		body, err := json.Marshal(request)
		require.NoError(t, err)
		r, err := b.do(http.MethodPost, apply, string(body))
		require.NoError(t, err)
		switch r.status {
		case 200, 400, 404, 409:
		default:
			t.Fatalf("%d %s", r.status, r.body)
		}
		now := b.current(t)
		page, err := b.store.ListOverrides(context.Background(), policystore.OverrideQuery{})
		require.NoError(t, err)
		table, err := quota.NewOverrides(page, nil)
		require.NoError(t, err)
		_, err = quota.Compile(now.Number, now.Policies, table)
		require.NoError(t, err, "a node would refuse what is in force")
		back, err := document.Policies(document.Marshal(now.Policies))
		require.NoError(t, err)
		require.True(t, policystore.Compare(now.Policies, back).Empty())
	})
}

// fresh is a store that is new for each input; the server stays.
type fresh struct{ *memory.Store }
