package rpc

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// Bounds of what an error carries: gRPC sends it in trailers, which proxies bound.
const (
	maxErrorProblems = 50
	maxErrorLines    = 5
	maxErrorIDs      = 20
	maxErrorText     = 200
)

// errorDetail is an error of PolicyService with what a program can read of it.
type errorDetail struct {
	message string
	body    proto.Message
}

// policyDetail returns nil for errors that are said by their text alone.
func policyDetail(err error) *errorDetail {
	if doc, ok := errors.AsType[*quota.DocumentError](err); ok {
		shown := doc.Problems[:min(len(doc.Problems), maxErrorProblems)]
		return &errorDetail{documentMessage(doc), &weirv1.Problems{
			Problems: fromProblems(shown), Omitted: int32(len(doc.Problems) - len(shown) + doc.Omitted),
		}}
	}
	if conflict, ok := errors.AsType[*policystore.ConflictError](err); ok {
		short := *conflict
		short.Since = make([]policystore.Revision, len(conflict.Since))
		body := &weirv1.Conflict{Expected: conflict.Expected, Current: conflict.Current}
		for i, r := range conflict.Since {
			r.Message = cut(r.Message, maxErrorText)
			short.Since[i] = r
			m := fromRevision(r)
			for _, ids := range []*[]string{&m.Summary.Added, &m.Summary.Changed, &m.Summary.Removed} {
				*ids = (*ids)[:min(len(*ids), maxErrorIDs)]
			}
			body.Since = append(body.Since, m)
		}
		return &errorDetail{short.Error(), body}
	}
	return nil
}

// documentMessage names the first problems of a document.
func documentMessage(e *quota.DocumentError) string {
	n := len(e.Problems) + e.Omitted
	lines := make([]string, 0, maxErrorLines)
	for _, p := range e.Problems[:min(len(e.Problems), maxErrorLines)] {
		lines = append(lines, cut(p.String(), 2*maxErrorText))
	}
	noun := "problems"
	if n == 1 {
		noun = "problem"
	}
	text := fmt.Sprintf("policy document: %d %s\n  %s", n, noun, strings.Join(lines, "\n  "))
	if n > len(lines) {
		text += fmt.Sprintf("\n  and %d more, which Validate lists", n-len(lines))
	}
	return text
}

// cut shortens a text to at most limit bytes.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "..."
}

// ConflictError says to a client that the revision it expected was overtaken,
// and by whom. It wraps quota.ErrConflict.
type ConflictError struct {
	Expected, Current int64
	// Since are the revisions in between, newest first, at most ten.
	Since   []Revision
	message string
}

func (e *ConflictError) Error() string { return e.message }

func (e *ConflictError) Unwrap() error { return quota.ErrConflict }

// detailOf returns the error that the details of another stand for, or nil: a
// *ConflictError, or a *quota.DocumentError with the first problems.
func detailOf(ce *connect.Error) error {
	for _, d := range ce.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		switch m := v.(type) {
		case *weirv1.Problems:
			return &quota.DocumentError{Problems: toProblems(m.GetProblems()), Omitted: int(m.GetOmitted())}
		case *weirv1.Conflict:
			e := &ConflictError{Expected: m.GetExpected(), Current: m.GetCurrent(), message: ce.Message()}
			for _, r := range m.GetSince() {
				e.Since = append(e.Since, toRevision(r))
			}
			return e
		}
	}
	return nil
}
