package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/testenv"
)

// silent is a connection that can be made to swallow everything, as when the
// peer's machine has gone: no error, no answer.
type silent struct {
	net.Conn
	on *atomic.Bool
}

func (s silent) Write(b []byte) (int, error) {
	if s.on.Load() {
		return len(b), nil
	}
	return s.Conn.Write(b)
}

// connect returns a connection and the switch that silences it.
func connect(t *testing.T, url string) (*pgx.Conn, *atomic.Bool) {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	var (
		on   atomic.Bool
		mu   sync.Mutex
		open []net.Conn
		over bool
	)
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if over {
			return nil, errors.Join(net.ErrClosed, c.Close())
		}
		open = append(open, c)
		return silent{Conn: c, on: &on}, nil
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		// The driver waits for the silent peer to say goodbye; it need not.
		mu.Lock()
		over = true
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		_ = conn.Close(context.Background())
		<-conn.PgConn().CleanupDone()
	})
	return conn, &on
}

// TestPingsLeaveTheConnectionListening: after many pings a notification still comes.
func TestPingsLeaveTheConnectionListening(t *testing.T) {
	url := testenv.Postgres(t)
	conn, _ := connect(t, url)
	other, _ := connect(t, url)
	_, err := conn.Exec(t.Context(), `LISTEN pings`)
	require.NoError(t, err)
	pid := conn.PgConn().PID()
	got := make(chan error, 1)
	go func() { got <- waitOrPing(t.Context(), conn, time.Millisecond, time.Minute) }()

	var first time.Time
	pings := 0
	require.Eventually(t, func() bool {
		var at time.Time
		err := other.QueryRow(t.Context(), `SELECT query_start FROM pg_stat_activity WHERE pid = $1 AND query LIKE '%ping%' AND query NOT LIKE 'LISTEN%'`, pid).Scan(&at)
		if err == nil && at.After(first) {
			first = at
			pings++
		}
		return pings >= 3
	}, time.Minute, time.Millisecond)
	_, err = other.Exec(t.Context(), `NOTIFY pings`)
	require.NoError(t, err)
	require.NoError(t, <-got)
}

func TestSilentPeerIsNoticed(t *testing.T) {
	conn, silence := connect(t, testenv.Postgres(t))
	silence.Store(true)
	require.ErrorIs(t, waitOrPing(t.Context(), conn, time.Millisecond, 10*time.Millisecond), context.DeadlineExceeded)
}
