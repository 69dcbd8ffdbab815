package rpc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirhq/weir/quota"
)

// errorDomain is the domain of every ErrorInfo detail that Weir sends.
const errorDomain = "weir"

// overloadRetry is the advice sent when this node itself is overloaded.
const overloadRetry = time.Second

// rule is one line of the error table.
type rule struct {
	sentinel error
	code     connect.Code
	// reason travels as ErrorInfo, so that a client recovers the sentinel even
	// where two share a code.
	reason string
	// message replaces the error's text, which may name addresses and keys.
	// Empty sends the text: it is written for the caller.
	message string
	// retry, when not zero, tells the caller when to come back.
	retry time.Duration
}

// table is the only place where domain errors and RPC codes meet. The first
// sentinel that the error wraps decides. What wraps none is internal: an id is
// sent and the details are logged beside it.
//
// Overload is resource_exhausted (HTTP 429), not unavailable, because client
// libraries repeat unavailable at once, which is the last thing an overloaded
// node needs. It cannot be taken for a denial: a denial is never an error here.
var table = [...]rule{
	{
		// Before ErrUnauthenticated, which it wraps.
		sentinel: errThrottled, code: connect.CodeResourceExhausted, reason: "TOO_MANY_ATTEMPTS",
		message: "too many failed attempts to authenticate from this address; wait, and check the token", retry: throttleRetry,
	},
	{sentinel: quota.ErrUnauthenticated, code: connect.CodeUnauthenticated, reason: "UNAUTHENTICATED"},
	{sentinel: quota.ErrForbidden, code: connect.CodePermissionDenied, reason: "FORBIDDEN"},
	{sentinel: quota.ErrInvalid, code: connect.CodeInvalidArgument, reason: "INVALID"},
	{sentinel: quota.ErrNotFound, code: connect.CodeNotFound, reason: "NOT_FOUND"},
	{sentinel: quota.ErrConflict, code: connect.CodeAborted, reason: "CONFLICT"},
	{
		sentinel: quota.ErrFenced, code: connect.CodeFailedPrecondition, reason: "FENCED",
		message: "a newer leader or dataset exists; what this caller holds is out of date",
	},
	{
		sentinel: quota.ErrOverloaded, code: connect.CodeResourceExhausted, reason: "OVERLOADED",
		message: "this node is overloaded; the call was not decided", retry: overloadRetry,
	},
	{
		sentinel: quota.ErrUninitialised, code: connect.CodeUnavailable, reason: "UNINITIALISED",
		message: "the region's store is not initialised yet",
	},
	{sentinel: errNotLeading, code: connect.CodeUnavailable, reason: "NOT_LEADING"},
	{
		sentinel: quota.ErrUnavailable, code: connect.CodeUnavailable, reason: "UNAVAILABLE",
		message: "a store or a peer did not answer",
	},
}

// violation is one thing wrong with a request.
type violation struct {
	field   string
	problem string
}

// invalidError lists what is wrong with a request. It wraps quota.ErrInvalid.
type invalidError struct{ violations []violation }

func (e *invalidError) Error() string {
	parts := make([]string, len(e.violations))
	for i, v := range e.violations {
		parts[i] = v.field + ": " + v.problem
	}
	return strings.Join(parts, "; ")
}

func (e *invalidError) Unwrap() error { return quota.ErrInvalid }

// errorMapper turns what handlers return into what is sent.
type errorMapper struct{ log *slog.Logger }

