// Weir is a multi-region quota coordinator: a rate limiter as a service whose limits
// hold globally. This is its one binary; `weir help` lists what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes. They are part of the interface and listed in docs/cli.md.
const (
	exitOK     = 0
	exitError  = 1
	exitUsage  = 2
	exitDenied = 3
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, os.LookupEnv))
}

// run is main without the process around it.
func run(args []string, stdout, stderr *os.File, lookupEnv func(string) (string, bool)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	cmd := newRoot(stdout, stderr, lookupEnv)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	code := exitCode(err)
	if code == exitError || code == exitUsage {
		fmt.Fprintln(stderr, "weir:", err)
	}
	if code == exitUsage {
		fmt.Fprintln(stderr, "Run 'weir help' for what can be asked.")
	}
	return code
}

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errDenied ends `weir check` when the request was denied.
var errDenied = errors.New("denied")

func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errDenied):
		return exitDenied
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitError
}
