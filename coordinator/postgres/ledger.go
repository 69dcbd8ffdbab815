package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// Config says what ledgers and elections work with.
type Config struct {
	// Pool stays the caller's, who closes it after the last call. A beat must not
	// wait behind other statements: it is best a pool of its own, of three connections.
	Pool *pgxpool.Pool
	// Logger may be nil.
	Logger *slog.Logger
}

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// durable makes the transaction wait for its commit to be safe, whatever the role
// or the database is set to. It does not weaken remote_apply.
const durable = `CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END`

// Ledger is a coordinator.Ledger in Postgres. It is for one coordinator: each has
// its own, on the same database.
type Ledger struct {
	pool   *pgxpool.Pool
	log    *slog.Logger
	tenure string

	mu sync.Mutex
	// epoch is the one begun last, sequence the number of the last commit tried in
	// it, confirmed that of the last one known to be in the database.
	epoch               quota.Epoch
	sequence, confirmed int64
}

var _ coordinator.Ledger = (*Ledger)(nil)

// NewLedger returns the ledger for a coordinator that needs no election because it
// is the only one. It does no I/O. Of two such, the one that loaded last can commit.
func NewLedger(cfg Config) *Ledger { return newLedger(cfg, "") }

func newLedger(cfg Config, tenure string) *Ledger {
	return &Ledger{pool: cfg.Pool, log: cfg.logger(), tenure: tenure}
}

// unused is a random number of epochs that are left out after a loss, for those that
// were lost may have been many: if one of them came again, what is still under way
// from it would look like its namesake's.
const unused = `floor(random() * (1::bigint << 40))::bigint`

// begin starts an epoch. An epoch that somebody has seen and the ledger has never
// begun was lost, and commits with it. The row of leader is locked for as long as
// the statement takes, so that who no longer leads cannot fence the one who does.
const begin = `WITH elected AS (
		SELECT FROM leader WHERE $2 = '' OR tenure = $2 FOR SHARE
	), before AS (
		SELECT epoch FROM ledger_state, elected FOR UPDATE OF ledger_state
	), forgotten AS (
		DELETE FROM ledger_regions USING before WHERE $1 > before.epoch
	)
	UPDATE ledger_state AS s
	SET epoch = greatest(s.epoch, $1) + 1 + CASE WHEN $1 > before.epoch THEN ` + unused + ` ELSE 0 END, sequence = 0, lossy = lossy OR $1 > before.epoch
	FROM before
	RETURNING s.epoch, ` + durable

// Load implements coordinator.Ledger. When above is an epoch that the ledger does
// not know of, commits have been lost with it, and the ledger is lossy from then on.
// It fails with quota.ErrFenced when the tenure that the ledger was made for has ended.
func (l *Ledger) Load(ctx context.Context, above quota.Epoch) (coordinator.Snapshot, error) {
	const op = "load the ledger"
	l.mu.Lock()
	defer l.mu.Unlock()
	var epoch quota.Epoch
	err := l.pool.QueryRow(ctx, begin, above, l.tenure).Scan(&epoch, nil)
	if errors.Is(err, pgx.ErrNoRows) {
		return coordinator.Snapshot{}, fmt.Errorf("%s: another coordinator leads: %w", op, quota.ErrFenced)
	}
	if err != nil {
		return coordinator.Snapshot{}, translate(op, err)
	}
	// From here on no earlier epoch can add anything to what is read.
	l.epoch, l.sequence, l.confirmed = epoch, 0, 0
	s := coordinator.Snapshot{Epoch: epoch}
	err = pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return read(ctx, tx, &s)
	})
	if err != nil {
		return coordinator.Snapshot{}, translate(op, err)
	}
	return s, nil
}

// Commit implements coordinator.Ledger.
func (l *Ledger) Commit(ctx context.Context, epoch quota.Epoch, b coordinator.Batch) error {
	const op = "commit the ledger"
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch != l.epoch {
		return fmt.Errorf("%s: epoch %d, the last one begun here is %d: %w", op, epoch, l.epoch, quota.ErrFenced)
	}
	if l.sequence != l.confirmed {
		// The last commit may still be on its way. This waits for it if it is being
		// executed, refuses it if not, and lets the statement below see what it did.
		if err := l.write(ctx, coordinator.Batch{}); err != nil {
			return translate(op, err)
		}
	}
	return translate(op, l.write(ctx, b))
}

func (l *Ledger) write(ctx context.Context, b coordinator.Batch) error {
	l.sequence++
	var mine bool
	args := append([]any{l.epoch, l.sequence, l.confirmed}, columns(b)...)
	if err := l.pool.QueryRow(ctx, commit, args...).Scan(&mine, nil); err != nil {
		return err
	}
	if !mine {
		return l.refusal(ctx)
	}
	l.confirmed = l.sequence
	return nil
}

// refusal finds out why a commit was refused: there is a later epoch, or the
// database has forgotten one that it had confirmed.
func (l *Ledger) refusal(ctx context.Context) error {
	var (
		epoch    quota.Epoch
		sequence int64
	)
	err := l.pool.QueryRow(ctx, `SELECT epoch, sequence FROM ledger_state`).Scan(&epoch, &sequence)
	if err != nil {
		return err
	}
	if epoch > l.epoch || epoch == l.epoch && sequence >= l.confirmed {
		return fmt.Errorf("commit of epoch %d, the ledger is at %d: %w", l.epoch, epoch, quota.ErrFenced)
	}
	l.log.Error("the database has lost commits of the ledger: nothing grows until every region has reported",
		"epoch", l.epoch, "database_epoch", epoch, "commit", l.confirmed, "database_commit", sequence)
	if err := distrust(ctx, l.pool, l.epoch); err != nil {
		return err
	}
	return fmt.Errorf("the database has lost commits, it is at epoch %d after %d: %w", epoch, l.epoch, quota.ErrFenced)
}

// Distrust says that commits of the ledger may have been lost, as by a fail-over to
// a standby that was behind. It ends the epoch, so that the leader begins anew and
// lets nothing grow until every region has reported all it holds.
func (l *Ledger) Distrust(ctx context.Context) error {
	return translate("distrust the ledger", distrust(ctx, l.pool, 0))
}

func distrust(ctx context.Context, pool *pgxpool.Pool, above quota.Epoch) error {
	_, err := pool.Exec(ctx, `WITH forgotten AS (DELETE FROM ledger_regions)
		UPDATE ledger_state SET lossy = true, epoch = greatest(epoch, $1) + 1 + `+unused+`, sequence = 0 RETURNING `+durable, above)
	return err
}

// Trust says that a lossy ledger is complete again. The leader takes note when it
// begins its next epoch. Until somebody says so, each new leader is as careful with
// logs as after the loss, and a region that is added has to report before anything grows.
func (l *Ledger) Trust(ctx context.Context) error {
	_, err := l.pool.Exec(ctx, `UPDATE ledger_state SET lossy = false RETURNING `+durable)
	return translate("trust the ledger", err)
}

// TrustAt is Trust by somebody who has looked at what an epoch's leader knew. It fails
// with quota.ErrFenced when a later epoch has begun, as it does when somebody has
// distrusted the ledger since.
func (l *Ledger) TrustAt(ctx context.Context, epoch quota.Epoch) error {
	const op = "trust the ledger"
	tag, err := l.pool.Exec(ctx, `UPDATE ledger_state SET lossy = false WHERE epoch = $1 RETURNING `+durable, epoch)
	if err != nil {
		return translate(op, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%s: epoch %d has ended: %w", op, epoch, quota.ErrFenced)
	}
	return nil
}
