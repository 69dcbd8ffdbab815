package policystore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirhq/weir/quota"
)

// ErrCompacted says that changes after the position asked for have been
// forgotten, so that only reading everything again gives the whole state.
var ErrCompacted = errors.New("changes have been compacted")

// ConflictError says that the set is not at the revision that a change was made
// for, and who changed what since. It wraps quota.ErrConflict.
type ConflictError struct {
	// Expected is what the caller asked for, Current what the store holds.
	Expected, Current int64
	// Since are the revisions after Expected, newest first, at most
	// MaxConflictRevisions of them. None when Expected is not reached yet.
	Since []Revision
}

// MaxConflictRevisions is how many revisions a ConflictError lists.
const MaxConflictRevisions = 10

func (e *ConflictError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "expected revision %d, but the current one is %d", e.Expected, e.Current)
	for i, r := range e.Since {
		sep := ": "
		if i > 0 {
			sep = "; "
		}
		fmt.Fprintf(&b, "%srevision %d by %s", sep, r.Number, r.Author)
		if r.Message != "" {
			fmt.Fprintf(&b, " (%q)", r.Message)
		}
		fmt.Fprintf(&b, " %s", r.Summary)
	}
	if n := e.Current - e.Expected; n > int64(len(e.Since)) && len(e.Since) > 0 {
		fmt.Fprintf(&b, "; and %d more before", n-int64(len(e.Since)))
	}
	return b.String()
}

func (e *ConflictError) Unwrap() error { return quota.ErrConflict }

// RolloutError says that the newest revision is live in some regions only, and
// that a patch on top of it would carry it elsewhere unseen. It wraps quota.ErrConflict.
type RolloutError struct {
	Revision Revision
}

func (e *RolloutError) Error() string {
	regions := make([]string, len(e.Revision.Regions))
	for i, r := range e.Revision.Regions {
		regions[i] = string(r)
	}
	return fmt.Sprintf("revision %d by %s is live in %s only: make it live everywhere (roll back to %d) or undo it (roll back to an earlier one) first",
		e.Revision.Number, e.Revision.Author, strings.Join(regions, ", "), e.Revision.Number)
}

func (e *RolloutError) Unwrap() error { return quota.ErrConflict }

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", quota.ErrInvalid, fmt.Sprintf(format, args...))
}

func notFoundf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", quota.ErrNotFound, fmt.Sprintf(format, args...))
}
