package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/quota"
)

// DefaultCallTimeout bounds a client's call when its configuration does not.
const DefaultCallTimeout = 5 * time.Second

// ClientConfig is what a client needs to know.
type ClientConfig struct {
	// URL of the server, for example "http://localhost:8081".
	URL string
	// Token, when set, is sent with every call. Over http:// everybody on the way can read it.
	Token Secret
	// Timeout bounds each call, connecting included; zero means DefaultCallTimeout.
	Timeout time.Duration
	// HTTPClient replaces the client's own connections; its owner closes them.
	HTTPClient *http.Client
	// Logger may be nil.
	Logger *slog.Logger
}

// conn is what the clients of both services have in common.
type conn struct {
	url     string
	timeout time.Duration
	http    *http.Client
	owned   bool
	log     *slog.Logger
	options connect.ClientOption
}

func newConn(cfg ClientConfig) (conn, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		// The URL is not repeated: it may hold a password.
		return conn{}, fmt.Errorf("server URL: want http://host:port or https://host:port: %w", quota.ErrInvalid)
	}
	c := conn{url: cfg.URL, timeout: cfg.Timeout, http: cfg.HTTPClient, log: cfg.Logger}
	c.options = connect.WithClientOptions(connect.WithCompressMinBytes(compressMinBytes))
	if cfg.Token != "" {
		c.options = connect.WithClientOptions(c.options, connect.WithInterceptors(bearerToken(cfg.Token)))
	}
	if c.timeout <= 0 {
		c.timeout = DefaultCallTimeout
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.http == nil {
		c.owned = true
		c.http = &http.Client{
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment,
				DialContext:         (&net.Dialer{Timeout: c.timeout, KeepAlive: 15 * time.Second}).DialContext,
				TLSHandshakeTimeout: c.timeout,
				ForceAttemptHTTP2:   true,
				MaxIdleConnsPerHost: 4,
				IdleConnTimeout:     90 * time.Second,
			},
			// A redirect would turn a POST into a GET; the URL is to be right.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return c, nil
}

// bearerToken sends a token with every call.
type bearerToken Secret

func (t bearerToken) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		r.Header().Set("Authorization", "Bearer "+string(t))
		return next(ctx, r)
	}
}

func (t bearerToken) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		c := next(ctx, spec)
		c.RequestHeader().Set("Authorization", "Bearer "+string(t))
		return c
	}
}

func (bearerToken) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// Close closes idle connections. Calls under way go on.
func (c *conn) Close() error {
	if c.owned {
		c.http.CloseIdleConnections()
	}
	return nil
}

func (c *conn) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// fail decodes err. The caller's own cancellation stays what it is.
func fail(ctx context.Context, operation string, err error) error {
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%s: %w", operation, cause)
	}
	return decodeError(operation, err)
}

// RegionClient calls the coordinator for a region's agent. It is safe for
// concurrent use and does not retry: the agent reports again by itself.
type RegionClient struct {
	conn
	client weirv1connect.RegionServiceClient
}

// NewRegionClient does not connect yet.
func NewRegionClient(cfg ClientConfig) (*RegionClient, error) {
	c, err := newConn(cfg)
	if err != nil {
		return nil, err
	}
	return &RegionClient{c, weirv1connect.NewRegionServiceClient(
		c.http, c.url,
		connect.WithReadMaxBytes(maxRegionBytes), connect.WithSendGzip(), c.options,
	)}, nil
}

// Report sends a report and returns what the coordinator wants done. Errors wrap
// the sentinels of package quota; without an answer that is quota.ErrUnavailable.
func (c *RegionClient) Report(ctx context.Context, r quota.Report) (quota.Instructions, error) {
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	m, err := c.client.Report(bounded, fromReport(&r))
	if err != nil {
		return quota.Instructions{}, fail(ctx, "report to coordinator", err)
	}
	in, unknown := toInstructions(m)
	if unknown > 0 {
		c.log.WarnContext(ctx, "grants left out: their algorithm is unknown to this version", "grants", unknown)
	}
	return in, nil
}

// Client calls a regional node for the command line. It is safe for concurrent use.
type Client struct {
	conn
	client weirv1connect.LimiterServiceClient
}

// NewClient does not connect yet.
func NewClient(cfg ClientConfig) (*Client, error) {
	c, err := newConn(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{c, weirv1connect.NewLimiterServiceClient(
		c.http, c.url, connect.WithReadMaxBytes(maxRegionBytes), c.options,
	)}, nil
}

// Answer is the answer to a check.
type Answer struct {
	quota.Result
	Headers []Header
	message proto.Message
}

// JSON is the answer as the API says it.
func (a *Answer) JSON() ([]byte, error) { return protojson.Marshal(a.message) }

// Explanation is the answer to Explain.
type Explanation struct {
	quota.Explanation
	message proto.Message
}

// JSON is the answer as the API says it.
func (e *Explanation) JSON() ([]byte, error) { return protojson.Marshal(e.message) }

// Check decides and charges. The request's cost must be whole tokens.
func (c *Client) Check(ctx context.Context, r quota.Request) (*Answer, error) {
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	cost := r.Cost.Whole()
	m, err := c.client.Check(bounded, &weirv1.CheckRequest{
		Attributes: r.Attributes, Cost: &cost, RequestId: r.RequestID, Policies: r.Policies,
	})
	if err != nil {
		return nil, fail(ctx, "check", err)
	}
	a := newAnswer(m, m)
	a.Replayed = m.GetReplayed()
	return a, nil
}

// Peek decides without charging. The request's cost must be whole tokens.
func (c *Client) Peek(ctx context.Context, r quota.Request) (*Answer, error) {
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	cost := r.Cost.Whole()
	m, err := c.client.Peek(bounded, &weirv1.PeekRequest{Attributes: r.Attributes, Cost: &cost, Policies: r.Policies})
	if err != nil {
		return nil, fail(ctx, "peek", err)
	}
	return newAnswer(m, m), nil
}

// Explain says how a request would be decided now.
func (c *Client) Explain(ctx context.Context, r quota.Request) (*Explanation, error) {
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	cost := r.Cost.Whole()
	m, err := c.client.Explain(bounded, &weirv1.ExplainRequest{Attributes: r.Attributes, Cost: &cost, Policies: r.Policies})
	if err != nil {
		return nil, fail(ctx, "explain", err)
	}
	return &Explanation{toExplanation(m), m}, nil
}

// Refund gives tokens back and returns the policies that took them.
func (c *Client) Refund(ctx context.Context, r quota.RefundRequest) ([]string, error) {
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	m, err := c.client.Refund(bounded, &weirv1.RefundRequest{
		Attributes: r.Attributes, Amount: r.Amount.Whole(), Policies: r.Policies,
	})
	if err != nil {
		return nil, fail(ctx, "refund", err)
	}
	return m.GetPolicies(), nil
}

// answering is what the answers to Check and Peek have in common on the wire.
type answering interface {
	GetAllowed() bool
	GetDecisions() []*weirv1.Decision
	GetHeaders() []*weirv1.Header
	GetRevision() int64
}

func newAnswer(m answering, message proto.Message) *Answer {
	a := &Answer{message: message}
	a.Allowed, a.Revision = m.GetAllowed(), m.GetRevision()
	a.Decisions = toDecisions(m.GetDecisions())
	for _, h := range m.GetHeaders() {
		a.Headers = append(a.Headers, Header{h.GetName(), h.GetValue()})
	}
	return a
}
