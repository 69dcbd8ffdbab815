package testenv

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
)

// recorder stands in for the test whose backend is missing.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Fatalf(string, ...any) { r.failed = true }
func (r *recorder) Skipf(string, ...any)  { r.skipped = true }

func TestMissingBackendSkipsAndFailsInCI(t *testing.T) {
	for _, tc := range []struct {
		ci         string
		skip, fail bool
	}{
		{ci: "", skip: true},
		{ci: "true", fail: true},
	} {
		t.Setenv("CI", tc.ci)
		r := &recorder{TB: t}
		unavailable(r, "Redis Cluster", errors.New("no docker"))
		if r.skipped != tc.skip || r.failed != tc.fail {
			t.Errorf("CI=%q: skipped %t, failed %t", tc.ci, r.skipped, r.failed)
		}
	}
}

func TestOrphaned(t *testing.T) {
	t.Parallel()
	now := time.Now()
	// A process that has ended, and whose number nothing else has yet.
	gone := exec.CommandContext(t.Context(), "true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	dead := strconv.Itoa(gone.Process.Pid)
	alive := strconv.Itoa(os.Getpid())
	for _, tc := range []struct {
		name, host, pid string
		age             time.Duration
		want            bool
	}{
		{"ours, running", "here", alive, time.Minute, false},
		{"ours, process gone", "here", dead, time.Minute, true},
		{"process of another host", "there", dead, time.Minute, false},
		{"another host, old", "there", dead, 4 * time.Hour, true},
		{"ours, old", "here", alive, 4 * time.Hour, true},
		{"label broken", "here", "x", time.Minute, true},
	} {
		c := container.Summary{
			Created: now.Add(-tc.age).Unix(),
			Labels:  map[string]string{labelHost: tc.host, labelPID: tc.pid},
		}
		if got := orphaned(c, "here", now); got != tc.want {
			t.Errorf("%s: orphaned = %t, want %t", tc.name, got, tc.want)
		}
	}
}

func TestFreePortsDiffer(t *testing.T) {
	t.Parallel()
	ports, err := freePorts(t.Context(), 20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range ports {
		if seen[p] {
			t.Errorf("port %s twice", p)
		}
		seen[p] = true
	}
}

func TestReadReply(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want, err string }{
		{in: "+OK\r\n", want: "OK"},
		{in: ":42\r\n", want: "42"},
		{in: "$5\r\na\r\nbc\r\n", want: "a\r\nbc"},
		{in: "$-1\r\n", want: ""},
		{in: "*2\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n", want: "1\na\nb"},
		{in: "-CROSSSLOT no\r\n", err: "CROSSSLOT no"},
		{in: "\r\n", err: "empty reply"},
		{in: "?\r\n", err: "unknown reply"},
		{in: "$x\r\n", err: "invalid syntax"},
		{in: "$9\r\nshort", err: "EOF"},
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(tc.in)))
		switch {
		case tc.err == "" && (err != nil || got != tc.want):
			t.Errorf("readReply(%q) = %q, %v, want %q", tc.in, got, err, tc.want)
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("readReply(%q): error %v, want %q", tc.in, err, tc.err)
		}
	}
}
