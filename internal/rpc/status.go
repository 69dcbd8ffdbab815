package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// StatusSource is what StatusService is served from. It may be called concurrently.
type StatusSource interface {
	// Status is complete in the coordinator that leads.
	Status() *weirv1.GetStatusResponse
	// Splits returns a page and whether there are more, and fails with
	// quota.ErrUnavailable where another coordinator leads.
	Splits(SplitSelection) (page []*weirv1.QuotaSplit, more bool, err error)
}

// SplitSelection selects splits.
type SplitSelection struct {
	Policy, Search string
	Region         quota.Region
	Any            []weirv1.SplitCondition
	After          quota.ID
	Limit          int
}

// LedgerKeeper is what LedgerService is served from.
type LedgerKeeper interface {
	Distrust(ctx context.Context, by policystore.Edit) error
	Trust(ctx context.Context, by policystore.Edit, force bool) error
}

// StatusConfig is what StatusService and LedgerService are served from.
type StatusConfig struct {
	// Name of this coordinator.
	Name   string
	Source StatusSource
	// Ledger is nil where the ledger is not kept; LedgerService is left out then.
	Ledger LedgerKeeper
	// Leader returns the URL of the coordinator that leads, if it is another one and
	// known. Nil means that this is the only coordinator.
	Leader func() string
}

const (
	// forwardedHeader marks a call that a coordinator makes for a caller. It is
	// answered by whom it reaches: two that take each other for the leader do not
	// send a call in circles.
	forwardedHeader = "Weir-Forwarded-By"
	// forwardTimeout bounds the wait for the leader.
	forwardTimeout = 3 * time.Second
)

// errNotLeading says that what was asked for is known to the leader only, and that it
// cannot be asked.
var errNotLeading = fmt.Errorf("the leader cannot be asked: %w", quota.ErrUnavailable)

// notLeadingError is errNotLeading with a text that is for the caller.
type notLeadingError struct{ why string }

func notLeading(format string, args ...any) error {
	return &notLeadingError{fmt.Sprintf(format, args...)}
}

func (e *notLeadingError) Error() string { return e.why }

func (e *notLeadingError) Unwrap() error { return errNotLeading }

// statusHandler serves StatusService and LedgerService.
type statusHandler struct {
	cfg  StatusConfig
	http *http.Client
}

var (
	_ weirv1connect.StatusServiceHandler = (*statusHandler)(nil)
	_ weirv1connect.LedgerServiceHandler = (*statusHandler)(nil)
)

// forward makes a call to the leader in the caller's name. It returns errNotLeading,
// with the reason, when there is nobody to ask.
func forward[Req, Res any](
	ctx context.Context, h *statusHandler, m *Req, procedure func(url string) func(context.Context, *Req) (*Res, error),
) (*Res, error) {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	switch {
	case h.cfg.Leader == nil:
		return nil, notLeading("this coordinator is the only one, and has not loaded its ledger yet; ask again")
	case ok && info.RequestHeader().Get(forwardedHeader) != "":
		return nil, notLeading("this coordinator does not lead, or not yet, though %s takes it for the leader; ask again in some seconds",
			info.RequestHeader().Get(forwardedHeader))
	}
	url := h.cfg.Leader()
	if url == "" {
		return nil, notLeading("this coordinator cannot tell who leads; a new leader takes up to twelve seconds")
	}
	out, call := connect.NewClientContext(ctx)
	out, cancel := context.WithTimeout(out, forwardTimeout)
	defer cancel()
	if ok {
		if token := info.RequestHeader().Get("Authorization"); token != "" {
			call.RequestHeader().Set("Authorization", token)
		}
	}
	call.RequestHeader().Set(forwardedHeader, h.cfg.Name)
	res, err := procedure(url)(out, m)
	if err == nil {
		return res, nil
	}
	if err = decodeError("ask the leader", err); errors.Is(err, quota.ErrUnavailable) || out.Err() != nil && ctx.Err() == nil {
		return nil, notLeading("this coordinator does not lead, and the leader, %s, did not answer it; ask there, or wait for another leader", url)
	}
	return nil, err
}

func (h *statusHandler) status(url string) weirv1connect.StatusServiceClient {
	return weirv1connect.NewStatusServiceClient(h.http, url, connect.WithReadMaxBytes(maxAnswerBytes))
}

func (h *statusHandler) ledger(url string) weirv1connect.LedgerServiceClient {
	return weirv1connect.NewLedgerServiceClient(h.http, url, connect.WithReadMaxBytes(maxReadBytes))
}

