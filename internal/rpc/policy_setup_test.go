package rpc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

// policyBundle is a server of PolicyService over a store in memory, and a client.
type policyBundle struct {
	*testServer
	store *memory.Store
	*rpc.PolicyClient
}

// servePolicies starts one without authentication.
func servePolicies(tb testing.TB, change ...func(*rpc.ServerConfig)) *policyBundle {
	tb.Helper()
	b := &policyBundle{store: memory.New(nil)}
	b.testServer = serve(tb, nil, append([]func(*rpc.ServerConfig){func(c *rpc.ServerConfig) {
		c.Policies = &rpc.PolicyConfig{
			Store: b.store, Parse: document.Policies, Marshal: document.Marshal,
			Instance: "test", Heartbeat: 20 * time.Millisecond,
		}
	}}, change...)...)
	b.PolicyClient = b.policyClient(tb, "")
	return b
}

func (s *testServer) policyClient(tb testing.TB, token rpc.Secret) *rpc.PolicyClient {
	tb.Helper()
	c, err := rpc.NewPolicyClient(rpc.ClientConfig{URL: s.url, Token: token, Timeout: 20 * time.Second})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c
}

// doc is a document of policies that count by apiKey; bursts[i] tells versions apart.
func doc(policies map[string]int) []byte {
	var b strings.Builder
	b.WriteString("policies:\n")
	for id, burst := range policies {
		fmt.Fprintf(&b, "  - {id: %q, match: {plan: free}, key: [apiKey], algorithm: token-bucket, capacity: %d, refill: 100/1m, onStoreFailure: local}\n", id, burst)
	}
	return []byte(b.String())
}

var ann = rpc.Edit{Author: "ann", Message: "because"}

// put commits a whole set.
func (b *policyBundle) put(tb testing.TB, by rpc.Edit, policies map[string]int) *rpc.Applied {
	tb.Helper()
	out, err := b.Apply(context.Background(), rpc.Change{Edit: by, Document: doc(policies)})
	require.NoError(tb, err)
	return out
}

// numbers are the bursts of a set.
func numbers(policies []*quota.Policy) map[string]int {
	out := make(map[string]int)
	for _, p := range policies {
		out[p.ID] = int(p.Limit.Capacity.Whole())
	}
	return out
}

func (b *policyBundle) current(tb testing.TB) policystore.Snapshot {
	tb.Helper()
	s, err := b.store.Current(context.Background())
	require.NoError(tb, err)
	return s
}

func override(policy string, burst int, key ...string) quota.Override {
	return quota.Override{
		Policy: policy, Key: key,
		Limit: quota.Limit{Capacity: quota.Tokens(burst) * quota.Token, Refill: 10 * quota.Token, Period: time.Second},
	}
}
