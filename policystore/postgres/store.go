package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// Config says what a store works with.
type Config struct {
	// Pool stays the caller's, who closes it after the store's last call.
	Pool *pgxpool.Pool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Logger may be nil.
	Logger *slog.Logger
}

// Store is a policystore.Store in Postgres. Its watchers learn of what other
// processes change while Listen runs.
type Store struct {
	policystore.Wakeups
	pool *pgxpool.Pool
	now  func() time.Time
	log  *slog.Logger
	// last is the revision read last. It is never changed and never leaves uncloned.
	last atomic.Pointer[policystore.Snapshot]
}

var _ policystore.Store = (*Store)(nil)

// New returns a store. It does no I/O.
func New(cfg Config) *Store {
	s := &Store{pool: cfg.Pool, now: cfg.Now, log: cfg.Logger}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// querier is what the pool and a transaction have in common.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// state is the row that every change locks.
type state struct {
	revision, audit, overrides, forgotten int64
}

// change runs do in a transaction that holds the lock. When do reports a change
// the transaction is committed and everybody woken, else it leaves nothing.
func (s *Store) change(ctx context.Context, op string, do func(tx pgx.Tx, st *state) (changed bool, err error)) error {
	var changed bool
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var st state
		row := tx.QueryRow(ctx, `SELECT revision, audit, overrides, overrides_forgotten FROM store_state FOR UPDATE`)
		if err := row.Scan(&st.revision, &st.audit, &st.overrides, &st.forgotten); err != nil {
			return err
		}
		var err error
		if changed, err = do(tx, &st); err != nil || !changed {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE store_state SET revision = $1, audit = $2, overrides = $3, overrides_forgotten = $4`,
			st.revision, st.audit, st.overrides, st.forgotten)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `SELECT pg_notify(`+channel+`, '')`)
		return err
	})
	if err != nil {
		return translate(op, err)
	}
	if changed {
		s.Wake()
	}
	return nil
}

// record appends the audit row of a change.
func (st *state) record(ctx context.Context, tx pgx.Tx, e policystore.AuditEntry) error {
	st.audit++
	_, err := tx.Exec(ctx, `INSERT INTO audit_log (number, happened_at, author, action, message, revision, detail) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		st.audit, e.Time, e.Author, string(e.Action), e.Message, e.Revision, e.Detail)
	return err
}

// Position tells whether anything changed.
func (s *Store) Position(ctx context.Context) (policystore.Position, error) {
	var p policystore.Position
	err := s.pool.QueryRow(ctx, `SELECT revision, overrides FROM store_state`).Scan(&p.Revision, &p.Overrides)
	return p, translate("position", err)
}

// where collects conditions and their arguments. No text of a caller ever
// becomes part of a statement.
type where struct {
	sql  string
	args []any
}

// and adds a condition in which each %s stands for the next argument.
func (w *where) and(condition string, args ...any) {
	places := make([]any, len(args))
	for i, a := range args {
		w.args = append(w.args, a)
		places[i] = fmt.Sprintf("$%d", len(w.args))
	}
	if w.sql == "" {
		w.sql = " WHERE "
	} else {
		w.sql += " AND "
	}
	w.sql += fmt.Sprintf(condition, places...)
}

// limit ends a statement.
func (w *where) limit(order string, n int) string {
	w.args = append(w.args, policystore.PageLimit(n))
	return fmt.Sprintf("%s ORDER BY %s LIMIT $%d", w.sql, order, len(w.args))
}

// Audit lists the audit log, newest first.
func (s *Store) Audit(ctx context.Context, q policystore.AuditQuery) ([]policystore.AuditEntry, error) {
	var w where
	if q.Before > 0 {
		w.and("number < %s", q.Before)
	}
	if q.Author != "" {
		w.and("author = %s", q.Author)
	}
	if q.Action != "" {
		w.and("action = %s", string(q.Action))
	}
	if q.Search != "" {
		w.and("(strpos(message, %s) > 0 OR strpos(detail, %s) > 0)", q.Search, q.Search)
	}
	tail := w.limit("number DESC", q.Limit)
	rows, err := s.pool.Query(ctx, `SELECT number, happened_at, author, action, message, revision, detail FROM audit_log`+tail, w.args...)
	if err != nil {
		return nil, translate("list audit log", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (policystore.AuditEntry, error) {
		var e policystore.AuditEntry
		err := row.Scan(&e.Number, &e.Time, &e.Author, &e.Action, &e.Message, &e.Revision, &e.Detail)
		e.Time = e.Time.UTC()
		return e, err
	})
	return out, translate("list audit log", err)
}

// regionTexts and regionNames convert what SQL knows as text[].
func regionTexts(regions []quota.Region) []string {
	out := make([]string, len(regions))
	for i, r := range regions {
		out[i] = string(r)
	}
	return out
}

func regionNames(texts []string) []quota.Region {
	var out []quota.Region
	for _, t := range texts {
		out = append(out, quota.Region(t))
	}
	return out
}
