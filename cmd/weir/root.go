package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/app"
)

// environment is what commands take from the process around them.
type environment struct {
	stdout, stderr io.Writer
	logLevel       string
	logFormat      string
}

func newRoot(stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) *cobra.Command {
	env := &environment{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "weir",
		Short: "Rate limits that hold across regions",
		Long: "Weir keeps rate limits that hold across regions: nodes decide checks in their region's\n" +
			"own Redis, a coordinator splits every global limit between the regions.\n\n" +
			"Every flag can also be set in the environment: --redis-prefix is WEIR_REDIS_PREFIX.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       app.Version(),
		Args:          known,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := app.BindEnv(cmd.Flags(), lookupEnv); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&env.logLevel, "log-level", "info", "debug, info, warn or error")
	root.PersistentFlags().StringVar(&env.logFormat, "log-format", "text", "text or json")
	root.AddCommand(
		newDev(env), newRegional(env), newCoordinator(env), newMigrate(env),
		newCheck(env), newExplain(env), newVersion(env),
	)
	return root
}

// known refuses a word that is not a command, and names what may have been meant.
func known(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{errors.New(text)}
}

// logger writes to stderr: what a command prints for its user goes to stdout.
func (e *environment) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(e.logLevel)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: use debug, info, warn or error", e.logLevel)}
	}
	options := &slog.HandlerOptions{Level: level}
	switch strings.ToLower(e.logFormat) {
	case "text":
		return slog.New(slog.NewTextHandler(e.stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(e.stderr, options)), nil
	}
	return nil, usageError{fmt.Errorf("--log-format %q: use text or json", e.logFormat)}
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
		return usageError{fmt.Errorf("%q takes no argument, but got %q", cmd.CommandPath(), args)}
	}
	return nil
}
