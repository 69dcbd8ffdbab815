package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/policystore/memory"
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

// The scripts drive the real binary against real servers. WEIR_SERVER and
// OTHER_REGION are nodes of one dev mode that all scripts share. WEIR_COORDINATOR
// serves policies that are the script's own, and so does LOCKED, which wants a
// token: ADMIN is one.
func TestScripts(t *testing.T) {
	d := startDev(t)
	// The servers of the scripts end after all of them, which run in parallel subtests.
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			admin := rpc.NewSecret()
			for name, value := range map[string]string{
				"WEIR_SERVER":      d.Regions[0],
				"OTHER_REGION":     d.Regions[1],
				"WEIR_COORDINATOR": servePolicies(t, ""),
				"LOCKED":           servePolicies(t, admin),
				"ADMIN":            string(admin),
				"XDG_CONFIG_HOME":  filepath.Join(env.WorkDir, "config"),
			} {
				env.Setenv(name, value)
			}
			// A token as people keep it: in a file that ends with a line break.
			return os.WriteFile(filepath.Join(env.WorkDir, "admin.txt"), []byte(string(admin)+"\n"), 0o600)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":      exits,
			"eventually": exitsSoon,
			"mode":       mode,
			"shows":      showsSoon,
			// deployment starts a dev mode that is the script's own.
			"deployment": func(ts *testscript.TestScript, _ bool, _ []string) {
				own := startDev(t)
				ts.Setenv("WEIR_COORDINATOR", own.Coordinator)
				ts.Setenv("WEIR_SERVER", own.Regions[0])
			},
		},
	})
}

func startDev(t *testing.T) *app.Dev {
	t.Helper()
	// Shares stay as they are for as long as a slow machine may need for the scripts.
	d, err := app.StartDev(t.Context(), app.DevConfig{Host: "127.0.0.1", Rebalance: 10 * time.Minute}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// servePolicies serves an empty set of policies and returns the URL. With an
// administrator it wants tokens.
func servePolicies(t *testing.T, admin rpc.Secret) string {
	t.Helper()
	store := memory.New(time.Now)
	cfg := rpc.ServerConfig{
		Registry: prometheus.NewRegistry(),
		Policies: &rpc.PolicyConfig{Store: store, Parse: app.ParsePolicies, Marshal: app.MarshalPolicies},
	}
	if admin != "" {
		cfg.Auth = &rpc.AuthConfig{Tokens: store, Bootstrap: admin}
	}
	s, err := rpc.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Stop(context.Background()), <-done); err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

// mode compares the permissions of a file: mode 0600 config/weir/config.yaml.
func mode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mode permissions file")
	}
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[0] {
		ts.Fatalf("%s has mode %s, want %s", args[1], got, args[0])
	}
}

// exits runs a command and compares its exit code: exits 3 weir check ...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command [argument ...]")
	}
	if code := exitCodeOf(ts, args); code != args[0] {
		ts.Fatalf("exit code %s, want %s", code, args[0])
	}
}

// exitsSoon is exits for what becomes true in a moment: it tries again.
func exitsSoon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually code command [argument ...]")
	}
	for end := time.Now().Add(10 * time.Second); ; {
		code := exitCodeOf(ts, args)
		if code == args[0] {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("exit code %s, want %s", code, args[0])
		}
	}
}

// showsSoon runs a command until its output matches: shows regexp weir ...
func showsSoon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: shows regexp command [argument ...]")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for end := time.Now().Add(10 * time.Second); ; {
		ts.Check(ts.Exec(args[1], args[2:]...))
		got := ts.ReadFile("stdout")
		if want.MatchString(got) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("no match for %s in\n%s", want, got)
		}
	}
}

func exitCodeOf(ts *testscript.TestScript, args []string) string {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if err != nil {
		code = -1
		var exit interface{ ExitCode() int }
		if asExit(err, &exit) {
			code = exit.ExitCode()
		}
	}
	return strconv.Itoa(code)
}

func asExit(err error, target *interface{ ExitCode() int }) bool { return errors.As(err, target) }
