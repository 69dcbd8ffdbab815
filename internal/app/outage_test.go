package app_test

import (
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/testenv"
)

// wire is a TCP connection between two parts that a test can cut and mend.
type wire struct {
	ln     net.Listener
	target string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
	done  sync.WaitGroup
}

func newWire(tb testing.TB, target string) *wire {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	w := &wire{ln: ln, target: target, conns: map[net.Conn]struct{}{}}
	w.done.Go(w.accept)
	tb.Cleanup(func() {
		_ = ln.Close()
		w.set(true)
		w.done.Wait()
	})
	return w
}

func (w *wire) accept() {
	for {
		near, err := w.ln.Accept()
		if err != nil {
			return
		}
		far, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", w.target)
		if err != nil || !w.hold(near, far) {
			_ = near.Close()
			if far != nil {
				_ = far.Close()
			}
			continue
		}
		w.done.Go(func() { w.copy(near, far) })
		w.done.Go(func() { w.copy(far, near) })
	}
}

func (w *wire) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from) // ends when either side does
	_ = to.Close()
	_ = from.Close()
}

func (w *wire) hold(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return false
	}
	for _, c := range conns {
		w.conns[c] = struct{}{}
	}
	return true
}

// set cuts every connection and refuses new ones, or lets them through again.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.conns {
			_ = c.Close()
		}
		clear(w.conns)
	}
}

// outage is how long Postgres is away in CI. `make soak` sets the minute that the
// guarantee names; nothing in the code depends on the length.
func outage(tb testing.TB) time.Duration {
	tb.Helper()
	text := os.Getenv("WEIR_TEST_OUTAGE")
	if text == "" {
		return 5 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		tb.Fatalf("WEIR_TEST_OUTAGE: %v", err)
	}
	return d
}

// With Postgres away no check fails, and changes made before and after are all seen.
func TestPostgresAway(t *testing.T) {
	direct := testenv.Postgres(t)
	u, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, u.Host)
	u.Host = w.ln.Addr().String()
	f := startFleetOn(t, app.PostgresConfig{URL: u.String()}, tenantPolicy(1000))
	l := f.load(t)
	before := f.apply(t, tenantPolicy(1001))
	f.inForce(t, before)

	w.set(true)
	away := time.NewTimer(outage(t))
	<-away.C
	calls := l.calls.Load()
	w.set(false)

	var after int64
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); after == 0; <-tick.C {
		if applied, err := f.tryApply(t, tenantPolicy(1002)); err == nil {
			after = applied
		} else if time.Now().After(end) {
			t.Fatalf("Postgres is back and still no change is taken: %v", err)
		}
	}
	if after != before+1 {
		t.Errorf("the change after the outage is revision %d, the one before it %d", after, before)
	}
	f.inForce(t, after)
	l.stop()
	if calls == 0 || l.failed.Load() > 0 || l.undecided.Load() > 0 {
		t.Errorf("of %d checks %d failed and %d were not decided by the store", l.calls.Load(), l.failed.Load(), l.undecided.Load())
	}
}
