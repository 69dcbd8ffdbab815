package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"connectrpc.com/otelconnect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/quota"
)

// Bounds of the server.
const (
	// maxLimiterBytes and maxRegionBytes bound a message after decompression. A
	// full report holds every share of a region, so it may be larger.
	maxLimiterBytes = 1 << 20
	maxRegionBytes  = 16 << 20
	// compressMinBytes keeps small answers, which are nearly all, uncompressed.
	compressMinBytes = 1 << 10
	// maxStreams is the number of calls at a time on one HTTP/2 connection.
	maxStreams = 1000
	// maxHeaderBytes bounds the headers of a request.
	maxHeaderBytes = 64 << 10
	// readHeaderTimeout, callTimeout and idleTimeout bound what a slow or silent
	// client can hold on to.
	readHeaderTimeout = 5 * time.Second
	callTimeout       = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	// pingInterval and pingTimeout find HTTP/2 clients that vanished in the
	// middle of a stream.
	pingInterval = 15 * time.Second
	pingTimeout  = 15 * time.Second
)

// DefaultDrainTimeout is how long Stop waits for calls under way when the
// configuration does not say.
const DefaultDrainTimeout = 10 * time.Second

// Mount is a handler beside the RPC services, for example the console. Pattern
// is one of http.ServeMux.
type Mount struct {
	Pattern string
	Handler http.Handler
}

// ServerConfig is what a server is made of. Only Registry is mandatory; a nil
// Limiter, Regions, Policies or Status leaves that service out.
type ServerConfig struct {
	Limiter  Limiter
	Regions  Regions
	Policies *PolicyConfig
	Status   *StatusConfig
	// Auth switches authentication on and, where policies are served, TokenService
	// too. Nil is no authentication at all: everybody may do everything.
	Auth *AuthConfig
	// Registry receives the server's metrics and is what /metrics shows.
	Registry *prometheus.Registry
	// Logger may be nil.
	Logger *slog.Logger
	// TracerProvider switches tracing on.
	TracerProvider trace.TracerProvider
	// Ready is asked by /readyz and by the gRPC health service, concurrently. Nil
	// means always ready.
	Ready func(context.Context) Readiness
	// Headers is the default of answers that do not choose.
	Headers HeaderConfig
	Mounts  []Mount
	// DrainDelay is how long Stop goes on accepting after it has become not
	// ready, so that load balancers notice; zero does not wait.
	DrainDelay time.Duration
	// DrainTimeout bounds the wait for calls under way; zero means DefaultDrainTimeout.
	DrainTimeout time.Duration
}

// Server serves Connect, gRPC, gRPC-Web and JSON over HTTP/1.1 and cleartext
// HTTP/2 on one port, with /metrics, /healthz and /readyz. It is used once.
type Server struct {
	cfg      ServerConfig
	http     *http.Server
	draining atomic.Bool
	stopping sync.Once
	// forward is for calls that another coordinator has to answer.
	forward *http.Client
	// ending is closed when streams have to end.
	ending  chan struct{}
	stopped chan struct{}
	stopErr error
}

// NewServer registers its metrics in cfg.Registry and does not listen yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Registry == nil {
		return nil, fmt.Errorf("rpc: ServerConfig.Registry is missing: %w", quota.ErrInvalid)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.DrainTimeout <= 0 {
		cfg.DrainTimeout = DefaultDrainTimeout
	}
	forward := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: idleTimeout}}
	s := &Server{cfg: cfg, forward: forward, ending: make(chan struct{}), stopped: make(chan struct{})}
	mux, err := s.routes()
	if err != nil {
		return nil, err
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           s.farewell(mux),
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: pingInterval, PingTimeout: pingTimeout},
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	}
	return s, nil
}

// routes builds the one mux.
func (s *Server) routes() (*http.ServeMux, error) {
	mux := http.NewServeMux()
	served, err := s.mountServices(mux)
	if err != nil {
		return nil, err
	}
	mux.Handle(grpchealth.NewHandler(&healthChecker{s, served}))
	reflector := grpcreflect.NewStaticReflector(append(served, grpchealth.HealthV1ServiceName)...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelError),
	}))
	mux.HandleFunc("GET /healthz", serveHealthz)
	mux.HandleFunc("GET /readyz", s.serveReadyz)
	for _, m := range s.cfg.Mounts {
		if err := mount(mux, m); err != nil {
			return nil, err
		}
	}
	return mux, nil
}

