package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/app"
)

func newDev(env *environment) *cobra.Command {
	var cfg app.DevConfig
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a coordinator and three regions in this process, for trying Weir out",
		Long: "Runs one coordinator and three regions in this process, each region with an embedded Redis.\n" +
			"Nothing is kept and nobody has to log in: it is for trying Weir out, not for production.",
		Args: noArgs,
		PreRun: func(cmd *cobra.Command, _ []string) {
			// A newcomer reads what dev mode prints; the logs are for those who ask.
			if !cmd.Flags().Changed("log-level") {
				env.logLevel = "warn"
			}
		},
		RunE: serve(env, func(ctx context.Context, log *slog.Logger) error {
			return app.RunDev(ctx, cfg, log, env.stdout)
		}),
	}
	cfg.Flags(cmd.Flags())
	return cmd
}

func newRegional(env *environment) *cobra.Command {
	var cfg app.RegionalConfig
	cmd := &cobra.Command{
		Use:   "regional",
		Short: "Run a limiter node of one region",
		Args:  noArgs,
		RunE: serve(env, func(ctx context.Context, log *slog.Logger) error {
			role, err := app.StartRegional(ctx, cfg, log)
			if err != nil {
				return err
			}
			return role.Wait(ctx)
		}),
	}
	cfg.Flags(cmd.Flags())
	return cmd
}

func newCoordinator(env *environment) *cobra.Command {
	var cfg app.CoordinatorConfig
	cmd := &cobra.Command{
		Use:   "coordinator",
		Short: "Run the coordinator that splits global limits between regions",
		Args:  noArgs,
		RunE: serve(env, func(ctx context.Context, log *slog.Logger) error {
			role, err := app.StartCoordinator(ctx, cfg, log)
			if err != nil {
				return err
			}
			return role.Wait(ctx)
		}),
	}
	cfg.Flags(cmd.Flags())
	return cmd
}

// serve runs a role.
func serve(env *environment, role func(context.Context, *slog.Logger) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		log, err := env.logger()
		if err != nil {
			return err
		}
		return configured(role(cmd.Context(), log))
	}
}

// configured makes a wrong setting what it is: a wrong command line.
func configured(err error) error {
	if config := (*app.ConfigError)(nil); errors.As(err, &config) {
		return usageError{err}
	}
	return err
}
