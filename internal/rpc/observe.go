package rpc

import (
	"context"
	"errors"
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

var _ connect.Interceptor = (*observer)(nil)

// WrapUnary observes calls.
func (o *observer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		procedure := req.Spec().Procedure
		start := time.Now()
		inFlight := o.metrics.inFlight[procedure]
		inFlight.Inc()
		defer inFlight.Dec()
		markReached(ctx)
		var res connect.AnyResponse
		err := o.recovering(func() (err error) {
			res, err = next(ctx, req)
			return err
		})
		code := codeOK
		if err != nil {
			ce := o.errors.encode(ctx, procedure, err)
			code, err = ce.Code().String(), ce
		}
		o.metrics.done(ctx, procedure, code, time.Since(start))
		if err != nil {
			return nil, err
		}
		return res, nil
	}
}

// WrapStreamingHandler observes streams. They count when they end, and how long
// they lasted tells nothing.
func (o *observer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		procedure := conn.Spec().Procedure
		inFlight := o.metrics.inFlight[procedure]
		inFlight.Inc()
		defer inFlight.Dec()
		markReached(ctx)
		err := o.recovering(func() error { return next(ctx, conn) })
		code := codeOK
		if err != nil {
			// Handlers return no errors of Connect: such a one says that the
			// message could not be read, which of a stream is found out here.
			ce, unread := errors.AsType[*connect.Error](err)
			if !unread {
				ce = o.errors.encode(ctx, procedure, err)
			}
			code, err = ce.Code().String(), ce
		}
		o.metrics.requests[procedure][code].Inc()
		return err
	}
}

// WrapStreamingClient is part of the interface; nothing here is a client.
func (*observer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (o *observer) recovering(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			if isAbort(v) {
				panic(v) //nolint:forbidigo // net/http asks for this value to reach it
			}
			o.metrics.panics.Inc()
			err = errPanic(v, debug.Stack())
		}
	}()
	return call()
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
