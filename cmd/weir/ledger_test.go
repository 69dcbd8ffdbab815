package main

import (
	"bytes"
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
)

// A database fails over and loses commits without a trace: an operator says so, to a
// coordinator that does not lead. Nothing grows until the region has reported, which it
// does by itself; then the operator vouches for the ledger. All of it is in the audit log.
func TestLedgerIsDistrustedAndTrusted(t *testing.T) {
	cluster, url := testenv.RedisCluster(t), testenv.Postgres(t)
	if _, errs, code := weir(t, "migrate", "up", "--postgres", url); code != 0 {
		t.Fatal(errs)
	}
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var urls []string
	for range 2 {
		c := start(t, "coordinator", "--listen", "127.0.0.1:0", "--regions", "a,b", "--postgres", url, "--auth", "none", "--drain-delay", "0s")
		urls = append(urls, c.url)
	}
	run := func(args ...string) string {
		t.Helper()
		out, errs, code := weir(t, args...)
		if code != 0 {
			t.Fatalf("weir %s: exit code %d\n%s", strings.Join(args, " "), code, errs)
		}
		return out
	}
	run("policy", "apply", "--coordinator", urls[0], "--yes", "-f", writeFile(t, processPolicies))
	region := func(name string) {
		start(t, "regional", "--listen", "127.0.0.1:0", "--region", name, "--coordinator", strings.Join(urls, ","),
			"--redis", strings.Join(cluster.Addrs, ","), "--redis-prefix", testenv.Prefix(t), "--redis-stripes", "8",
			"--drain-delay", "0s", "--report-interval", "200ms")
	}
	region("a")
	follower := -1
	eventually(t, "one leads and the other does not", func() bool {
		for i, u := range urls {
			if leaderOf(t.Context(), client, u).Serving {
				follower = 1 - i
			}
		}
		return follower >= 0
	})
	says := func(what, want string) {
		t.Helper()
		var out string
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s:\n%s", what, out)
			}
		})
		eventually(t, what, func() bool {
			var code int
			out, _, code = weir(t, "status", "--coordinator", urls[follower])
			return code == 0 && regexp.MustCompile("(?m)"+want).MatchString(out)
		})
	}
	// The follower tells what the leader knows.
	says("the region holds its share", `^a +\S+ ago +\S+ +[0-9]+ +1 +0 `)
	says("the ledger is complete", `^ledger +complete$`)

	run("ledger", "distrust", "-m", "fail-over to db-2", "--coordinator", urls[follower])
	says("the ledger waits for the region that never ran", `^ledger +recovering: .* by b$`)
	_, errs, code := weir(t, "ledger", "trust", "-m", "done", "--coordinator", urls[follower])
	if code != 1 || !strings.Contains(errs, "region b: not all that it holds has been reported") {
		t.Errorf("trusted while a region is awaited: %d, %s", code, errs)
	}
	region("b")
	says("everybody has reported", `^ledger +lossy: `)
	run("ledger", "trust", "-m", "all have reported", "--coordinator", urls[follower])
	says("the ledger is complete again", `^ledger +complete$`)
	says("the new region holds its share", `^b +\S+ ago +\S+ +[0-9]+ +1 +0 `)

	// While no coordinator runs it is said to the database itself; here they notice.
	t.Setenv("WEIR_POSTGRES", url)
	run("ledger", "distrust", "--offline", "-m", "restored from a backup")
	audit := run("policy", "audit", "--coordinator", urls[0])
	for _, want := range []string{"distrust-ledger .*fail-over to db-2", "trust-ledger .*all have reported", "distrust-ledger .*restored from a backup"} {
		if !regexp.MustCompile(want).MatchString(audit) {
			t.Errorf("the audit log lacks %q:\n%s", want, audit)
		}
	}
}

// screens is where --watch draws; it tells when something has been drawn.
type screens struct {
	mu    sync.Mutex
	b     bytes.Buffer
	drawn chan struct{}
}

func (s *screens) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.drawn <- struct{}{}:
	default:
	}
	return s.b.Write(p)
}

func (s *screens) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), what)
}

// Watching goes on over a coordinator that goes away, and ends with the command's context.
func TestStatusIsWatched(t *testing.T) {
	d := startDev(t)
	out := &screens{drawn: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	env := &environment{stdin: strings.NewReader(""), stdout: out, stderr: out, lookupEnv: func(string) (string, bool) { return "", false }}
	cmd := newRoot(env)
	cmd.SetArgs([]string{"status", "--watch", "--limit", "1", "--coordinator", d.Coordinator})
	go func() { done <- cmd.ExecuteContext(ctx) }()
	await := func(what string, times int) {
		t.Helper()
		timeout := time.After(30 * time.Second)
		for out.count(what) < times {
			select {
			case <-out.drawn:
			case err := <-done:
				t.Fatalf("ended: %v", err)
			case <-timeout:
				t.Fatalf("%q was drawn %d times, want %d", what, out.count(what), times)
			}
		}
	}
	await("\napi-free ", 3)
	await("there are more splits", 2)
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	await("no answer: get status: unavailable", 2)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("interrupted: %v", err)
	}
}
