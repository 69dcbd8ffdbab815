package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

const revisionColumns = `number, author, message, committed_at, regions, restored_from, added, changed, removed, policies`

func scanRevision(row pgx.CollectableRow) (policystore.Revision, error) {
	var (
		r       policystore.Revision
		regions []string
	)
	err := row.Scan(&r.Number, &r.Author, &r.Message, &r.Time, &regions, &r.RestoredFrom,
		&r.Summary.Added, &r.Summary.Changed, &r.Summary.Removed, &r.Policies)
	r.Time = r.Time.UTC()
	r.Regions = regionNames(regions)
	r.Summary.Added = orNil(r.Summary.Added)
	r.Summary.Changed = orNil(r.Summary.Changed)
	r.Summary.Removed = orNil(r.Summary.Removed)
	return r, err
}

// orNil: an empty array is no list.
func orNil(s []string) []string {
	if len(s) == 0 {
		return nil
	}
	return s
}

// orEmpty: no list is an empty array, and not NULL.
func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// Apply commits a whole set or a patch.
func (s *Store) Apply(ctx context.Context, c policystore.Change) (policystore.Applied, error) {
	return s.commit(ctx, "apply policies", c.Expect, func(_ pgx.Tx, head policystore.Snapshot) (policystore.Plan, error) {
		return policystore.PlanChange(head, c, s.now())
	})
}

// Rollback commits a new revision equal to an earlier one.
func (s *Store) Rollback(ctx context.Context, r policystore.Rollback) (policystore.Applied, error) {
	return s.commit(ctx, "roll back policies", r.Expect, func(tx pgx.Tx, head policystore.Snapshot) (policystore.Plan, error) {
		target, err := s.load(ctx, tx, r.To)
		if err != nil {
			return policystore.Plan{}, err
		}
		return policystore.PlanRollback(head, target, r, s.now())
	})
}

func (s *Store) commit(ctx context.Context, op string, expect *int64, plan func(tx pgx.Tx, head policystore.Snapshot) (policystore.Plan, error)) (policystore.Applied, error) {
	var (
		p    policystore.Plan
		head policystore.Snapshot
	)
	err := s.change(ctx, op, func(tx pgx.Tx, st *state) (bool, error) {
		if policystore.Stale(expect, st.revision) {
			since, err := since(ctx, tx, *expect)
			if err != nil {
				return false, err
			}
			return false, policystore.NewConflict(*expect, st.revision, since)
		}
		var err error
		if head, err = s.load(ctx, tx, st.revision); err != nil {
			return false, err
		}
		if p, err = plan(tx, head); err != nil || !p.Commit {
			return false, err
		}
		st.revision = p.Next.Number
		if err := insert(ctx, tx, p); err != nil {
			return false, err
		}
		return true, st.record(ctx, tx, p.Audit)
	})
	if err != nil {
		return policystore.Applied{}, err
	}
	out := policystore.Applied{Revision: head.Revision.Clone(), Diff: p.Diff.Clone(), Committed: p.Commit}
	if p.Commit {
		s.last.Store(&p.Next)
		out.Revision = p.Next.Revision.Clone()
	}
	return out, nil
}

// since lists the newest of the revisions after a number.
func since(ctx context.Context, q querier, number int64) ([]policystore.Revision, error) {
	rows, err := q.Query(ctx, `SELECT `+revisionColumns+` FROM revisions WHERE number > $1 ORDER BY number DESC LIMIT $2`,
		number, policystore.MaxConflictRevisions)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanRevision)
}

// insert writes a new revision and the versions of the policies that differ.
func insert(ctx context.Context, tx pgx.Tx, p policystore.Plan) error {
	r := p.Next.Revision
	_, err := tx.Exec(ctx, `INSERT INTO revisions (`+revisionColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		r.Number, r.Author, r.Message, r.Time, regionTexts(r.Regions), r.RestoredFrom,
		orEmpty(r.Summary.Added), orEmpty(r.Summary.Changed), orEmpty(r.Summary.Removed), r.Policies)
	if err != nil {
		return err
	}
	if ended := slices.Concat(r.Summary.Changed, r.Summary.Removed); len(ended) > 0 {
		_, err := tx.Exec(ctx, `UPDATE policies SET until = $1 WHERE until IS NULL AND id = ANY ($2)`, r.Number, ended)
		if err != nil {
			return err
		}
	}
	begun := slices.Clone(p.Diff.Added)
	for _, c := range p.Diff.Changed {
		begun = append(begun, c.New)
	}
	rows := make([][]any, len(begun))
	for i, policy := range begun {
		body, err := policystore.EncodePolicy(policy)
		if err != nil {
			return err
		}
		rows[i] = []any{policy.ID, r.Number, json.RawMessage(body)}
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"policies"}, []string{"id", "since", "body"}, pgx.CopyFromRows(rows))
	return err
}

