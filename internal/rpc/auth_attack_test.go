package rpc_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

// Guessing is limited per address; who has a good token is not kept out by it.
func TestGuessingIsLimited(t *testing.T) {
	b := serveAuth(t)
	good := b.as(t, policystore.RoleViewer) // not used yet: the server has never seen it
	seen := map[int]int{}
	var limited reply
	for range 40 {
		r, err := b.do(http.MethodPost, apply, `{}`, "Authorization", "Bearer "+string(rpc.NewSecret()))
		require.NoError(t, err)
		seen[r.status]++
		if r.status == 429 {
			limited = r
		}
	}
	assert.Equal(t, map[int]int{401: 10, 429: 30}, seen)
	assert.Equal(t, "6", limited.header.Get("Retry-After"))
	assert.Contains(t, limited.body, "resource_exhausted")
	_, err := good.WhoAmI(t.Context())
	require.NoError(t, err)
	_, err = b.admin.WhoAmI(t.Context())
	require.NoError(t, err)

	guesser := b.policyClient(t, rpc.NewSecret())
	_, err = guesser.WhoAmI(t.Context())
	require.ErrorIs(t, err, quota.ErrUnauthenticated)
	assert.ErrorContains(t, err, "too many failed attempts")
	b.clock.Advance(6 * time.Second)
	_, err = guesser.WhoAmI(t.Context())
	assert.NotContains(t, err.Error(), "too many failed attempts")

	body := b.get(t, "/metrics").body
	assert.Contains(t, body, `weir_auth_failures_total{reason="unknown"} 11`)
	assert.Contains(t, body, `weir_auth_failures_total{reason="throttled"} 31`)
	assert.Contains(t, body, `weir_rpc_requests_total{code="unauthenticated",procedure="/weir.v1.PolicyService/Apply"} 10`)
	assert.Contains(t, body, `weir_rpc_rejected_requests_total 0`)
}

// While many guess at once, lookups from a throttled address are few.
func TestGuessingDoesNotReachTheStore(t *testing.T) {
	tokens := &slowTokens{Tokens: memory.New(nil), release: make(chan struct{})}
	b := serveAuth(t, func(c *rpc.ServerConfig) { tokens.Tokens, c.Auth.Tokens = c.Auth.Tokens, tokens })
	for range 12 {
		_, err := b.policyClient(t, rpc.NewSecret()).WhoAmI(t.Context())
		require.ErrorIs(t, err, quota.ErrUnauthenticated)
	}
	tokens.slow.Store(true)
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range 30 {
		c := b.policyClient(t, rpc.NewSecret())
		wg.Go(func() {
			if _, err := c.WhoAmI(context.Background()); err != nil {
				refused.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return refused.Load() == 26 }, 10*time.Second, time.Millisecond)
	assert.EqualValues(t, 4, tokens.inside.Load())
	close(tokens.release)
	wg.Wait()
	assert.EqualValues(t, 30, refused.Load())
}

type slowTokens struct {
	policystore.Tokens
	slow    atomic.Bool
	inside  atomic.Int64
	release chan struct{}
}

func (s *slowTokens) FindToken(ctx context.Context, h policystore.TokenHash) (policystore.Token, error) {
	if s.slow.Load() {
		s.inside.Add(1)
		defer s.inside.Add(-1)
		select {
		case <-s.release:
		case <-ctx.Done():
			return policystore.Token{}, ctx.Err()
		}
	}
	return s.Tokens.FindToken(ctx, h)
}

func TestMalformedTokens(t *testing.T) {
	b := serveAuth(t)
	for value, reason := range map[string]string{
		"Basic dXNlcjpwYXNz":                     "missing",
		"Bearer":                                 "missing",
		"Bearer ":                                "missing",
		"Bearer weir_short":                      "malformed",
		"Bearer " + string(bootstrap)[1:]:        "malformed",
		"Bearer weir_" + strings.Repeat("!", 43): "malformed",
		"Bearer " + strings.Repeat("x", 2000):    "missing",
	} {
		before := counter(t, b, reason)
		r, err := b.do(http.MethodPost, apply, `{}`, "Authorization", value)
		require.NoError(t, err)
		assert.Equal(t, 401, r.status, value)
		assert.Equal(t, before+1, counter(t, b, reason), value)
	}
}

func counter(t *testing.T, b *authBundle, reason string) int {
	t.Helper()
	m := regexp.MustCompile(`weir_auth_failures_total\{reason="` + reason + `"\} (\d+)`).FindStringSubmatch(b.get(t, "/metrics").body)
	require.NotNil(t, m)
	var n int
	_, err := fmt.Sscan(m[1], &n)
	require.NoError(t, err)
	return n
}