// encode returns the error to send for err, logging what is not sent.
func (m errorMapper) encode(ctx context.Context, procedure string, err error) *connect.Error {
	// The caller's own deadline comes first: a store that gave up because of
	// it is not unavailable.
	if cause := ctx.Err(); cause != nil && errors.Is(err, cause) {
		return contextError(cause)
	}
	for i := range table {
		if errors.Is(err, table[i].sentinel) {
			return m.fromRule(ctx, &table[i], procedure, err)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return contextError(err)
	}
	return m.internal(ctx, procedure, err)
}

func contextError(err error) *connect.Error {
	if errors.Is(err, context.Canceled) {
		return connect.NewError(connect.CodeCanceled, errors.New("the caller went away"))
	}
	return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the deadline passed before a decision"))
}

func (m errorMapper) fromRule(ctx context.Context, r *rule, procedure string, err error) *connect.Error {
	message := r.message
	detail := policyDetail(err)
	switch {
	case detail != nil:
		message = detail.message
	case message == "":
		message = err.Error()
	default:
		m.log.DebugContext(ctx, "call failed", "procedure", procedure, "code", r.code.String(), "error", err)
	}
	out := connect.NewError(r.code, errors.New(message))
	addDetail(out, &errdetails.ErrorInfo{Reason: r.reason, Domain: errorDomain})
	if detail != nil {
		addDetail(out, detail.body)
	}
	if invalid, ok := errors.AsType[*invalidError](err); ok {
		bad := &errdetails.BadRequest{}
		for _, v := range invalid.violations {
			bad.FieldViolations = append(bad.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: v.field, Description: v.problem})
		}
		addDetail(out, bad)
	}
	if r.retry > 0 {
		addDetail(out, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retry)})
		out.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.retry.Seconds()))))
	}
	return out
}

// internal hides err behind an id that the log has too.
func (m errorMapper) internal(ctx context.Context, procedure string, err error) *connect.Error {
	id := newErrorID()
	m.log.ErrorContext(ctx, "internal error", "id", id, "procedure", procedure, "error", err)
	out := connect.NewError(connect.CodeInternal, fmt.Errorf("internal error %s; the server's log has the details", id))
	addDetail(out, &errdetails.ErrorInfo{
		Reason: "INTERNAL", Domain: errorDomain, Metadata: map[string]string{"id": id},
	})
	return out
}

func newErrorID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// addDetail drops a detail that cannot be encoded: the code and the message
// say enough without it.
func addDetail(e *connect.Error, m proto.Message) {
	if d, err := connect.NewErrorDetail(m); err == nil {
		e.AddDetail(d)
	}
}

// decodeError turns an error of a Connect client into the domain's words. The
// result wraps the sentinel that the server had, where there is one.
func decodeError(operation string, err error) error {
	if err == nil {
		return nil
	}
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return fmt.Errorf("%s: %w: %w", operation, quota.ErrUnavailable, err)
	}
	if rich := detailOf(ce); rich != nil {
		return fmt.Errorf("%s: %w", operation, rich)
	}
	if sentinel := sentinelOf(ce); sentinel != nil {
		// Not wrapped: connect's type must not travel on, or an answer of another
		// server could pass for one of ours.
		return fmt.Errorf("%s: %w: %s", operation, sentinel, ce.Message())
	}
	switch ce.Code() {
	case connect.CodeCanceled:
		// Not by this caller, see fail: the library also says so of a connection that
		// was accepted and closed, as a proxy in front of a dead server does.
		return fmt.Errorf("%s: %w: the connection ended: %s", operation, quota.ErrUnavailable, ce.Message())
	case connect.CodeDeadlineExceeded:
		return fmt.Errorf("%s: %w: %w", operation, quota.ErrUnavailable, context.DeadlineExceeded)
	case connect.CodeUnavailable:
		return fmt.Errorf("%s: %w: %s", operation, quota.ErrUnavailable, ce.Message())
	case connect.CodeInvalidArgument:
		return fmt.Errorf("%s: %w: %s", operation, quota.ErrInvalid, ce.Message())
	case connect.CodeUnimplemented:
		return fmt.Errorf("%s: the server does not offer this call; check the URL (%s)", operation, ce.Message())
	default:
		return fmt.Errorf("%s: %s: %s", operation, ce.Code(), ce.Message())
	}
}

func sentinelOf(ce *connect.Error) error {
	for _, d := range ce.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		info, ok := v.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != errorDomain {
			continue
		}
		for i := range table {
			if table[i].reason == info.GetReason() {
				return table[i].sentinel
			}
		}
	}
	return nil
}

// errPanic wraps what a handler panicked with; it has no sentinel and so
// becomes internal.
func errPanic(v any, stack []byte) error {
	return fmt.Errorf("panic: %v\n%s", v, stack)
}

// isAbort reports whether a recovered value asks net/http to drop the
// connection, which must go on up.
func isAbort(v any) bool {
	err, ok := v.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}
