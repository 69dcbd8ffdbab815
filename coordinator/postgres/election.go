package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// Election is a coordinator.Election in Postgres. It is safe for concurrent use.
type Election struct {
	cfg  Config
	pool *pgxpool.Pool
}

var _ coordinator.Election = (*Election)(nil)

// NewElection returns an election. It does no I/O.
func NewElection(cfg Config) *Election { return &Election{cfg: cfg, pool: cfg.Pool} }

// Look implements coordinator.Election.
func (e *Election) Look(ctx context.Context) (coordinator.Leader, error) {
	var l coordinator.Leader
	err := e.pool.QueryRow(ctx, `SELECT tenure, holder, url, beat, epoch FROM leader, ledger_state`).
		Scan(&l.Tenure, &l.Holder, &l.URL, &l.Beat, &l.Epoch)
	return l, translate("look at the leader", err)
}

// Claim implements coordinator.Election.
func (e *Election) Claim(ctx context.Context, mine, seen coordinator.Leader) error {
	return e.write(ctx, "claim the lead", `UPDATE leader SET tenure = $1, holder = $2, url = $3, beat = beat + 1, beat_at = now()
		WHERE tenure = $1 OR (tenure = $4 AND beat = $5) RETURNING `+durable, mine.Tenure, mine.Holder, mine.URL, seen.Tenure, seen.Beat)
}

// Beat implements coordinator.Election.
func (e *Election) Beat(ctx context.Context, tenure string) error {
	return e.write(ctx, "beat", `UPDATE leader SET beat = beat + 1, beat_at = now() WHERE tenure = $1 RETURNING `+durable, tenure)
}

// Resign implements coordinator.Election.
func (e *Election) Resign(ctx context.Context, tenure string) error {
	_, err := e.pool.Exec(ctx, `UPDATE leader SET tenure = '', holder = '', url = '', beat = beat + 1, beat_at = now()
		WHERE tenure = $1 RETURNING `+durable, tenure)
	return translate("resign", err)
}

// Ledger implements coordinator.Election. An empty tenure stands for no election.
func (e *Election) Ledger(tenure string) coordinator.Ledger { return newLedger(e.cfg, tenure) }

func (e *Election) write(ctx context.Context, op, sql string, args ...any) error {
	tag, err := e.pool.Exec(ctx, sql, args...)
	if err != nil {
		return translate(op, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%s: another coordinator leads: %w", op, quota.ErrFenced)
	}
	return nil
}
