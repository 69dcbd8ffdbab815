package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/testenv"
)

func TestMain(m *testing.M) {
	testscript.Main(checked{m}, map[string]func(){"weir": main})
}

// checked runs the tests and then looks for what they left behind.
type checked struct{ m *testing.M }

func (c checked) Run() int {
	code := c.m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := testenv.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// The scripts drive the real binary against a real server in dev mode.
func TestScripts(t *testing.T) {
	d, err := app.StartDev(t.Context(), app.DevConfig{Host: "127.0.0.1", Rebalance: time.Minute}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// Scripts run in parallel subtests, which end before this cleanup runs.
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("WEIR_SERVER", d.Regions[0])
			env.Setenv("OTHER_REGION", d.Regions[1])
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
	})
}

// exits runs a command and compares its exit code: exits 3 weir check ...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command [argument ...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if err != nil {
		code = -1
		var exit interface{ ExitCode() int }
		if asExit(err, &exit) {
			code = exit.ExitCode()
		}
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func asExit(err error, target *interface{ ExitCode() int }) bool { return errors.As(err, target) }
