package regional

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"github.com/weirhq/weir/quota"
)

// trace begins a span for a check when tracing is on. The function it returns
// ends the span, with the result or the error.
func (e *Engine) trace(ctx context.Context) (context.Context, func(*quota.Result, error)) {
	if e.cfg.Tracer == nil {
		return ctx, func(*quota.Result, error) {}
	}
	ctx, span := e.cfg.Tracer.Start(ctx, "weir.check")
	return ctx, func(res *quota.Result, err error) {
		defer span.End()
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
			return
		}
		span.SetAttributes(
			attribute.Bool("ratelimit.allowed", res.Allowed),
			attribute.Int("ratelimit.policies", len(res.Decisions)),
			attribute.Int64("ratelimit.revision", res.Revision),
		)
		for i := range res.Decisions {
			if d := &res.Decisions[i]; !d.Allowed && !d.Shadow {
				span.SetAttributes(
					attribute.String("ratelimit.policy", d.PolicyID),
					attribute.String("ratelimit.reason", d.Reason.String()),
				)
				return
			}
		}
	}
}
