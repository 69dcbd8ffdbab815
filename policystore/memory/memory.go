package memory

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// Store is a policystore.Store in memory.
type Store struct {
	policystore.Wakeups
	now func() time.Time

	mu sync.RWMutex
	// history[n] is revision n; history[0] is the empty set. Snapshots in it
	// are never changed and never leave the store uncloned.
	history   []policystore.Snapshot
	audit     []policystore.AuditEntry
	overrides table
	tokens    map[policystore.TokenHash]policystore.Token
}

var _ policystore.Store = (*Store)(nil)

// New returns an empty store. now is its clock; nil means time.Now.
func New(now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	return &Store{
		now: now, history: make([]policystore.Snapshot, 1), overrides: newTable(),
		tokens: make(map[policystore.TokenHash]policystore.Token),
	}
}

// Apply commits a whole set or a patch.
func (s *Store) Apply(ctx context.Context, c policystore.Change) (policystore.Applied, error) {
	return s.commit(ctx, c.Expect, func(head policystore.Snapshot) (policystore.Plan, error) {
		return policystore.PlanChange(head, c, s.now())
	})
}

// Rollback commits a new revision equal to an earlier one.
func (s *Store) Rollback(ctx context.Context, r policystore.Rollback) (policystore.Applied, error) {
	return s.commit(ctx, r.Expect, func(head policystore.Snapshot) (policystore.Plan, error) {
		target, err := s.atLocked(r.To)
		if err != nil {
			return policystore.Plan{}, err
		}
		return policystore.PlanRollback(head, target, r, s.now())
	})
}

func (s *Store) commit(ctx context.Context, expect *int64, plan func(head policystore.Snapshot) (policystore.Plan, error)) (policystore.Applied, error) {
	if err := ctx.Err(); err != nil {
		return policystore.Applied{}, err
	}
	applied, err := s.commitLocked(expect, plan)
	if applied.Committed {
		s.Wake()
	}
	return applied, err
}

// commitLocked takes the lock itself, so that Wake happens after it is given back.
func (s *Store) commitLocked(expect *int64, plan func(head policystore.Snapshot) (policystore.Plan, error)) (policystore.Applied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head := s.headLocked()
	if policystore.Stale(expect, head.Number) {
		return policystore.Applied{}, policystore.NewConflict(*expect, head.Number, s.sinceLocked(*expect))
	}
	p, err := plan(head)
	if err != nil {
		return policystore.Applied{}, err
	}
	out := policystore.Applied{Revision: head.Revision, Diff: p.Diff.Clone(), Committed: p.Commit}
	if p.Commit {
		out.Revision = p.Next.Revision
		s.history = append(s.history, p.Next)
		s.recordLocked(p.Audit)
	}
	out.Revision = out.Revision.Clone()
	return out, nil
}

// sinceLocked lists the revisions after a number, newest first.
func (s *Store) sinceLocked(number int64) []policystore.Revision {
	var out []policystore.Revision
	for n := len(s.history) - 1; int64(n) > max(number, 0) && len(out) < policystore.MaxConflictRevisions; n-- {
		out = append(out, s.history[n].Revision)
	}
	return out
}

func (s *Store) headLocked() policystore.Snapshot { return s.history[len(s.history)-1] }

func (s *Store) atLocked(number int64) (policystore.Snapshot, error) {
	if number < 0 || number >= int64(len(s.history)) {
		return policystore.Snapshot{}, policystore.NoRevision(number)
	}
	return s.history[number], nil
}

func (s *Store) recordLocked(e policystore.AuditEntry) {
	e.Number = int64(len(s.audit)) + 1
	s.audit = append(s.audit, e)
}

// Current is the newest revision.
func (s *Store) Current(ctx context.Context) (policystore.Snapshot, error) {
	return s.read(ctx, func() (policystore.Snapshot, error) { return s.headLocked(), nil })
}

// At is an earlier revision.
func (s *Store) At(ctx context.Context, number int64) (policystore.Snapshot, error) {
	return s.read(ctx, func() (policystore.Snapshot, error) { return s.atLocked(number) })
}

// InForce is the newest revision that is live in the region.
func (s *Store) InForce(ctx context.Context, region quota.Region) (policystore.Snapshot, error) {
	return s.read(ctx, func() (policystore.Snapshot, error) {
		for _, snap := range slices.Backward(s.history) {
			if snap.LiveIn(region) {
				return snap, nil
			}
		}
		return s.history[0], nil
	})
}

// read copies outside the lock: what is in the history never changes.
func (s *Store) read(ctx context.Context, get func() (policystore.Snapshot, error)) (policystore.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return policystore.Snapshot{}, err
	}
	s.mu.RLock()
	snap, err := get()
	s.mu.RUnlock()
	return snap.Clone(), err
}

// ListRevisions lists the history, newest first.
func (s *Store) ListRevisions(ctx context.Context, q policystore.RevisionQuery) ([]policystore.Revision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []policystore.Revision
	for _, snap := range slices.Backward(s.history[1:]) {
		r := snap.Revision
		switch {
		case q.Before > 0 && r.Number >= q.Before:
		case q.Author != "" && r.Author != q.Author:
		case !strings.Contains(r.Message, q.Search):
		default:
			out = append(out, r.Clone())
		}
		if len(out) == policystore.PageLimit(q.Limit) {
			break
		}
	}
	return out, nil
}

// Audit lists the audit log, newest first.
func (s *Store) Audit(ctx context.Context, q policystore.AuditQuery) ([]policystore.AuditEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []policystore.AuditEntry
	for _, e := range slices.Backward(s.audit) {
		switch {
		case q.Before > 0 && e.Number >= q.Before:
		case q.Author != "" && e.Author != q.Author:
		case q.Action != "" && e.Action != q.Action:
		case !strings.Contains(e.Message, q.Search) && !strings.Contains(e.Detail, q.Search):
		default:
			out = append(out, e)
		}
		if len(out) == policystore.PageLimit(q.Limit) {
			break
		}
	}
	return out, nil
}

// Position tells whether anything changed.
func (s *Store) Position(ctx context.Context) (policystore.Position, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return policystore.Position{Revision: s.headLocked().Number, Overrides: s.overrides.position}, ctx.Err()
}
