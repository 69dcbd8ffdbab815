package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// fakeLimiter answers with what its functions say; a nil one admits.
type fakeLimiter struct {
	check   func(context.Context, quota.Request) (quota.Result, error)
	explain func(context.Context, quota.Request) (quota.Explanation, error)
	refund  func(context.Context, quota.RefundRequest) ([]string, error)
}

func (f *fakeLimiter) Check(ctx context.Context, r quota.Request) (quota.Result, error) {
	if f.check == nil {
		return quota.Result{Allowed: true}, nil
	}
	return f.check(ctx, r)
}

func (f *fakeLimiter) CheckBatch(ctx context.Context, rs []quota.Request) ([]quota.Result, []error) {
	results, errs := make([]quota.Result, len(rs)), make([]error, len(rs))
	for i, r := range rs {
		results[i], errs[i] = f.Check(ctx, r)
	}
	return results, errs
}

func (f *fakeLimiter) Peek(ctx context.Context, r quota.Request) (quota.Result, error) {
	return f.Check(ctx, r)
}

func (f *fakeLimiter) Explain(ctx context.Context, r quota.Request) (quota.Explanation, error) {
	return f.explain(ctx, r)
}

func (f *fakeLimiter) Refund(ctx context.Context, r quota.RefundRequest) ([]string, error) {
	return f.refund(ctx, r)
}

type fakeRegions func(context.Context, quota.Report) (quota.Instructions, error)

func (f fakeRegions) Report(ctx context.Context, r quota.Report) (quota.Instructions, error) {
	return f(ctx, r)
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type testServer struct {
	*rpc.Server
	url, addr string
	log       *lockedBuffer
	registry  *prometheus.Registry
	http      *http.Client
}

// serve starts a server on a loopback port; it is stopped with the test.
func serve(t testing.TB, limiter rpc.Limiter, change ...func(*rpc.ServerConfig)) *testServer {
	t.Helper()
	s := &testServer{log: &lockedBuffer{}, registry: prometheus.NewRegistry()}
	cfg := rpc.ServerConfig{
		Limiter:  limiter,
		Registry: s.registry,
		Logger:   slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	s.Server, err = rpc.NewServer(cfg)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = ln.Addr().String()
	s.url = "http://" + s.addr
	s.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.http.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Stop(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// post sends a JSON body to a procedure and returns status and compacted body.
func (s *testServer) post(t testing.TB, procedure, body string, header ...string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+procedure, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := s.http.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, raw), "body %q", raw)
	return res.StatusCode, compact.String()
}

func (s *testServer) get(t testing.TB, path string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := s.http.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(raw)
}

// grpcConn is a real grpc-go client over cleartext HTTP/2.
func (s *testServer) grpcConn(t testing.TB) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// apiFree is the decision of the example of the API's documentation.
func apiFree() quota.Decision {
	return quota.Decision{
		PolicyID: "api-free", Allowed: true, Source: quota.SourceStore,
		Limit: 20, Remaining: 19, ResetAfter: 600 * time.Millisecond,
		Limits: quota.Limit{Capacity: 20 * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
	}
}
