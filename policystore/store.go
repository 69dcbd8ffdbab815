package policystore

import (
	"context"

	"github.com/weirhq/weir/quota"
)

// Store is the whole contract. Callers that need a part of it ask for that part.
// All methods may be called concurrently. Errors wrap the sentinels of package
// quota: ErrInvalid for input that no retry helps, ErrNotFound, ErrConflict, and
// ErrUnavailable when the backend did not answer.
type Store interface {
	Revisions
	Writer
	Overrides
	Auditor
	Watcher
}

// Revisions reads policy sets.
type Revisions interface {
	// Current is the newest revision, even if it is live in some regions only.
	Current(ctx context.Context) (Snapshot, error)
	// InForce is the newest revision that is live in the region.
	InForce(ctx context.Context, region quota.Region) (Snapshot, error)
	// At is an earlier revision; ErrNotFound when there is none of that number.
	At(ctx context.Context, number int64) (Snapshot, error)
	// ListRevisions lists the history, newest first.
	ListRevisions(ctx context.Context, q RevisionQuery) ([]Revision, error)
	// Position tells cheaply whether anything changed, for a poll.
	Position(ctx context.Context) (Position, error)
}

// Writer changes the policy set. Each call is atomic: one revision and one
// audit row, or nothing. A change that changes nothing commits nothing.
type Writer interface {
	// Apply commits a whole set or a patch. When Change.Expect is set and is
	// not the current revision, it returns a *ConflictError.
	Apply(ctx context.Context, c Change) (Applied, error)
	// Rollback commits a new revision equal to an earlier one.
	Rollback(ctx context.Context, r Rollback) (Applied, error)
}

// Overrides keeps the numbers of single keys. An override stays when its policy
// is removed, so that a rollback restores both; it has no effect meanwhile.
type Overrides interface {
	// SetOverrides adds or replaces all of them or none.
	SetOverrides(ctx context.Context, by Edit, set []quota.Override) error
	// DeleteOverrides removes all of them, or none with ErrNotFound.
	DeleteOverrides(ctx context.Context, by Edit, ids []OverrideID) error
	// Override looks one up; ErrNotFound when there is none or it has expired.
	Override(ctx context.Context, id OverrideID) (quota.Override, error)
	// ListOverrides lists those in force, ordered by policy and key.
	ListOverrides(ctx context.Context, q OverrideQuery) ([]quota.Override, error)
	// OverrideChanges lists, in the order they were made, the changes after a
	// position, at most limit of them (zero means DefaultPage). Of several
	// changes of one key only the last is listed. It returns ErrCompacted when
	// changes after that position have been forgotten, or the store has begun
	// anew; the caller then takes the Position, lists all overrides, and goes on
	// from that position. That is also how to begin.
	OverrideChanges(ctx context.Context, after int64, limit int) ([]OverrideChange, error)
}

// Auditor reads the audit log. Rows are written by the mutations themselves.
type Auditor interface {
	// Audit lists the log, newest first.
	Audit(ctx context.Context, q AuditQuery) ([]AuditEntry, error)
}

// Recorder writes to the audit log what is done elsewhere than in the store. It
// belongs to the stores but not to Store: a change of the store records itself.
type Recorder interface {
	// Record appends one row, with the newest revision.
	Record(ctx context.Context, by Edit, action Action, detail string) error
}

// Watcher wakes those who wait for changes.
type Watcher interface {
	// Watch returns a channel that receives after any change of revisions or
	// overrides. It is a wake-up and carries nothing: wake-ups merge, some may
	// be needless, and when the backend is away some may be missed, so callers
	// read the Position and also poll slowly. It is closed when ctx ends.
	Watch(ctx context.Context) <-chan struct{}
}
