package rpc

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/dunglas/httpsfv"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/quota"
)

// Limiter decides checks; it is what LimiterService is served from. All methods
// may be called concurrently and honour the context's deadline. Requests have
// been validated. A denial is a Result; the errors are the sentinels of package
// quota, and anything else is sent as internal.
type Limiter interface {
	// Check decides and charges.
	Check(ctx context.Context, r quota.Request) (quota.Result, error)
	// CheckBatch decides each on its own. Results and errors have one element per
	// request, in order; a nil error means that the result is valid.
	CheckBatch(ctx context.Context, rs []quota.Request) ([]quota.Result, []error)
	// Peek decides without charging.
	Peek(ctx context.Context, r quota.Request) (quota.Result, error)
	// Explain charges nothing.
	Explain(ctx context.Context, r quota.Request) (quota.Explanation, error)
	// Refund returns the ids of the policies that were given something back.
	Refund(ctx context.Context, r quota.RefundRequest) ([]string, error)
}

type limiterHandler struct {
	limiter Limiter
	headers HeaderConfig
	errors  errorMapper
}

var _ weirv1connect.LimiterServiceHandler = (*limiterHandler)(nil)

func (h *limiterHandler) Check(ctx context.Context, m *weirv1.CheckRequest) (*weirv1.CheckResponse, error) {
	key, err := idempotencyKey(ctx)
	if err != nil {
		return nil, err
	}
	req, err := toCheck(m, key)
	if err != nil {
		return nil, err
	}
	res, err := h.limiter.Check(ctx, req)
	if err != nil {
		return nil, err
	}
	return h.checkResponse(m, &req, &res), nil
}

// toCheck validates one check, alone or of a batch. key is the request id that
// the transport carried, empty when none.
func toCheck(m *weirv1.CheckRequest, key string) (quota.Request, error) {
	id, err := requestID(m.GetRequestId(), key)
	if err != nil {
		return quota.Request{}, err
	}
	return toRequest(m, m.Cost, id)
}

func (h *limiterHandler) checkResponse(
	m *weirv1.CheckRequest, req *quota.Request, res *quota.Result,
) *weirv1.CheckResponse {
	return &weirv1.CheckResponse{
		Allowed:    &res.Allowed,
		Decisions:  fromDecisions(res.Decisions),
		Headers:    h.responseHeaders(m.GetHeaderOptions(), res, req.Cost),
		RetryAfter: optionalDuration(retryAfter(res)),
		Revision:   res.Revision,
		Replayed:   res.Replayed,
	}
}

func (h *limiterHandler) Peek(ctx context.Context, m *weirv1.PeekRequest) (*weirv1.PeekResponse, error) {
	req, err := toRequest(m, m.Cost, "")
	if err != nil {
		return nil, err
	}
	res, err := h.limiter.Peek(ctx, req)
	if err != nil {
		return nil, err
	}
	return &weirv1.PeekResponse{
		Allowed:    &res.Allowed,
		Decisions:  fromDecisions(res.Decisions),
		Headers:    h.responseHeaders(m.GetHeaderOptions(), &res, req.Cost),
		RetryAfter: optionalDuration(retryAfter(&res)),
		Revision:   res.Revision,
	}, nil
}

func (h *limiterHandler) Explain(ctx context.Context, m *weirv1.ExplainRequest) (*weirv1.ExplainResponse, error) {
	req, err := toRequest(m, m.Cost, "")
	if err != nil {
		return nil, err
	}
	e, err := h.limiter.Explain(ctx, req)
	if err != nil {
		return nil, err
	}
	return fromExplanation(&e), nil
}

func (h *limiterHandler) Refund(ctx context.Context, m *weirv1.RefundRequest) (*weirv1.RefundResponse, error) {
	req, err := toRefund(m)
	if err != nil {
		return nil, err
	}
	ids, err := h.limiter.Refund(ctx, req)
	if err != nil {
		return nil, err
	}
	return &weirv1.RefundResponse{Policies: ids}, nil
}

func (h *limiterHandler) responseHeaders(
	o *weirv1.HeaderOptions, r *quota.Result, cost quota.Tokens,
) []*weirv1.Header {
	headers := h.headers.with(o).Headers(r, cost, time.Now())
	if len(headers) == 0 {
		return nil
	}
	messages := make([]weirv1.Header, len(headers))
	out := make([]*weirv1.Header, len(headers))
	for i, header := range headers {
		messages[i].Name, messages[i].Value = header.Name, header.Value
		out[i] = &messages[i]
	}
	return out
}

// idempotencyKeyHeader is draft-ietf-httpapi-idempotency-key-header.
const idempotencyKeyHeader = "Idempotency-Key"

// idempotencyKey reads the Idempotency-Key header: a structured fields string,
// or, as many clients send it, the bare text.
func idempotencyKey(ctx context.Context) (string, error) {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return "", nil
	}
	values := info.RequestHeader()[idempotencyKeyHeader]
	if len(values) == 0 {
		return "", nil
	}
	var p problems
	if len(values) > 1 {
		p.add(idempotencyKeyHeader, "sent %d times; send one", len(values))
		return "", p.err()
	}
	value := strings.TrimSpace(values[0])
	if strings.HasPrefix(value, `"`) {
		parsed, err := httpsfv.UnmarshalItem(values)
		text, isString := parsed.Value.(string)
		if err != nil || !isString {
			p.add(idempotencyKeyHeader, `not a quoted string; send "id" with the quotes closed, or id without any`)
			return "", p.err()
		}
		value = text
	}
	if value == "" {
		p.add(idempotencyKeyHeader, "empty; leave the header out or send an id, for example a UUID")
	}
	p.requestID(idempotencyKeyHeader, value)
	return value, p.err()
}

// requestID joins the two places that may carry one.
func requestID(field, header string) (string, error) {
	if field != "" && header != "" && field != header {
		var p problems
		p.add("request_id", "differs from the Idempotency-Key header; send one of them")
		return "", p.err()
	}
	if field == "" {
		return header, nil
	}
	return field, nil
}