// Current is the newest revision.
func (s *Store) Current(ctx context.Context) (policystore.Snapshot, error) {
	return s.read(ctx, "current policies", `SELECT `+revisionColumns+` FROM revisions ORDER BY number DESC LIMIT 1`)
}

// InForce is the newest revision that is live in the region.
func (s *Store) InForce(ctx context.Context, region quota.Region) (policystore.Snapshot, error) {
	return s.read(ctx, "policies in force",
		`SELECT `+revisionColumns+` FROM revisions WHERE regions = '{}' OR $1 = ANY (regions) ORDER BY number DESC LIMIT 1`, string(region))
}

// At is an earlier revision.
func (s *Store) At(ctx context.Context, number int64) (policystore.Snapshot, error) {
	snap, err := s.load(ctx, s.pool, number)
	return snap.Clone(), translate("policies of a revision", err)
}

// read returns the revision that a statement selects, or the empty set.
func (s *Store) read(ctx context.Context, op, sql string, args ...any) (policystore.Snapshot, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return policystore.Snapshot{}, translate(op, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRevision)
	if errors.Is(err, pgx.ErrNoRows) {
		return policystore.Snapshot{}, nil
	}
	if err != nil {
		return policystore.Snapshot{}, translate(op, err)
	}
	snap, err := s.policies(ctx, s.pool, r)
	return snap.Clone(), translate(op, err)
}

// load returns a revision that must not be changed.
func (s *Store) load(ctx context.Context, q querier, number int64) (policystore.Snapshot, error) {
	if number == 0 {
		return policystore.Snapshot{}, nil
	}
	rows, err := q.Query(ctx, `SELECT `+revisionColumns+` FROM revisions WHERE number = $1`, number)
	if err != nil {
		return policystore.Snapshot{}, err
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRevision)
	if errors.Is(err, pgx.ErrNoRows) {
		return policystore.Snapshot{}, policystore.NoRevision(number)
	}
	if err != nil {
		return policystore.Snapshot{}, err
	}
	return s.policies(ctx, q, r)
}

// policies adds the policies of a revision, which must not be changed. The last
// set read is taken from memory if all that describes its revision is the same:
// after a restore from a backup a number can come again with another content.
func (s *Store) policies(ctx context.Context, q querier, r policystore.Revision) (policystore.Snapshot, error) {
	if last := s.last.Load(); last != nil && reflect.DeepEqual(last.Revision, r) {
		return *last, nil
	}
	// Each half has an index, so that the newest set costs the same however long
	// the history is.
	rows, err := q.Query(ctx, `SELECT body FROM (
			SELECT id, body FROM policies WHERE until IS NULL AND since <= $1
			UNION ALL
			SELECT id, body FROM policies WHERE until > $1 AND since <= $1
		) AS live ORDER BY id`, r.Number)
	if err != nil {
		return policystore.Snapshot{}, err
	}
	set, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*quota.Policy, error) {
		var body json.RawMessage
		if err := row.Scan(&body); err != nil {
			return nil, err
		}
		return policystore.DecodePolicy(body)
	})
	if err != nil {
		return policystore.Snapshot{}, err
	}
	snap := policystore.Snapshot{Revision: r, Policies: set}
	if last := s.last.Load(); last == nil || last.Number <= r.Number {
		s.last.Store(&snap)
	}
	return snap, nil
}

// ListRevisions lists the history, newest first.
func (s *Store) ListRevisions(ctx context.Context, q policystore.RevisionQuery) ([]policystore.Revision, error) {
	var w where
	if q.Before > 0 {
		w.and("number < %s", q.Before)
	}
	if q.Author != "" {
		w.and("author = %s", q.Author)
	}
	if q.Search != "" {
		w.and("strpos(message, %s) > 0", q.Search)
	}
	tail := w.limit("number DESC", q.Limit)
	rows, err := s.pool.Query(ctx, `SELECT `+revisionColumns+` FROM revisions`+tail, w.args...)
	if err != nil {
		return nil, translate("list revisions", err)
	}
	out, err := pgx.CollectRows(rows, scanRevision)
	return out, translate("list revisions", err)
}
