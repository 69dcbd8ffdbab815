package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// event is one line of `go test -json` (go doc test2json); build lines carry
// ImportPath instead of Package.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

// summary counts tests and subtests. A skipped test counts as failed, and so
// does a package that failed without one of its tests failing (it did not
// build, timed out, or leaked).
type summary struct {
	passed, failed int
}

func (s summary) String() string { return fmt.Sprintf("%d passed, %d failed", s.passed, s.failed) }

func (s summary) err() error {
	switch {
	case s.failed > 0:
		return errors.New("tests failed")
	case s.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}

// summarise reads test events, prints one line per package and all that a failed
// test printed, and counts.
func summarise(events io.Reader, out io.Writer) (summary, error) {
	var sum summary
	type key struct{ pkg, test string }
	printed := map[key]*bytes.Buffer{}
	failures := map[string]int{}

	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// go itself may print plain text, for example about a broken module.
			fmt.Fprintln(out, lines.Text())
			continue
		}
		k := key{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			if printed[k] == nil {
				printed[k] = &bytes.Buffer{}
			}
			printed[k].WriteString(e.Output)
		case "pass":
			if e.Test != "" {
				sum.passed++
			} else {
				fmt.Fprintf(out, "ok    %s %.1fs\n", e.Package, e.Elapsed)
			}
			delete(printed, k)
		case "skip":
			if e.Test != "" {
				sum.failed++
				failures[e.Package]++
				fmt.Fprintf(out, "SKIP  %s %s: a skipped test counts as failed\n%s", e.Package, e.Test, text(printed[k]))
			}
			delete(printed, k)
		case "fail":
			if e.Test != "" {
				sum.failed++
				failures[e.Package]++
				fmt.Fprintf(out, "FAIL  %s %s\n%s", e.Package, e.Test, text(printed[k]))
			} else {
				if failures[e.Package] == 0 {
					sum.failed++
				}
				fmt.Fprintf(out, "%sFAIL  %s %.1fs\n", text(printed[k]), e.Package, e.Elapsed)
			}
			delete(printed, k)
		}
	}
	return sum, lines.Err()
}

// text is what was printed, or nothing.
func text(b *bytes.Buffer) string {
	if b == nil {
		return ""
	}
	return b.String()
}
