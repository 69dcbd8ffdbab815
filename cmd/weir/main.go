// Weir is a multi-region quota coordinator: a rate limiter as a service whose limits
// hold globally. This is its one binary; `weir help` lists what it does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.LookupEnv))
}

// run is main without the process around it.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	env := &environment{stdin: stdin, stdout: stdout, stderr: stderr, lookupEnv: lookupEnv}
	cmd := newRoot(env)
	cmd.SetArgs(args)
	code, text := outcome(cmd.ExecuteContext(ctx), env.tokenHint)
	if text != "" {
		fmt.Fprintln(stderr, "weir:", text)
	}
	return code
}
