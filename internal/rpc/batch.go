package rpc

import (
	"context"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
)

// batchParallel is how many checks of one batch are under way at a time. The
// engine sends those of one shard together, so more would gain little and let
// one caller crowd out the others.
const batchParallel = 64

// CheckBatch decides each check on its own. An Idempotency-Key header gives
// every check without an id of its own one that is derived from its place, so
// that a repeated batch is charged once.
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
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(batchParallel, len(checks)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(checks); i = int(next.Add(1)) - 1 {
				results[i] = h.checkOne(ctx, checks[i], key, i)
			}
		})
	}
	workers.Wait()
	return &weirv1.CheckBatchResponse{Results: results}, nil
}

// checkOne never fails and never panics: a panic on a goroutine of our own
// would take the process with it.
func (h *limiterHandler) checkOne(
	ctx context.Context, m *weirv1.CheckRequest, key string, i int,
) (result *weirv1.CheckResult) {
	fail := func(err error) *weirv1.CheckResult {
		ce := h.errors.encode(ctx, weirv1connect.LimiterServiceCheckBatchProcedure, err)
		return &weirv1.CheckResult{Outcome: &weirv1.CheckResult_Error{
			Error: &weirv1.CheckError{Code: ce.Code().String(), Message: ce.Message()},
		}}
	}
	defer func() {
		if v := recover(); v != nil {
			result = fail(errPanic(v, debug.Stack()))
		}
	}()
	if key != "" {
		if m.GetRequestId() != "" {
			key = ""
		} else {
			key += "#" + strconv.Itoa(i)
		}
	}
	response, err := h.check(ctx, m, key)
	if err != nil {
		return fail(err)
	}
	return &weirv1.CheckResult{Outcome: &weirv1.CheckResult_Response{Response: response}}
}
