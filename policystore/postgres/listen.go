package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// channel is the expression for the name of our NOTIFY channel. A name has at
// most 63 bytes, so a long name of a schema is hashed.
const channel = `CASE WHEN octet_length(current_schema()) <= 58 THEN 'weir_' || current_schema() ELSE 'weir_' || md5(current_schema()) END`

const (
	// pingInterval is how long the listener waits before it asks whether the
	// connection still lives; a peer that vanished sends nothing.
	pingInterval = 15 * time.Second
	pingTimeout  = 5 * time.Second
	// Reconnecting backs off from the first to the last of these.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Listen wakes the watchers of this store for changes that any process makes,
// until ctx ends; it then returns nil. It owns one connection beside the pool
// and makes a new one when it is lost. Since notifications may have been missed
// until then, watchers are woken each time it is connected.
func (s *Store) Listen(ctx context.Context) error {
	backoff := minBackoff
	for ctx.Err() == nil {
		connected, err := s.listenOnce(ctx)
		if connected {
			backoff = minBackoff
		}
		s.waitToReconnect(ctx, backoff, err)
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// waitToReconnect says why and waits, unless ctx has ended.
func (s *Store) waitToReconnect(ctx context.Context, backoff time.Duration, why error) {
	if ctx.Err() != nil {
		return
	}
	// Half of it is random, so that coordinators do not return in step.
	wait := backoff/2 + rand.N(backoff/2) //nolint:gosec // jitter needs no secrecy
	s.log.Warn("not listening for policy changes, polling only", "retry_in", wait, "error", translate("listen", why))
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// listenOnce listens on one connection until it breaks, and tells whether it
// got as far as listening.
func (s *Store) listenOnce(ctx context.Context) (connected bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
		defer cancel()
		_ = conn.Close(ctx) // it is broken, or of no more use
		// The driver closes a connection whose context has ended in the background.
		select {
		case <-conn.PgConn().CleanupDone():
		case <-ctx.Done():
		}
	}()
	var listen string
	if err := conn.QueryRow(ctx, `SELECT format('LISTEN %I', `+channel+`)`).Scan(&listen); err != nil {
		return false, err
	}
	if _, err := conn.Exec(ctx, listen); err != nil {
		return false, err
	}
	s.Wake()
	for {
		if err := waitOrPing(ctx, conn, pingInterval, pingTimeout); err != nil {
			return true, err
		}
		s.Wake()
	}
}

// waitOrPing returns nil after a notification, and an error when the connection
// has not answered a ping within timeout; it pings when nothing came for interval.
func waitOrPing(ctx context.Context, conn *pgx.Conn, interval, timeout time.Duration) error {
	for {
		err := bounded(ctx, interval, func(ctx context.Context) error {
			_, err := conn.WaitForNotification(ctx)
			return err
		})
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if err := bounded(ctx, timeout, conn.Ping); err != nil {
			return err
		}
	}
}

func bounded(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return do(ctx)
}
