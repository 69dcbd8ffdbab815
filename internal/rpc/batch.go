package rpc

import (
	"context"
	"fmt"
	"strconv"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/quota"
)

// CheckBatch decides each check on its own: one that is malformed fails alone.
// An Idempotency-Key header gives every check without an id of its own one that
// is derived from its place, so that a repeated batch is charged once.
func (h *limiterHandler) CheckBatch(
	ctx context.Context, m *weirv1.CheckBatchRequest,
) (*weirv1.CheckBatchResponse, error) {
	checks := m.GetChecks()
	var p problems
	switch {
	case len(checks) == 0:
		p.add("checks", "empty; send at least one")
	case len(checks) > MaxBatch:
		p.add("checks", "%d of them; send at most %d and split the rest", len(checks), MaxBatch)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	key, err := idempotencyKey(ctx)
	if err != nil {
		return nil, err
	}
	results := make([]*weirv1.CheckResult, len(checks))
	requests := make([]quota.Request, 0, len(checks))
	places := make([]int, 0, len(checks))
	for i, check := range checks {
		req, err := toCheck(check, placeKey(check, key, i))
		if err != nil {
			results[i] = h.failed(ctx, err)
			continue
		}
		requests, places = append(requests, req), append(places, i)
	}
	if len(requests) == 0 {
		return &weirv1.CheckBatchResponse{Results: results}, nil
	}
	decided, errs := h.limiter.CheckBatch(ctx, requests)
	if len(decided) != len(requests) || len(errs) != len(requests) {
		return nil, fmt.Errorf("batch of %d checks came back with %d results and %d errors", len(requests), len(decided), len(errs))
	}
	for j, i := range places {
		if errs[j] != nil {
			results[i] = h.failed(ctx, errs[j])
			continue
		}
		results[i] = &weirv1.CheckResult{Outcome: &weirv1.CheckResult_Response{
			Response: h.checkResponse(checks[i], &requests[j], &decided[j]),
		}}
	}
	return &weirv1.CheckBatchResponse{Results: results}, nil
}

// placeKey derives the id of the i-th check from the batch's; one that has its
// own keeps it.
func placeKey(m *weirv1.CheckRequest, key string, i int) string {
	if key == "" || m.GetRequestId() != "" {
		return ""
	}
	return key + "#" + strconv.Itoa(i)
}

func (h *limiterHandler) failed(ctx context.Context, err error) *weirv1.CheckResult {
	ce := h.errors.encode(ctx, weirv1connect.LimiterServiceCheckBatchProcedure, err)
	return &weirv1.CheckResult{Outcome: &weirv1.CheckResult_Error{
		Error: &weirv1.CheckError{Code: ce.Code().String(), Message: ce.Message()},
	}}
}
