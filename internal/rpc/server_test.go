package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// h2c returns an HTTP client that speaks cleartext HTTP/2 only.
func h2c(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestEveryProtocolOnOnePort(t *testing.T) {
	s := serve(t, &fakeLimiter{check: func(_ context.Context, r quota.Request) (quota.Result, error) {
		return quota.Result{Allowed: r.Attributes["plan"] == "free", Decisions: []quota.Decision{apiFree()}}, nil
	}})
	request := &weirv1.CheckRequest{Attributes: map[string]string{"plan": "free"}}
	verify := func(t *testing.T, res *weirv1.CheckResponse, err error) {
		t.Helper()
		require.NoError(t, err)
		assert.True(t, res.GetAllowed())
		assert.Equal(t, int64(19), res.GetDecisions()[0].GetRemaining())
		assert.Equal(t, weirv1.Decision_STORE, res.GetDecisions()[0].GetSource())
	}
	for _, version := range []struct {
		name   string
		client *http.Client
	}{{"http1", s.http}, {"h2c", h2c(t)}} {
		for name, options := range map[string][]connect.ClientOption{
			"connect": nil, "connect-json": {connect.WithProtoJSON()},
			"grpc-web": {connect.WithGRPCWeb()}, "grpc": {connect.WithGRPC()},
		} {
			if name == "grpc" && version.name == "http1" {
				continue // gRPC is defined over HTTP/2 only
			}
			t.Run(name+"/"+version.name, func(t *testing.T) {
				c := weirv1connect.NewLimiterServiceClient(version.client, s.url, options...)
				res, err := c.Check(t.Context(), request)
				verify(t, res, err)
			})
		}
	}
	t.Run("grpc-go", func(t *testing.T) {
		res := &weirv1.CheckResponse{}
		verify(t, res, s.grpcConn(t).Invoke(t.Context(), check, request, res))
	})
}

func TestDeadlineTravels(t *testing.T) {
	remaining := make(chan time.Duration, 1)
	s := serve(t, &fakeLimiter{check: func(ctx context.Context, _ quota.Request) (quota.Result, error) {
		deadline, ok := ctx.Deadline()
		if !ok {
			return quota.Result{}, errors.New("no deadline")
		}
		remaining <- time.Until(deadline)
		return quota.Result{Allowed: true}, nil
	}})
	status, _ := s.post(t, check, `{}`, "Connect-Timeout-Ms", "5000")
	require.Equal(t, 200, status)
	assert.InDelta(t, 5, (<-remaining).Seconds(), 4)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, s.grpcConn(t).Invoke(ctx, check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{}))
	assert.InDelta(t, 20, (<-remaining).Seconds(), 10)
}

func TestSmallAnswersAreNotCompressed(t *testing.T) {
	long := false
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		r := quota.Result{Allowed: true, Decisions: []quota.Decision{apiFree()}}
		for long && len(r.Decisions) < 50 {
			r.Decisions = append(r.Decisions, apiFree())
		}
		return r, nil
	}})
	encoding := func() string {
		r, err := s.do(http.MethodPost, check, `{}`, "Accept-Encoding", "gzip")
		require.NoError(t, err)
		return r.header.Get("Content-Encoding")
	}
	assert.Empty(t, encoding())
	long = true
	assert.Equal(t, "gzip", encoding())
}

func TestServicesThatAreLeftOut(t *testing.T) {
	s := serve(t, nil, func(c *rpc.ServerConfig) { c.Limiter = nil })
	_, err := newClient(t, s.url, 0).Check(t.Context(), quota.Request{})
	require.Error(t, err)
	assert.ErrorContains(t, err, "does not offer this call")
	client, err := rpc.NewRegionClient(rpc.ClientConfig{URL: s.url})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.Report(t.Context(), quota.Report{Region: "r"})
	assert.ErrorContains(t, err, "does not offer this call")
}

// Case 59: liveness depends on nothing, readiness shows the state of the store.
func TestHealthAndReadiness(t *testing.T) {
	state := rpc.Readiness{Ready: true, Detail: map[string]any{"store": "down", "revision": 3}}
	s := serve(t, &fakeLimiter{}, func(c *rpc.ServerConfig) {
		c.Ready = func(context.Context) rpc.Readiness { return state }
	})
	health := grpchealth.NewClient(h2c(t), s.url, connect.WithGRPC())
	asked := &grpchealth.CheckRequest{Service: weirv1connect.LimiterServiceName}

	r := s.get(t, "/readyz")
	assert.Equal(t, 200, r.status)
	assert.JSONEq(t, `{"ready":true,"status":"ready","detail":{"store":"down","revision":3}}`, r.body)
	status, err := health.Check(t.Context(), asked)
	require.NoError(t, err)
	assert.Equal(t, grpchealth.StatusServing, status.Status)

	state = rpc.Readiness{Detail: map[string]any{"bad": func() {}}}
	r = s.get(t, "/readyz")
	assert.Equal(t, 503, r.status)
	assert.JSONEq(t, `{"ready":false,"status":"not ready"}`, r.body, "a detail that is not JSON is left out")
	status, err = health.Check(t.Context(), asked)
	require.NoError(t, err)
	assert.Equal(t, grpchealth.StatusNotServing, status.Status)

	r = s.get(t, "/healthz")
	assert.Equal(t, 200, r.status)
	assert.Equal(t, "ok\n", r.body)

	_, err = health.Check(t.Context(), &grpchealth.CheckRequest{Service: "weir.v1.Nobody"})
	assert.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
}

