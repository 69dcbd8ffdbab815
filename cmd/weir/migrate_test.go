package main

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/internal/testenv"
)

// weir runs the binary to its end and returns its output and exit code.
func weir(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "weir", args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestMigrate(t *testing.T) {
	url := testenv.Postgres(t)
	if out, _, code := weir(t, "migrate", "status", "--postgres", url); code != 0 || !strings.Contains(out, "pending") {
		t.Errorf("status before: exit %d\n%s", code, out)
	}
	// Two at once, and one after them.
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if _, errs, code := weir(t, "migrate", "up", "--postgres", url); code != 0 {
				t.Errorf("up: exit %d\n%s", code, errs)
			}
		})
	}
	both.Wait()
	if out, _, code := weir(t, "migrate", "up", "--postgres", url); code != 0 || !strings.Contains(out, "up to date") {
		t.Errorf("up again: exit %d\n%s", code, out)
	}
	if out, _, code := weir(t, "migrate", "status", "--postgres", url); code != 0 || strings.Contains(out, "pending") {
		t.Errorf("status after: exit %d\n%s", code, out)
	}
}

// Case 154: a URL that does not work may hold a password.
func TestBadDatabaseURLStaysSecret(t *testing.T) {
	for _, url := range []string{
		"postgres://weir:hunter2@127.0.0.1:1/weir",
		"postgres://weir:hunter2@127.0.0.1:port/weir",
		"mysql://weir:hunter2@127.0.0.1/weir",
	} {
		out, errs, code := weir(t, "migrate", "up", "--postgres", url)
		if code == 0 || strings.Contains(out+errs, "hunter2") {
			t.Errorf("%s: exit %d\n%s%s", url, code, out, errs)
		}
	}
}
