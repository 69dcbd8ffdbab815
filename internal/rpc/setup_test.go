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

// listen returns a listener on a free loopback port.
func listen(tb testing.TB) net.Listener {
	tb.Helper()
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	return ln
}

// serve starts a server on a loopback port; it is stopped with the test.
func serve(tb testing.TB, limiter rpc.Limiter, change ...func(*rpc.ServerConfig)) *testServer {
	tb.Helper()
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
	require.NoError(tb, err)
	ln := listen(tb)
	s.addr = ln.Addr().String()
	s.url = "http://" + s.addr
	s.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	tb.Cleanup(func() {
		s.http.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Stop(ctx)
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return s
}

// reply is a response that was read to its end.
type reply struct {
	status int
	header http.Header
	body   string
	// closing is true when the server will close the connection.
	closing bool
}

// do may be called from any goroutine. header holds names and values in turn.
func (s *testServer) do(method, path, body string, header ...string) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Content-Type" {
			req.Header.Del(header[i])
		}
		req.Header.Add(header[i], header[i+1])
	}
	res, err := s.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(raw), res.Close}, err
}

// post sends a JSON body to a procedure and returns status and compacted body.
func (s *testServer) post(tb testing.TB, procedure, body string, header ...string) (status int, answer string) {
	tb.Helper()
	r, err := s.do(http.MethodPost, procedure, body, header...)
	require.NoError(tb, err)
	var compact bytes.Buffer
	require.NoError(tb, json.Compact(&compact, []byte(r.body)), "body %q", r.body)
	return r.status, compact.String()
}

func (s *testServer) get(tb testing.TB, path string, header ...string) reply {
	tb.Helper()
	r, err := s.do(http.MethodGet, path, "", header...)
	require.NoError(tb, err)
	return r
}

// grpcConn is a real grpc-go client over cleartext HTTP/2.
func (s *testServer) grpcConn(tb testing.TB) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
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