// mountServices adds the RPC services and returns their names.
func (s *Server) mountServices(mux *http.ServeMux) ([]string, error) {
	var served []string
	for name, on := range map[string]bool{
		weirv1connect.LimiterServiceName: s.cfg.Limiter != nil,
		weirv1connect.RegionServiceName:  s.cfg.Regions != nil,
		weirv1connect.PolicyServiceName:  s.cfg.Policies != nil,
		weirv1connect.StatusServiceName:  s.cfg.Status != nil,
		weirv1connect.LedgerServiceName:  s.cfg.Status != nil && s.cfg.Status.Ledger != nil,
		weirv1connect.TokenServiceName:   s.cfg.Policies != nil && s.cfg.Auth != nil,
	} {
		if on {
			served = append(served, name)
		}
	}
	slices.Sort(served)
	m, err := newMetrics(s.cfg.Registry, procedures(served...))
	if err != nil {
		return nil, fmt.Errorf("rpc: register metrics: %w", err)
	}
	mapper := errorMapper{s.cfg.Logger}
	watch := &observer{m, mapper}
	options, err := s.interceptors(watch)
	if err != nil {
		return nil, err
	}
	var auth *authenticator
	if s.cfg.Auth != nil {
		am, err := newAuthMetrics(s.cfg.Registry)
		if err != nil {
			return nil, fmt.Errorf("rpc: register metrics: %w", err)
		}
		if auth, err = newAuthenticator(*s.cfg.Auth, am, m, mapper); err != nil {
			return nil, err
		}
		options = connect.WithHandlerOptions(options, connect.WithRequestGate(auth.gate))
	}
	add := func(path string, h http.Handler) { mux.Handle(path, boundCall(watch.countRejected(h))) }
	if s.cfg.Limiter != nil {
		add(weirv1connect.NewLimiterServiceHandler(
			&limiterHandler{s.cfg.Limiter, s.cfg.Headers, mapper}, options, connect.WithReadMaxBytes(maxLimiterBytes),
		))
	}
	if s.cfg.Regions != nil {
		add(weirv1connect.NewRegionServiceHandler(
			&regionHandler{s.cfg.Regions}, options, connect.WithReadMaxBytes(maxRegionBytes),
		))
	}
	if s.cfg.Status != nil {
		s.mountStatus(add, options)
	}
	if s.cfg.Policies != nil {
		return served, s.mountPolicies(add, auth, options)
	}
	return served, nil
}

// mountStatus adds StatusService and, where there is a ledger to keep, LedgerService.
func (s *Server) mountStatus(add func(string, http.Handler), options connect.HandlerOption) {
	h := &statusHandler{*s.cfg.Status, s.forward}
	add(weirv1connect.NewStatusServiceHandler(h, options, connect.WithReadMaxBytes(maxReadBytes)))
	if h.cfg.Ledger != nil {
		add(weirv1connect.NewLedgerServiceHandler(h, options, connect.WithReadMaxBytes(maxReadBytes)))
	}
}

// mountPolicies adds PolicyService and, with authentication, TokenService.
func (s *Server) mountPolicies(add func(string, http.Handler), auth *authenticator, options connect.HandlerOption) error {
	cfg := *s.cfg.Policies
	if cfg.Store == nil || cfg.Parse == nil || cfg.Marshal == nil || len(cfg.Instance) > maxInstance {
		return fmt.Errorf("rpc: PolicyConfig needs a Store, Parse and Marshal, and an Instance of at most %d bytes: %w", maxInstance, quota.ErrInvalid)
	}
	changes, err := newChangeMetrics(s.cfg.Registry)
	if err != nil {
		return fmt.Errorf("rpc: register metrics: %w", err)
	}
	add(weirv1connect.NewPolicyServiceHandler(&policyHandler{
		cfg: cfg, auth: auth, changes: changes, feed: newFeed(cfg.Store, s.cfg.Logger),
		serial: make(chan struct{}, 1), stopping: s.ending,
	}, options, policyOptions()))
	if auth != nil {
		add(weirv1connect.NewTokenServiceHandler(&tokenHandler{auth, changes}, options, connect.WithReadMaxBytes(maxReadBytes)))
	}
	return nil
}

