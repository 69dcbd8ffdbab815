package main

import (
	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/app"
)

func newMigrate(env *environment) *cobra.Command {
	var cfg app.PostgresConfig
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the Postgres schema up to date",
		Args:  known,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cfg.Flags(cmd.PersistentFlags())
	cmd.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Apply what is pending; safe when run twice or by several at once", Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return configured(app.MigrateUp(cmd.Context(), cfg, env.stdout))
			},
		},
		&cobra.Command{
			Use: "status", Short: "List the migrations and whether each is applied", Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return configured(app.MigrateStatus(cmd.Context(), cfg, env.stdout))
			},
		},
	)
	return cmd
}