func TestReflection(t *testing.T) {
	s := serve(t, &fakeLimiter{})
	stream := grpcreflect.NewClient(h2c(t), s.url, connect.WithGRPC()).NewStream(t.Context())
	names, err := stream.ListServices()
	require.NoError(t, err)
	assert.Len(t, names, 2)
	files, err := stream.FileContainingSymbol("weir.v1.LimiterService")
	require.NoError(t, err)
	assert.NotEmpty(t, files)
	_, err = stream.Close()
	require.NoError(t, err)
}

func TestMetrics(t *testing.T) {
	s := serve(t, &fakeLimiter{check: func(_ context.Context, r quota.Request) (quota.Result, error) {
		if r.Attributes["fail"] != "" {
			return quota.Result{}, quota.ErrUnavailable
		}
		return quota.Result{}, nil
	}})
	s.post(t, check, `{}`)
	s.post(t, check, `{"attributes":{"fail":"1"}}`)
	s.post(t, check, `{`)

	problems, err := testutil.GatherAndLint(s.registry)
	require.NoError(t, err)
	assert.Empty(t, problems)

	r := s.get(t, "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	assert.Contains(t, r.header.Get("Content-Type"), "openmetrics")
	for _, line := range []string{
		`weir_rpc_requests_total{code="ok",procedure="/weir.v1.LimiterService/Check"} 1`,
		`weir_rpc_requests_total{code="unavailable",procedure="/weir.v1.LimiterService/Check"} 1`,
		`weir_rpc_requests_total{code="ok",procedure="/weir.v1.LimiterService/Refund"} 0`,
		`weir_rpc_request_duration_seconds_count{procedure="/weir.v1.LimiterService/Check"} 2`,
		`weir_rpc_in_flight_requests{procedure="/weir.v1.LimiterService/Check"} 0`,
		`weir_rpc_rejected_requests_total 1`,
	} {
		assert.Contains(t, r.body, line)
	}
	assert.NotContains(t, r.body, "RegionService", "a service that is not served has no series")
}

func TestTracingIsOnWithAProvider(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	var inside trace.SpanContext
	limiter := &fakeLimiter{check: func(ctx context.Context, _ quota.Request) (quota.Result, error) {
		inside = trace.SpanContextFromContext(ctx)
		return quota.Result{}, nil
	}}
	s := serve(t, limiter, func(c *rpc.ServerConfig) { c.TracerProvider = provider })
	s.post(t, check, `{}`)
	require.Len(t, recorder.Ended(), 1)
	assert.Equal(t, "weir.v1.LimiterService/Check", recorder.Ended()[0].Name())
	assert.True(t, inside.IsValid())
	r := s.get(t, "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	assert.Contains(t, r.body, inside.TraceID().String(), "the histogram links to the trace")

	off := serve(t, limiter)
	off.post(t, check, `{}`)
	assert.False(t, inside.IsValid(), "off by default")
}

func TestMounts(t *testing.T) {
	console := rpc.Mount{Pattern: "GET /console/", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("console"))
	})}
	s := serve(t, &fakeLimiter{}, func(c *rpc.ServerConfig) { c.Mounts = []rpc.Mount{console} })
	assert.Equal(t, "console", s.get(t, "/console/").body)

	for _, pattern := range []string{"/console/", "GET /metrics", "a b c"} {
		mounts := []rpc.Mount{{Pattern: "/console/", Handler: console.Handler}, {Pattern: pattern, Handler: console.Handler}}
		_, err := rpc.NewServer(rpc.ServerConfig{Registry: prometheus.NewRegistry(), Mounts: mounts})
		assert.ErrorContains(t, err, "rpc: mount", pattern)
	}
}

func TestServerConfig(t *testing.T) {
	_, err := rpc.NewServer(rpc.ServerConfig{})
	require.ErrorIs(t, err, quota.ErrInvalid)
	registry := prometheus.NewRegistry()
	_, err = rpc.NewServer(rpc.ServerConfig{Registry: registry})
	require.NoError(t, err, "the zero configuration with a registry works")
	_, err = rpc.NewServer(rpc.ServerConfig{Registry: registry})
	assert.ErrorContains(t, err, "register metrics")
}
