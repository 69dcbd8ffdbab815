package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// Exit codes. They are part of the interface and listed in docs/cli.md.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitDenied   = 3
	exitConflict = 4

	// `weir policy diff` has the codes of diff(1), so that a script can tell a
	// difference from a failure.
	exitDiffers = 1
	exitTrouble = 2
)

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitCodeError ends the process with a code of its own.
type exitCodeError struct {
	code int
	// err is told to the user; nil when the output has said it all.
	err error
}

func (e *exitCodeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitCodeError) Unwrap() error { return e.err }

// errDenied ends `weir check` when the request was denied.
var errDenied = &exitCodeError{code: exitDenied}

// outcome is the exit code for an error, and what to tell the user about it.
// hint says which token was sent, for a server that did not accept it.
func outcome(err error, hint string) (code int, text string) {
	if err == nil {
		return exitOK, ""
	}
	text = err.Error()
	code = exitError
	switch {
	case errors.Is(err, quota.ErrConflict):
		code = exitConflict
		if conflict, ok := errors.AsType[*rpc.ConflictError](err); ok {
			text = conflictText(conflict)
		}
	case errors.Is(err, quota.ErrUnauthenticated) && hint != "":
		text += "\n" + hint
	}
	if _, ok := errors.AsType[usageError](err); ok {
		code = exitUsage
		text += "\nRun 'weir help' for what can be asked."
	}
	if exit, ok := errors.AsType[*exitCodeError](err); ok {
		code = exit.code
		if exit.err == nil {
			text = ""
		}
	}
	return code, text
}

// conflictText says who changed what since, and what to do about it.
func conflictText(c *rpc.ConflictError) string {
	var b strings.Builder
	if c.Current < c.Expected {
		fmt.Fprintf(&b, "conflict: revision %d was expected, but the newest one is %d\n", c.Expected, c.Current)
		fmt.Fprintf(&b, "nothing was changed; look at the history with: weir policy history")
		return b.String()
	}
	fmt.Fprintf(&b, "conflict: the policies have changed since revision %d; the newest one is %d\n", c.Expected, c.Current)
	for _, r := range c.Since {
		fmt.Fprintf(&b, "  revision %d by %s at %s: %s", r.Number, cell(r.Author), when(r.Time), cell(r.Text))
		if r.Message != "" {
			fmt.Fprintf(&b, " (%s)", cell(r.Message))
		}
		b.WriteByte('\n')
	}
	if n := c.Current - c.Expected - int64(len(c.Since)); n > 0 && len(c.Since) > 0 {
		fmt.Fprintf(&b, "  and %d more before\n", n)
	}
	fmt.Fprintf(&b, "nothing was changed; see what the others did with: weir policy diff %d %d\n", c.Expected, c.Current)
	fmt.Fprintf(&b, "bring your change up to date with it, then repeat it with --expect-revision %d", c.Current)
	return b.String()
}

// fileProblem is a problem of a policy document and the file that it is in.
type fileProblem struct {
	File string
	quota.Problem
}

// String is file:line:column: what is wrong; the form that editors can follow.
func (p fileProblem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Problem.String()
	}
	return p.File + ":" + p.Problem.String()
}

// problemsError lists everything that is wrong with documents.
type problemsError struct {
	problems []fileProblem
	omitted  int
}

func (e *problemsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nothing was changed: %s", countProblems(len(e.problems)+e.omitted))
	for _, p := range e.problems {
		b.WriteString("\n  " + p.String())
	}
	if e.omitted > 0 {
		fmt.Fprintf(&b, "\n  and %d more", e.omitted)
	}
	return b.String()
}

func (e *problemsError) Unwrap() error { return quota.ErrInvalid }

func countProblems(n int) string { return count(n, "problem", "problems") }

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// when prints a time for people; zero is never.
func when(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}
