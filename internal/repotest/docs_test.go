package repotest

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	target     = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):([^:=\n][^\n]*)?$`)
	makeCall   = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)")
	link       = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example|Benchmark)\w*)\(`)
	quotedTest = regexp.MustCompile("`([^`]+)`")
)

func TestMakefileHelpListsEveryTarget(t *testing.T) {
	t.Parallel()
	report(t, checkHelp(read(t, "Makefile")))
	wantViolation(t, checkHelp("build: ## builds\nhidden:\n\ttrue\n"), "hidden")
	wantViolation(t, checkHelp("build: ## builds\nhidden: build\n\ttrue\n"), "hidden")
	wantViolation(t, checkHelp("X := 1\n"), "no target")
	report(t, checkHelp("V := 1\nx::= 2\nbuild: a b ## builds\n"))
}

func checkHelp(makefile string) []string {
	var bad []string
	found := target.FindAllStringSubmatch(makefile, -1)
	if len(found) == 0 {
		return []string{"Makefile: no target found"}
	}
	for _, m := range found {
		if !strings.Contains(m[2], "## ") {
			bad = append(bad, fmt.Sprintf("Makefile: target %s has no ## text for make help", m[1]))
		}
	}
	return bad
}

func TestDocumentsNameMakeTargetsThatExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	for _, f := range documents(t) {
		report(t, checkMakeCalls(f, makefile))
	}
	wantViolation(t, checkMakeCalls(file{"x.md", "run `make tea`"}, "build: ## builds\n"), "make tea")
	wantViolation(t, checkMakeCalls(file{"x.md", "```\nmake tea\n```"}, "build: ## builds\n"), "make tea")
	report(t, checkMakeCalls(file{"x.md", "run `make build`, to make sure"}, "build: ## builds\n"))
}

func checkMakeCalls(f file, makefile string) []string {
	var targets, bad []string
	for _, m := range target.FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, m[1])
	}
	for _, m := range makeCall.FindAllStringSubmatch(f.Text, -1) {
		if !slices.Contains(targets, m[1]) {
			bad = append(bad, fmt.Sprintf("%s: make %s is no target of the Makefile", f.Path, m[1]))
		}
	}
	return bad
}

func TestDocumentLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	top := root(t)
	exists := func(p string) bool {
		_, err := os.Stat(filepath.Join(top, filepath.FromSlash(p)))
		return err == nil
	}
	for _, f := range documents(t) {
		report(t, checkLinks(f, exists))
	}
	only := func(p string) bool { return p == "docs/b.md" }
	wantViolation(t, checkLinks(file{"docs/a.md", "see [b](c.md)"}, only), "docs/c.md")
	report(t, checkLinks(file{"docs/a.md", "[b](b.md#part), [web](https://example.org), [top](#top)"}, only))
}

func checkLinks(f file, exists func(string) bool) []string {
	var bad []string
	for _, m := range link.FindAllStringSubmatch(f.Text, -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		if p := path.Join(path.Dir(f.Path), m[1]); !exists(p) {
			bad = append(bad, fmt.Sprintf("%s links to %s, which does not exist", f.Path, p))
		}
	}
	return bad
}

// TestCasesNameTestsThatExist reads the rows of docs/cases.md: | case | test | package |.
func TestCasesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{}
	for _, f := range textFiles(t) {
		if strings.HasSuffix(f.Path, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(f.Text, -1) {
				tests[path.Dir(f.Path)] = append(tests[path.Dir(f.Path)], m[1])
			}
		}
	}
	report(t, checkCases(read(t, "docs/cases.md"), tests))

	const header = "| case | test | package |\n|---|---|---|\n"
	some := map[string][]string{"lua": {"TestA", "TestB"}}
	wantViolation(t, checkCases(header+"| A 1 | `TestC` | `lua` |\n", some), "lua has no TestC")
	wantViolation(t, checkCases(header+"| A 1 | `TestA`, `TestC` | `lua` |\n", some), "lua has no TestC")
	wantViolation(t, checkCases(header+"| A 1 | `TestA` | `regional` |\n", some), "regional has no TestA")
	wantViolation(t, checkCases(header+"| A 1 | | `lua` |\n", some), "names no test")
	wantViolation(t, checkCases(header+"| A 1 | `TestA` |\n", some), "want three columns")
	wantViolation(t, checkCases("nothing\n", some), "no table")
	report(t, checkCases(header+"| A 1 | `TestA/sub_case`, `TestB` | `lua` |\n", some))
}

// checkCases wants each row to name, in backquotes, tests of its package. What
// follows a slash is a subtest and is not looked up.
func checkCases(text string, tests map[string][]string) []string {
	var bad []string
	table := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if strings.TrimSpace(cells[0]) == "case" || strings.HasPrefix(strings.TrimSpace(cells[0]), "--") {
			table = true
			continue
		}
		if len(cells) != 3 {
			bad = append(bad, fmt.Sprintf("docs/cases.md: %s: want three columns", line))
			continue
		}
		pkg := strings.Trim(strings.TrimSpace(cells[2]), "`")
		names := quotedTest.FindAllStringSubmatch(cells[1], -1)
		if len(names) == 0 {
			bad = append(bad, fmt.Sprintf("docs/cases.md: %s: names no test", line))
		}
		for _, m := range names {
			name, _, _ := strings.Cut(m[1], "/")
			if !slices.Contains(tests[pkg], name) {
				bad = append(bad, fmt.Sprintf("docs/cases.md: %s: package %s has no %s", strings.TrimSpace(cells[0]), pkg, name))
			}
		}
	}
	if !table {
		bad = append(bad, "docs/cases.md: no table | case | test | package |")
	}
	return bad
}

// documents are the Markdown files.
func documents(t *testing.T) []file {
	t.Helper()
	return slices.DeleteFunc(textFiles(t), func(f file) bool { return path.Ext(f.Path) != ".md" })
}
