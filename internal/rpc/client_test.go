package rpc_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

func newClient(tb testing.TB, url string, timeout time.Duration) *rpc.Client {
	tb.Helper()
	c, err := rpc.NewClient(rpc.ClientConfig{URL: url, Timeout: timeout})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func TestClient(t *testing.T) {
	var got quota.Request
	d := apiFree()
	s := serve(t, &fakeLimiter{
		check: func(_ context.Context, r quota.Request) (quota.Result, error) {
			got = r
			return quota.Result{Allowed: true, Decisions: []quota.Decision{d}, Revision: 4, Replayed: true}, nil
		},
		explain: func(context.Context, quota.Request) (quota.Explanation, error) {
			return quota.Explanation{Policies: []quota.PolicyExplanation{{PolicyID: "p", WhyNot: "plan is absent"}}}, nil
		},
		refund: func(_ context.Context, r quota.RefundRequest) ([]string, error) { return r.Policies, nil },
	})
	c := newClient(t, s.url, 0)
	want := quota.Request{
		Attributes: map[string]string{"plan": "free"}, Cost: 2 * quota.Token, RequestID: "id", Policies: []string{"api-free"},
	}

	a, err := c.Check(t.Context(), want)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	d.Limits = quota.Limit{}
	assert.Equal(t, quota.Result{Allowed: true, Decisions: []quota.Decision{d}, Revision: 4, Replayed: true}, a.Result)
	assert.Equal(t, "RateLimit-Policy", a.Headers[0].Name)
	raw, err := a.JSON()
	require.NoError(t, err)
	assert.True(t, json.Valid(raw))
	assert.Contains(t, string(raw), `"STORE"`)

	a, err = c.Peek(t.Context(), want)
	require.NoError(t, err)
	assert.Equal(t, int64(4), a.Revision)
	assert.Empty(t, got.RequestID)

	e, err := c.Explain(t.Context(), want)
	require.NoError(t, err)
	assert.Equal(t, "plan is absent", e.Policies[0].WhyNot)

	ids, err := c.Refund(t.Context(), quota.RefundRequest{Amount: quota.Token, Policies: []string{"p"}})
	require.NoError(t, err)
	assert.Equal(t, []string{"p"}, ids)
}

func TestClientRefusesBadURLs(t *testing.T) {
	for _, url := range []string{"", "localhost:8081", "redis://u:hunter2@h", "http://", "http://u:hunter2@h:port"} {
		_, err := rpc.NewClient(rpc.ClientConfig{URL: url})
		require.ErrorIs(t, err, quota.ErrInvalid, url)
		assert.NotContains(t, err.Error(), "hunter2")
		_, err = rpc.NewRegionClient(rpc.ClientConfig{URL: url})
		require.ErrorIs(t, err, quota.ErrInvalid, url)
	}
}

func TestClientWithoutAServer(t *testing.T) {
	ln := listen(t)
	url := "http://" + ln.Addr().String()
	require.NoError(t, ln.Close())
	_, err := newClient(t, url, 0).Check(t.Context(), quota.Request{})
	assert.ErrorIs(t, err, quota.ErrUnavailable)
}

// A proxy accepts for a server that is gone, and closes. That is nobody's cancellation:
// whoever calls has to try elsewhere.
func TestClientBehindAProxyWithoutAServer(t *testing.T) {
	ln := listen(t)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); accepting.Wait() })
	url := "http://" + ln.Addr().String()
	_, err := newClient(t, url, 0).Check(t.Context(), quota.Request{})
	require.ErrorIs(t, err, quota.ErrUnavailable)
	assert.NotErrorIs(t, err, context.Canceled)
	c, err := rpc.NewRegionClient(rpc.ClientConfig{URL: url})
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = c.Report(t.Context(), quota.Report{Region: "a"})
	require.ErrorIs(t, err, quota.ErrUnavailable)
	assert.NotErrorIs(t, err, context.Canceled)
}

func TestClientTimeoutIsBounded(t *testing.T) {
	s := serve(t, &fakeLimiter{check: func(ctx context.Context, _ quota.Request) (quota.Result, error) {
		<-ctx.Done()
		return quota.Result{}, ctx.Err()
	}})
	_, err := newClient(t, s.url, 20*time.Millisecond).Check(context.Background(), quota.Request{})
	require.ErrorIs(t, err, quota.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newClient(t, s.url, 0).Check(ctx, quota.Request{})
	assert.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, quota.ErrUnavailable)
}
