package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

var _ policystore.Tokens = (*Store)(nil)

const tokenColumns = `id, role, region, author, created_at, expires_at, revoked_at` //nolint:gosec // names of columns, no secret

func scanToken(row pgx.CollectableRow) (policystore.Token, error) {
	var (
		t                policystore.Token
		expires, revoked *time.Time
	)
	err := row.Scan(&t.ID, &t.Role, &t.Region, &t.Author, &t.Created, &expires, &revoked)
	t.Created = t.Created.UTC()
	if expires != nil {
		t.Expires = expires.UTC()
	}
	if revoked != nil {
		t.Revoked = revoked.UTC()
	}
	return t, err
}

// AddToken keeps a new token.
func (s *Store) AddToken(ctx context.Context, by policystore.Edit, t policystore.Token, hash policystore.TokenHash) error {
	return s.change(ctx, "add token", func(tx pgx.Tx, st *state) (bool, error) {
		kept, err := policystore.CheckToken(by, t, s.now())
		if err != nil {
			return false, err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO api_tokens (`+tokenColumns+`, hash) VALUES ($1, $2, $3, $4, $5, $6, NULL, $7) ON CONFLICT DO NOTHING`,
			kept.ID, string(kept.Role), string(kept.Region), kept.Author, kept.Created, orNull(kept.Expires), hash[:])
		if err != nil {
			return false, err
		}
		if tag.RowsAffected() == 0 {
			return false, fmt.Errorf("%w: token %s, or its secret, exists already", quota.ErrConflict, kept.ID)
		}
		return true, st.recordDone(ctx, tx, by, policystore.ActionAddToken, policystore.DescribeToken("added", kept), kept.Created)
	})
}

// RevokeToken ends a token for good.
func (s *Store) RevokeToken(ctx context.Context, by policystore.Edit, id string) error {
	return s.change(ctx, "revoke token", func(tx pgx.Tx, st *state) (bool, error) {
		if err := policystore.CheckEdit(by); err != nil {
			return false, err
		}
		now := s.now().UTC().Truncate(time.Microsecond)
		rows, err := tx.Query(ctx, `UPDATE api_tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING `+tokenColumns, id, now)
		if err != nil {
			return false, err
		}
		t, err := pgx.CollectExactlyOneRow(rows, scanToken)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, policystore.NoToken()
		}
		if err != nil {
			return false, err
		}
		return true, st.recordDone(ctx, tx, by, policystore.ActionRevokeToken, policystore.DescribeToken("revoked", t), now)
	})
}

var _ policystore.Recorder = (*Store)(nil)

// Record appends a row to the audit log.
func (s *Store) Record(ctx context.Context, by policystore.Edit, action policystore.Action, detail string) error {
	return s.change(ctx, "record in the audit log", func(tx pgx.Tx, st *state) (bool, error) {
		if err := policystore.CheckEdit(by); err != nil {
			return false, err
		}
		return true, st.recordDone(ctx, tx, by, action, detail, s.now().UTC().Truncate(time.Microsecond))
	})
}

func (st *state) recordDone(ctx context.Context, tx pgx.Tx, by policystore.Edit, action policystore.Action, detail string, at time.Time) error {
	return st.record(ctx, tx, policystore.AuditEntry{
		Time: at, Author: by.Author, Action: action, Message: by.Message, Revision: st.revision, Detail: detail,
	})
}

// FindToken returns the token with the secret, if it can be used.
func (s *Store) FindToken(ctx context.Context, hash policystore.TokenHash) (policystore.Token, error) {
	const op = "find token"
	rows, err := s.pool.Query(ctx, `SELECT `+tokenColumns+` FROM api_tokens WHERE hash = $1`, hash[:])
	if err != nil {
		return policystore.Token{}, translate(op, err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanToken)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && !t.Valid(s.now()):
		return policystore.Token{}, policystore.NoToken()
	case err != nil:
		return policystore.Token{}, translate(op, err)
	}
	return t, nil
}

// ListTokens lists tokens by id.
func (s *Store) ListTokens(ctx context.Context, after string, limit int) ([]policystore.Token, error) {
	const op = "list tokens"
	rows, err := s.pool.Query(ctx, `SELECT `+tokenColumns+` FROM api_tokens WHERE id > $1 ORDER BY id LIMIT $2`, after, policystore.PageLimit(limit))
	if err != nil {
		return nil, translate(op, err)
	}
	out, err := pgx.CollectRows(rows, scanToken)
	return out, translate(op, err)
}
