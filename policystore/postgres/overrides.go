package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// pruneBatch bounds how many dead overrides one change sweeps up.
const pruneBatch = 1000

const overrideColumns = `policy, key, capacity_millitokens, refill_millitokens, period_us, unlimited, expires_at`

// overrideRow is a row of the table.
type overrideRow struct {
	override quota.Override
	deleted  bool
	position int64
}

func scanOverride(row pgx.CollectableRow) (overrideRow, error) {
	var (
		r        overrideRow
		key      [][]byte
		periodUS int64
		expires  *time.Time
	)
	o := &r.override
	err := row.Scan(&o.Policy, &key, &o.Limit.Capacity, &o.Limit.Refill, &periodUS, &o.Unlimited, &expires, &r.deleted, &r.position)
	o.Limit.Period = time.Duration(periodUS) * time.Microsecond
	if expires != nil {
		o.Expires = expires.UTC()
	}
	for _, part := range key {
		o.Key = append(o.Key, string(part))
	}
	return r, err
}

func keyBytes(key []string) [][]byte {
	out := make([][]byte, len(key))
	for i, part := range key {
		out[i] = []byte(part)
	}
	return out
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// SetOverrides adds or replaces all of them or none.
func (s *Store) SetOverrides(ctx context.Context, by policystore.Edit, set []quota.Override) error {
	return s.edit(ctx, "set overrides", func(tx pgx.Tx, st *state, now time.Time) (policystore.AuditEntry, error) {
		head, err := s.load(ctx, tx, st.revision)
		if err != nil {
			return policystore.AuditEntry{}, err
		}
		kept, err := policystore.CheckOverrides(by, set, head.Policy, now)
		if err != nil {
			return policystore.AuditEntry{}, err
		}
		ids := make([]policystore.OverrideID, len(kept))
		var b pgx.Batch
		for i, o := range kept {
			ids[i] = policystore.IDOf(o)
			st.overrides++
			b.Queue(`INSERT INTO overrides (`+overrideColumns+`, deleted_at, position) VALUES ($1, $2, $3, $4, $5, $6, $7, NULL, $8)
				ON CONFLICT (policy, key) DO UPDATE SET
					capacity_millitokens = excluded.capacity_millitokens, refill_millitokens = excluded.refill_millitokens,
					period_us = excluded.period_us, unlimited = excluded.unlimited, expires_at = excluded.expires_at,
					deleted_at = NULL, position = excluded.position`,
				o.Policy, keyBytes(o.Key), int64(o.Limit.Capacity), int64(o.Limit.Refill), o.Limit.Period.Microseconds(), o.Unlimited, orNull(o.Expires), st.overrides)
		}
		return policystore.AuditEntry{
			Author: by.Author, Message: by.Message,
			Action: policystore.ActionSetOverrides, Detail: policystore.DescribeOverrides("set", ids),
		}, tx.SendBatch(ctx, &b).Close()
	})
}

// DeleteOverrides removes all of them or none.
func (s *Store) DeleteOverrides(ctx context.Context, by policystore.Edit, ids []policystore.OverrideID) error {
	return s.edit(ctx, "delete overrides", func(tx pgx.Tx, st *state, now time.Time) (policystore.AuditEntry, error) {
		if err := policystore.CheckOverrideIDs(by, ids); err != nil {
			return policystore.AuditEntry{}, err
		}
		var b pgx.Batch
		for _, id := range ids {
			st.overrides++
			b.Queue(`UPDATE overrides SET deleted_at = $3, position = $4
				WHERE policy = $1 AND key = $2 AND deleted_at IS NULL AND (expires_at IS NULL OR expires_at > $3)`,
				id.Policy, keyBytes(id.Key), now, st.overrides)
		}
		results := tx.SendBatch(ctx, &b)
		for _, id := range ids {
			tag, err := results.Exec()
			if err == nil && tag.RowsAffected() == 0 {
				err = policystore.NoOverride(id)
			}
			if err != nil {
				return policystore.AuditEntry{}, errors.Join(err, results.Close())
			}
		}
		return policystore.AuditEntry{
			Author: by.Author, Message: by.Message,
			Action: policystore.ActionDeleteOverrides, Detail: policystore.DescribeOverrides("deleted", ids),
		}, results.Close()
	})
}

// edit runs one change of overrides and audits it.
func (s *Store) edit(ctx context.Context, op string, do func(tx pgx.Tx, st *state, now time.Time) (policystore.AuditEntry, error)) error {
	return s.change(ctx, op, func(tx pgx.Tx, st *state) (bool, error) {
		now := s.now().UTC().Truncate(time.Microsecond)
		entry, err := do(tx, st, now)
		if err != nil {
			return false, err
		}
		if err := st.prune(ctx, tx, now); err != nil {
			return false, err
		}
		entry.Time = now
		entry.Revision = st.revision
		return true, st.record(ctx, tx, entry)
	})
}

// prune forgets overrides that have been deleted or expired for long.
func (st *state) prune(ctx context.Context, tx pgx.Tx, now time.Time) error {
	return tx.QueryRow(ctx, `
		WITH dead AS (
			SELECT policy, key FROM overrides
			WHERE (deleted_at IS NOT NULL OR expires_at IS NOT NULL) AND coalesce(deleted_at, expires_at) < $1
			LIMIT $2
		), gone AS (
			DELETE FROM overrides o USING dead WHERE o.policy = dead.policy AND o.key = dead.key RETURNING o.position
		)
		SELECT greatest($3, max(position)) FROM gone`,
		now.Add(-policystore.OverrideRetention), pruneBatch, st.forgotten).Scan(&st.forgotten)
}

// Override looks one up.
func (s *Store) Override(ctx context.Context, id policystore.OverrideID) (quota.Override, error) {
	const op = "look up override"
	rows, err := s.pool.Query(ctx, `SELECT `+overrideColumns+`, deleted_at IS NOT NULL, position FROM overrides
		WHERE policy = $1 AND key = $2 AND deleted_at IS NULL AND (expires_at IS NULL OR expires_at > $3)`,
		id.Policy, keyBytes(id.Key), s.now())
	if err != nil {
		return quota.Override{}, translate(op, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanOverride)
	if errors.Is(err, pgx.ErrNoRows) {
		return quota.Override{}, policystore.NoOverride(id)
	}
	return r.override, translate(op, err)
}

// ListOverrides lists those in force, ordered by policy and key.
func (s *Store) ListOverrides(ctx context.Context, q policystore.OverrideQuery) ([]quota.Override, error) {
	const op = "list overrides"
	var w where
	w.and("deleted_at IS NULL AND (expires_at IS NULL OR expires_at > %s)", s.now())
	if q.Policy != "" {
		w.and("policy = %s", q.Policy)
	}
	if q.Search != "" {
		w.and("EXISTS (SELECT FROM unnest(key) AS part WHERE position(%s::bytea IN part) > 0)", []byte(q.Search))
	}
	if q.After != nil {
		w.and("(policy, key) > (%s, %s)", q.After.Policy, keyBytes(q.After.Key))
	}
	tail := w.limit("policy, key", q.Limit)
	rows, err := s.pool.Query(ctx, `SELECT `+overrideColumns+`, false, position FROM overrides`+tail, w.args...)
	if err != nil {
		return nil, translate(op, err)
	}
	found, err := pgx.CollectRows(rows, scanOverride)
	if err != nil {
		return nil, translate(op, err)
	}
	var out []quota.Override
	for _, r := range found {
		out = append(out, r.override)
	}
	return out, nil
}

// OverrideChanges lists the changes after a position.
func (s *Store) OverrideChanges(ctx context.Context, after int64, limit int) ([]policystore.OverrideChange, error) {
	const op = "list override changes"
	rows, err := s.pool.Query(ctx, `SELECT `+overrideColumns+`, deleted_at IS NOT NULL, position FROM overrides
		WHERE position > $1 ORDER BY position LIMIT $2`, after, policystore.PageLimit(limit))
	if err != nil {
		return nil, translate(op, err)
	}
	found, err := pgx.CollectRows(rows, scanOverride)
	if err != nil {
		return nil, translate(op, err)
	}
	// Read after the rows: what was forgotten before they were read shows here.
	var newest, forgotten int64
	err = s.pool.QueryRow(ctx, `SELECT overrides, overrides_forgotten FROM store_state`).Scan(&newest, &forgotten)
	switch {
	case err != nil:
		return nil, translate(op, err)
	case after < forgotten || after > newest:
		return nil, policystore.ErrCompacted
	}
	var out []policystore.OverrideChange
	for _, r := range found {
		ch := policystore.OverrideChange{Position: r.position, ID: policystore.IDOf(r.override)}
		if !r.deleted {
			ch.Override = &r.override
		}
		out = append(out, ch)
	}
	return out, nil
}
