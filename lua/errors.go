package lua

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/quota"
)

// Error is a failure of the store. It is quota.ErrUnavailable to errors.Is.
type Error struct {
	kind  string
	ran   bool
	cause error
}

// Kind is one of a small fixed set of names, fit for a metric's label.
func (e *Error) Kind() string { return e.kind }

// MayHaveRun reports whether Redis may have executed the call all the same.
func (e *Error) MayHaveRun() bool { return e.ran }

func (e *Error) Error() string { return fmt.Sprintf("store: %s: %v", e.kind, e.cause) }

// Unwrap makes the error quota.ErrUnavailable as well as its cause.
func (e *Error) Unwrap() []error { return []error{quota.ErrUnavailable, e.cause} }

// refusals are the replies by which Redis says that it did not run a call, by the
// word they begin with. retry says whether the same call may succeed in a moment.
var refusals = []struct {
	prefix, kind string
	retry        bool
}{
	{"NOSCRIPT", "noscript", true},
	{"MOVED", "moved", true},
	{"ASK", "moved", true},
	{"TRYAGAIN", "tryagain", true},
	{"CLUSTERDOWN", "clusterdown", true},
	{"LOADING", "loading", true},
	{"MASTERDOWN", "clusterdown", true},
	{"READONLY", "readonly", true},
	{"BUSY", "busy", false},
	{"OOM", "oom", false},
	{"MISCONF", "misconf", false},
	{"NOAUTH", "auth", false},
	{"WRONGPASS", "auth", false},
	{"NOPERM", "auth", false},
	{"CROSSSLOT", "crossslot", false},
	{"ERR max number of clients", "maxclients", false},
}

// interpret turns an error of the client into one of this package. It recognises
// server replies by their error code, which is what the protocol defines them by.
func interpret(err error) (e *Error, retry bool) {
	if known := (*Error)(nil); errors.As(err, &known) {
		return known, false
	}
	for _, r := range refusals {
		if redis.HasErrorPrefix(err, r.prefix) {
			return &Error{kind: r.kind, cause: err}, r.retry
		}
	}
	var reply redis.Error
	var netErr net.Error
	var op *net.OpError
	switch {
	case errors.As(err, &reply):
		// A script stopped half way: what it wrote before stays.
		return &Error{kind: "script", ran: true, cause: err}, false
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &Error{kind: "timeout", ran: true, cause: err}, false
	case errors.As(err, &op) && op.Op == "dial":
		return &Error{kind: "connect", cause: err}, false
	case errors.As(err, &netErr) && netErr.Timeout():
		return &Error{kind: "timeout", ran: true, cause: err}, false
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return &Error{kind: "connection", ran: true, cause: err}, false
	case errors.Is(err, redis.ErrClosed):
		return &Error{kind: "closed", cause: err}, false
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return &Error{kind: "pool", cause: err}, false
	}
	return &Error{kind: "other", ran: true, cause: err}, false
}