// GetStatus answers with what the leader knows. Where it cannot be asked, what this
// coordinator knows is better than an error: who leads, as far as it can tell.
func (h *statusHandler) GetStatus(ctx context.Context, m *weirv1.GetStatusRequest) (*weirv1.GetStatusResponse, error) {
	own := h.cfg.Source.Status()
	if own.GetComplete() {
		return own, nil
	}
	res, err := forward(ctx, h, m, func(url string) func(context.Context, *weirv1.GetStatusRequest) (*weirv1.GetStatusResponse, error) {
		return h.status(url).GetStatus
	})
	if err == nil {
		return res, nil
	}
	if cause := ctx.Err(); cause != nil {
		return nil, cause
	}
	own.Problem = err.Error()
	return own, nil
}

func (h *statusHandler) ListSplits(ctx context.Context, m *weirv1.ListSplitsRequest) (*weirv1.ListSplitsResponse, error) {
	var p problems
	q := SplitSelection{Policy: m.GetPolicy(), Search: m.GetSearch(), Any: m.GetAny(), Limit: p.pageSize(m.GetPageSize(), maxPage)}
	p.optionalID("policy", m.GetPolicy())
	p.search("search", m.GetSearch())
	if m.GetRegion() != "" {
		q.Region = p.region("region", m.GetRegion())
	}
	for _, c := range m.GetAny() {
		if weirv1.SplitCondition_name[int32(c)] == "" || c == weirv1.SplitCondition_SPLIT_CONDITION_UNSPECIFIED {
			p.add("any", "%d is not a condition; use PENDING, DRAINING, NOT_EFFECTIVE or SMALL", c)
			break
		}
	}
	if after := p.overrideToken(m.GetPageToken()); after != nil {
		q.After = quota.ID{Policy: after.Policy, Key: after.Key[0]}
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	page, more, err := h.cfg.Source.Splits(q)
	if errors.Is(err, quota.ErrUnavailable) {
		return forward(ctx, h, m, func(url string) func(context.Context, *weirv1.ListSplitsRequest) (*weirv1.ListSplitsResponse, error) {
			return h.status(url).ListSplits
		})
	}
	if err != nil {
		return nil, err
	}
	out := &weirv1.ListSplitsResponse{Splits: page}
	if more {
		last := toID(page[len(page)-1].GetId())
		out.NextPageToken = overrideToken(policystore.OverrideID{Policy: last.Policy, Key: []string{last.Key}})
	}
	return out, nil
}

func (h *statusHandler) by(ctx context.Context, author, message string) policystore.Edit {
	if p, ok := principalOf(ctx); ok {
		author = p.ID
	} else if author == "" {
		author = anonymous
	}
	return policystore.Edit{Author: author, Message: message}
}

// DistrustLedger is done by the leader, who then begins anew at once, or here when it
// does not answer: the database refuses what the leader commits from then on.
func (h *statusHandler) DistrustLedger(ctx context.Context, m *weirv1.DistrustLedgerRequest) (*weirv1.DistrustLedgerResponse, error) {
	if !h.cfg.Source.Status().GetComplete() {
		res, err := forward(ctx, h, m, func(url string) func(context.Context, *weirv1.DistrustLedgerRequest) (*weirv1.DistrustLedgerResponse, error) {
			return h.ledger(url).DistrustLedger
		})
		if !errors.Is(err, errNotLeading) {
			return res, err
		}
	}
	if err := h.cfg.Ledger.Distrust(ctx, h.by(ctx, m.GetAuthor(), m.GetMessage())); err != nil {
		return nil, err
	}
	return &weirv1.DistrustLedgerResponse{}, nil
}

// TrustLedger is done by the leader, which alone knows whom it waits for. With force it
// is done here when there is none.
func (h *statusHandler) TrustLedger(ctx context.Context, m *weirv1.TrustLedgerRequest) (*weirv1.TrustLedgerResponse, error) {
	if !h.cfg.Source.Status().GetComplete() {
		res, err := forward(ctx, h, m, func(url string) func(context.Context, *weirv1.TrustLedgerRequest) (*weirv1.TrustLedgerResponse, error) {
			return h.ledger(url).TrustLedger
		})
		if !m.GetForce() || !errors.Is(err, errNotLeading) {
			return res, err
		}
	}
	if err := h.cfg.Ledger.Trust(ctx, h.by(ctx, m.GetAuthor(), m.GetMessage()), m.GetForce()); err != nil {
		return nil, err
	}
	return &weirv1.TrustLedgerResponse{}, nil
}
