package memory

import (
	"context"
	"slices"
	"sort"
	"time"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// table holds the overrides and the order in which they changed.
type table struct {
	rows map[string]*row
	// changes lists positions in order. An entry whose row has moved on to a
	// later position is stale and skipped.
	changes  []change
	position int64
	// forgotten is the newest position among the rows that were dropped.
	forgotten int64
	// pruned is when dead rows were last looked for.
	pruned time.Time
	// sorted are the ids of all rows; nil when it has to be made again.
	sorted []policystore.OverrideID
}

type row struct {
	id       policystore.OverrideID
	position int64
	// override is nil for a row that was deleted; since when is diedAt.
	override *quota.Override
	diedAt   time.Time
}

type change struct {
	position int64
	key      string
}

func newTable() table { return table{rows: make(map[string]*row)} }

// put records a new state of one key; a nil override deletes it.
func (t *table) put(id policystore.OverrideID, o *quota.Override, now time.Time) {
	t.position++
	key := id.MapKey()
	if t.rows[key] == nil {
		t.sorted = nil
	}
	r := &row{id: id, position: t.position, override: o}
	if o == nil {
		r.diedAt = now
	}
	t.rows[key] = r
	t.changes = append(t.changes, change{position: t.position, key: key})
}

// dead returns since when a row is deleted or expired.
func (r *row) dead(now time.Time) (time.Time, bool) {
	if r.override == nil {
		return r.diedAt, true
	}
	return r.override.Expires, policystore.Expired(*r.override, now)
}

// pruneInterval keeps the search for dead rows from costing every edit.
const pruneInterval = time.Minute

// prune forgets rows that have been dead for long, and stale changes once
// they are as many as the rows.
func (t *table) prune(now time.Time) {
	if now.Sub(t.pruned) < pruneInterval {
		return
	}
	t.pruned = now
	for key, r := range t.rows {
		if since, ok := r.dead(now); ok && now.Sub(since) > policystore.OverrideRetention {
			t.forgotten = max(t.forgotten, r.position)
			delete(t.rows, key)
			t.sorted = nil
		}
	}
	if len(t.changes) > 2*len(t.rows)+1024 {
		t.changes = slices.DeleteFunc(t.changes, t.stale)
	}
}

func (t *table) stale(c change) bool {
	r := t.rows[c.key]
	return r == nil || r.position != c.position
}

func (t *table) ids() []policystore.OverrideID {
	if t.sorted == nil {
		t.sorted = make([]policystore.OverrideID, 0, len(t.rows))
		for _, r := range t.rows {
			t.sorted = append(t.sorted, r.id)
		}
		slices.SortFunc(t.sorted, policystore.OverrideID.Compare)
	}
	return t.sorted
}

// SetOverrides adds or replaces all of them or none.
func (s *Store) SetOverrides(ctx context.Context, by policystore.Edit, set []quota.Override) error {
	return s.edit(ctx, func(now time.Time, head policystore.Snapshot) (policystore.AuditEntry, error) {
		kept, err := policystore.CheckOverrides(by, set, head.Policy, now)
		if err != nil {
			return policystore.AuditEntry{}, err
		}
		ids := make([]policystore.OverrideID, len(kept))
		for i, o := range kept {
			ids[i] = policystore.IDOf(o)
			s.overrides.put(ids[i], &o, now)
		}
		return policystore.AuditEntry{
			Author: by.Author, Message: by.Message,
			Action: policystore.ActionSetOverrides, Detail: policystore.DescribeOverrides("set", ids),
		}, nil
	})
}

// DeleteOverrides removes all of them or none.
func (s *Store) DeleteOverrides(ctx context.Context, by policystore.Edit, ids []policystore.OverrideID) error {
	return s.edit(ctx, func(now time.Time, _ policystore.Snapshot) (policystore.AuditEntry, error) {
		if err := policystore.CheckOverrideIDs(by, ids); err != nil {
			return policystore.AuditEntry{}, err
		}
		for _, id := range ids {
			if s.liveLocked(id, now) == nil {
				return policystore.AuditEntry{}, policystore.NoOverride(id)
			}
		}
		for _, id := range ids {
			id.Key = slices.Clone(id.Key)
			s.overrides.put(id, nil, now)
		}
		return policystore.AuditEntry{
			Author: by.Author, Message: by.Message,
			Action: policystore.ActionDeleteOverrides, Detail: policystore.DescribeOverrides("deleted", ids),
		}, nil
	})
}

// edit runs one change of overrides under the lock and audits it.
func (s *Store) edit(ctx context.Context, do func(now time.Time, head policystore.Snapshot) (policystore.AuditEntry, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		now := s.now()
		head := s.headLocked()
		entry, err := do(now, head)
		if err != nil {
			return err
		}
		s.overrides.prune(now)
		entry.Time = now.UTC().Truncate(time.Microsecond)
		entry.Revision = head.Number
		s.recordLocked(entry)
		return nil
	}()
	if err == nil {
		s.Wake()
	}
	return err
}

func (s *Store) liveLocked(id policystore.OverrideID, now time.Time) *quota.Override {
	r := s.overrides.rows[id.MapKey()]
	if r == nil {
		return nil
	}
	if _, dead := r.dead(now); dead {
		return nil
	}
	return r.override
}

// Override looks one up.
func (s *Store) Override(ctx context.Context, id policystore.OverrideID) (quota.Override, error) {
	if err := ctx.Err(); err != nil {
		return quota.Override{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	o := s.liveLocked(id, s.now())
	if o == nil {
		return quota.Override{}, policystore.NoOverride(id)
	}
	return policystore.CloneOverride(*o), nil
}

// ListOverrides lists those in force, ordered by policy and key.
func (s *Store) ListOverrides(ctx context.Context, q policystore.OverrideQuery) ([]quota.Override, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The sorted ids may have to be made, so reading is not enough of a lock.
	s.mu.Lock()
	defer s.mu.Unlock()
	ids, now := s.overrides.ids(), s.now()
	start := 0
	if q.After != nil {
		start = sort.Search(len(ids), func(i int) bool { return ids[i].Compare(*q.After) > 0 })
	}
	var out []quota.Override
	for _, id := range ids[start:] {
		if len(out) == policystore.PageLimit(q.Limit) {
			break
		}
		if !q.Matches(id) {
			continue
		}
		if o := s.liveLocked(id, now); o != nil {
			out = append(out, policystore.CloneOverride(*o))
		}
	}
	return out, nil
}

// OverrideChanges lists the changes after a position.
func (s *Store) OverrideChanges(ctx context.Context, after int64, limit int) ([]policystore.OverrideChange, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.overrides
	if after < t.forgotten || after > t.position {
		return nil, policystore.ErrCompacted
	}
	start := sort.Search(len(t.changes), func(i int) bool { return t.changes[i].position > after })
	var out []policystore.OverrideChange
	for _, c := range t.changes[start:] {
		if len(out) == policystore.PageLimit(limit) {
			break
		}
		if t.stale(c) {
			continue
		}
		r := t.rows[c.key]
		ch := policystore.OverrideChange{Position: c.position, ID: policystore.OverrideID{Policy: r.id.Policy, Key: slices.Clone(r.id.Key)}}
		if r.override != nil {
			ch.Override = new(policystore.CloneOverride(*r.override))
		}
		out = append(out, ch)
	}
	return out, nil
}