// interceptors are what every service has in common.
func (s *Server) interceptors(watch *observer) (connect.HandlerOption, error) {
	var interceptors []connect.Interceptor
	if s.cfg.TracerProvider != nil {
		// Outermost, so that the observer sees the span. Metrics are the observer's.
		tracing, err := otelconnect.NewInterceptor(
			otelconnect.WithTracerProvider(s.cfg.TracerProvider),
			otelconnect.WithoutMetrics(),
			otelconnect.WithPropagator(propagation.TraceContext{}),
		)
		if err != nil {
			return nil, fmt.Errorf("rpc: tracing: %w", err)
		}
		interceptors = append(interceptors, tracing)
	}
	return connect.WithHandlerOptions(
		jsonCodecs(),
		connect.WithCompressMinBytes(compressMinBytes),
		connect.WithInterceptors(append(interceptors, watch)...),
	), nil
}

// mount turns the panic of a bad or taken pattern into an error.
func mount(mux *http.ServeMux, m Mount) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("rpc: mount %q: %v", m.Pattern, v)
		}
	}()
	mux.Handle(m.Pattern, m.Handler)
	return nil
}

// boundCall gives each unary call its own read and write deadline, so that a
// client that dribbles cannot hold a connection. It is not a server-wide
// timeout, because health watches and consoles stream.
func boundCall(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		deadline := time.Now().Add(callTimeout)
		// Neither fails on net/http's own writers; on others there is nothing to bound.
		_ = control.SetReadDeadline(deadline)
		_ = control.SetWriteDeadline(deadline)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), controlKey{}, control)))
		// A connection outlives the call, and what comes next may stream.
		_ = control.SetReadDeadline(time.Time{})
		_ = control.SetWriteDeadline(time.Time{})
	})
}

type controlKey struct{}

// controlOf returns the deadlines of the call, for a stream to set its own.
func controlOf(ctx context.Context) *http.ResponseController {
	control, _ := ctx.Value(controlKey{}).(*http.ResponseController)
	return control
}

// farewell asks HTTP/1.1 clients to go elsewhere while the server drains: each
// answer closes its connection, so that none is left idle for a client to send
// on just as the listener closes. HTTP/2 has GOAWAY for that, which Shutdown
// sends once. Sending it here, on every connection that a client opens in turn,
// would fail calls: grpc-go repeats a call that met a GOAWAY only once.
func (s *Server) farewell(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// Handler serves everything without a listener.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve accepts on ln until Stop, and owns it. After Stop it returns nil, once
// the calls under way are done.
func (s *Server) Serve(ln net.Listener) error {
	err := s.http.Serve(ln)
	if errors.Is(err, http.ErrServerClosed) {
		<-s.stopped
		return nil
	}
	return fmt.Errorf("rpc: serve: %w", err)
}

// Stop becomes not ready, goes on accepting for DrainDelay, ends the streams of
// watchers, who go elsewhere, stops accepting and waits for the calls under way, for at most DrainTimeout or until ctx is done;
// then it cuts what is left and says so. Repeated and concurrent calls wait for
// the first and return its error.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Do(func() {
		defer close(s.stopped)
		s.stopErr = s.drain(ctx)
	})
	<-s.stopped
	return s.stopErr
}

func (s *Server) drain(ctx context.Context) error {
	s.draining.Store(true)
	if s.cfg.DrainDelay > 0 {
		timer := time.NewTimer(s.cfg.DrainDelay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	close(s.ending)
	defer s.forward.CloseIdleConnections()
	bounded, cancel := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer cancel()
	if err := s.http.Shutdown(bounded); err != nil {
		return errors.Join(fmt.Errorf("rpc: calls were cut: %w", err), s.http.Close())
	}
	return nil
}
