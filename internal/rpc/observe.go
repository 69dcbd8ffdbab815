package rpc

import (
	"context"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"
)

// observer is the outermost interceptor of every call: it counts, recovers from
// panics, and is the one place where errors become codes.
type observer struct {
	metrics *metrics
	errors  errorMapper
}

// intercept is a connect.UnaryInterceptorFunc.
func (o *observer) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		procedure := req.Spec().Procedure
		start := time.Now()
		inFlight := o.metrics.inFlight[procedure]
		inFlight.Inc()
		defer inFlight.Dec()
		markReached(ctx)
		res, err := o.recovering(ctx, req, next)
		code := codeOK
		if err != nil {
			ce := o.errors.encode(ctx, procedure, err)
			code, err = ce.Code().String(), ce
		}
		o.metrics.done(ctx, procedure, code, time.Since(start))
		return res, err
	}
}

func (o *observer) recovering(
	ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc,
) (res connect.AnyResponse, err error) {
	defer func() {
		if v := recover(); v != nil {
			if isAbort(v) {
				panic(v) //nolint:forbidigo // net/http asks for this value to reach it
			}
			o.metrics.panics.Inc()
			res, err = nil, errPanic(v, debug.Stack())
		}
	}()
	return next(ctx, req)
}

type reachedKey struct{}

// markReached notes that a call got as far as its procedure.
func markReached(ctx context.Context) {
	if reached, ok := ctx.Value(reachedKey{}).(*bool); ok {
		*reached = true
	}
}

// countRejected counts requests that Connect refuses before any interceptor
// runs: those that it cannot decode.
func (o *observer) countRejected(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached := new(bool)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), reachedKey{}, reached)))
		if !*reached {
			o.metrics.rejected.Inc()
		}
	})
}
