package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	docLine  = regexp.MustCompile(`(?m)^weir ([^#\n]*)`)
	flagName = regexp.MustCompile(`--([a-z][a-z-]+)`)
)

// docs/cli.md names every command and no other, and each is run by a script.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	require.NoError(t, err)
	root := newRoot(&environment{})
	documented := commandsOf(t, root, string(doc))

	var scripts strings.Builder
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		scripts.Write(text)
	}
	// Roles, the database and simulations, which take their time, have tests of their own.
	elsewhere := []string{"dev", "coordinator", "regional", "migrate up", "migrate status", "sim"}
	for path, cmd := range leaves(root) {
		if path == "help" || strings.HasPrefix(path, "completion") {
			continue
		}
		require.Contains(t, documented, path, "docs/cli.md does not name this command")
		ran := regexp.MustCompile(`(?m)^(?:exec|exits \d|eventually \d) weir ` + path + `(?: |$)`)
		if !slices.Contains(elsewhere, path) {
			require.Regexp(t, ran, scripts.String(), "no script runs weir "+path)
		}
		require.NotEmpty(t, cmd.Short)
	}
	for _, path := range documented {
		require.Contains(t, leaves(root), path, "docs/cli.md names a command that does not exist")
	}
}

// commandsOf finds the commands in code spans and shell blocks, and checks that
// they have the flags that they are shown with.
func commandsOf(t *testing.T, root *cobra.Command, doc string) []string {
	t.Helper()
	var lines []string
	before := ""
	for _, m := range codeSpan.FindAllStringSubmatch(strings.ReplaceAll(doc, "```", ""), -1) {
		words := strings.Fields(m[1])
		switch {
		case words[0] == "weir" && len(words) > 1:
			before = strings.Join(words[1:], " ")
			lines = append(lines, before)
		case len(words) == 1 && strings.Contains(before, " ") && regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]):
			// "`weir token create`, `list`" is short for two.
			lines = append(lines, before[:strings.LastIndex(before, " ")+1]+words[0])
		}
	}
	for _, m := range docLine.FindAllStringSubmatch(doc, -1) {
		lines = append(lines, m[1])
	}
	var found []string
	for _, line := range lines {
		cmd, _, err := root.Find(strings.Fields(line))
		require.NoError(t, err, line)
		for _, m := range flagName.FindAllStringSubmatch(line, -1) {
			known := m[1] == "help" || cmd.Flags().Lookup(m[1]) != nil || cmd.InheritedFlags().Lookup(m[1]) != nil
			require.True(t, known, "weir %s: no flag --%s", line, m[1])
		}
		if cmd != root && !cmd.HasSubCommands() {
			found = append(found, strings.TrimPrefix(cmd.CommandPath(), "weir "))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// leaves are the commands that do something, by their words.
func leaves(root *cobra.Command) map[string]*cobra.Command {
	out := map[string]*cobra.Command{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if !c.HasSubCommands() {
			out[strings.TrimPrefix(c.CommandPath(), "weir ")] = c
		}
	}
	walk(root)
	return out
}

// No variable stands for a flag that says what to change; one stands for each
// that says how to reach a server, or the form of the output.
func TestVariablesTakeNoPartInChanges(t *testing.T) {
	t.Parallel()
	for path, cmd := range leaves(newRoot(&environment{})) {
		group, _, _ := strings.Cut(path, " ")
		only := slices.Contains([]string{"policy", "ledger", "token", "context", "status"}, group)
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			_, marked := f.Annotations[onlyFlag]
			require.Equal(t, only, marked, "weir %s --%s", path, f.Name)
		})
		cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
			require.NotContains(t, f.Annotations, onlyFlag, "weir %s --%s", path, f.Name)
		})
	}
}
