package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/app"
)

// environment is what commands take from the process around them.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	logLevel       string
	logFormat      string
	// tokenHint says which token was sent, without showing it.
	tokenHint string
}

func newRoot(env *environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "Rate limits that hold across regions",
		Long: "Weir keeps rate limits that hold across regions: nodes decide checks in their region's\n" +
			"own Redis, a coordinator splits every global limit between the regions.\n\n" +
			"Flags can also be set in the environment: --redis-prefix is WEIR_REDIS_PREFIX. Those that\n" +
			"say what to change (policy, override, ledger, token and context commands), and what `weir status` selects, cannot.",
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           app.Version(),
		Args:              known,
		RunE:              showHelp,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return env.bind(cmd) },
	}
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&env.logLevel, "log-level", "info", "debug, info, warn or error")
	root.PersistentFlags().StringVar(&env.logFormat, "log-format", "text", "text or json")
	root.AddCommand(
		newDev(env), newRegional(env), newCoordinator(env), newMigrate(env),
		newCheck(env), newExplain(env), byHand(newStatus(env)), newSim(env),
		byHand(newPolicy(env)), byHand(newLedger(env)), byHand(newToken(env)), newWhoAmI(env), byHand(newContext(env)),
		newVersion(env),
	)
	return root
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// onlyFlag marks a flag that no environment variable stands for.
const onlyFlag = "weir_only_flag"

// byHand marks the flags of a command and of those below it as only flags. What
// is changed is to be read on the command line: a variable that is left over, or
// that is there for another command (WEIR_REGION on a node), must not take part.
// How to reach a server and the form of the output are not marked.
func byHand(cmd *cobra.Command) *cobra.Command {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[onlyFlag] = nil
	})
	for _, c := range cmd.Commands() {
		byHand(c)
	}
	return cmd
}

// bind sets flags that were not given from the environment.
func (e *environment) bind(cmd *cobra.Command) error {
	bound := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, only := f.Annotations[onlyFlag]; !only {
			bound.AddFlag(f)
		}
	})
	if err := app.BindEnv(bound, e.lookupEnv); err != nil {
		return usageError{err}
	}
	return nil
}

// say tells the user something that is not data.
func (e *environment) say(format string, args ...any) {
	fmt.Fprintf(e.stderr, format+"\n", args...)
}

// author is who changes something, for servers that know no callers.
func (e *environment) author() string {
	for _, name := range []string{"USER", "USERNAME"} {
		if user, ok := e.lookupEnv(name); ok && user != "" {
			return user
		}
	}
	return ""
}

// known refuses a word that is not a command, and names what may have been meant.
func known(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	cmd.SuggestionsMinimumDistance = 2 // edits; zero finds beginnings of words only
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{errors.New(text)}
}

// logger writes to stderr: what a command prints for its user goes to stdout.
func (e *environment) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(e.logLevel)); err != nil {
		return nil, usagef("--log-level %q: use debug, info, warn or error", e.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch strings.ToLower(e.logFormat) {
	case "text":
		return slog.New(slog.NewTextHandler(e.stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(e.stderr, options)), nil
	}
	return nil, usagef("--log-format %q: use text or json", e.logFormat)
}

func newVersion(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(env.stdout, "weir", app.Version())
			return err
		},
	}
}

// noArgs refuses arguments where a command takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%q takes no argument, but got %q", cmd.CommandPath(), args)
	}
	return nil
}

// takes wants between least and most arguments; most -1 is any number.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%q: an argument is missing; write %s", cmd.CommandPath(), cmd.UseLine())
		case most >= 0 && len(args) > most:
			return usagef("%q: %q is one argument too many; write %s", cmd.CommandPath(), args[most], cmd.UseLine())
		}
		return nil
	}
}
