package app_test

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/quota"
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

// A node's way to its coordinator is cut while policies and overrides change fifty times.
// No check notices, and when it heals every change is in force, the last of each.
func TestStreamAway(t *testing.T) {
	const changes = 50
	f := startFleet(t, tenantPolicy(1000))
	w := newWire(t, strings.TrimPrefix(f.coordinator.URL, "http://"))
	cfg := f.node(t, "us-east")
	cfg.Redis.Addrs, cfg.Coordinator = testenv.RedisCluster(t).Addrs, []string{"http://" + w.ln.Addr().String()}
	node, err := app.StartRegional(t.Context(), cfg, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopRole(t, node) })
	client, err := rpc.NewClient(rpc.ClientConfig{URL: node.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	f.nodes, f.checks = append(f.nodes, node), append(f.checks, client)
	cut := len(f.checks) - 1
	before := f.apply(t, tenantPolicy(1001))
	f.inForce(t, before)
	l := f.load(t)

	w.set(true)
	began := time.Now()
	pause := time.NewTicker(outage(t) / changes)
	defer pause.Stop()
	var last int64
	for i := range changes {
		<-pause.C
		last = f.apply(t, tenantPolicy(2000+i))
		err := f.admin.SetOverrides(t.Context(), rpc.Edit{}, quota.Override{
			Policy: "tenant", Key: []string{fmt.Sprint("special-", i)},
			Limit: quota.Limit{Capacity: quota.Tokens(3000+i) * quota.Token, Refill: quota.Token, Period: time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := f.revision(t.Context(), cut); err != nil || got != before {
		t.Errorf("the node that is cut off is at revision %d (%v), want %d", got, err, before)
	}
	calls, length := l.calls.Load(), time.Since(began)
	w.set(false)
	healed := time.Now()
	f.inForce(t, last)
	t.Logf("cut for %v with %d changes; the last was in force %v after it healed, after %d checks", length.Round(time.Second), 2*changes, time.Since(healed).Round(time.Millisecond), calls)

	if last != before+changes {
		t.Errorf("the last revision is %d, want %d", last, before+changes)
	}
	for i := range changes {
		f.limitIs(t, cut, fmt.Sprint("special-", i), int64(3000+i))
	}
	f.limitIs(t, cut, "ordinary", 2000+changes-1)
	l.stop()
	if calls == 0 || l.failed.Load() > 0 || l.undecided.Load() > 0 {
		t.Errorf("of %d checks %d failed and %d were not decided by the store", l.calls.Load(), l.failed.Load(), l.undecided.Load())
	}
}

// limitIs waits until a node decides a tenant by a limit. Overrides come behind the
// revision, in the same stream.
func (f *fleet) limitIs(tb testing.TB, node int, tenant string, want int64) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-tick.C {
		answer, err := f.checks[node].Peek(tb.Context(), quota.Request{Attributes: map[string]string{"tenant": tenant}, Cost: quota.Token})
		if err == nil && len(answer.Decisions) == 1 && answer.Decisions[0].Limit == want {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%s has the limits %+v (%v), want %d", tenant, answer.Decisions, err, want)
		}
	}
}
