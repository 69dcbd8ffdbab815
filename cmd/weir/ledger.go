package main

import (
	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
)

func newLedger(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Tell the coordinators that their ledger has lost commits, or has not",
		Long: "For operators of the database: says what the ledger of shares cannot know of itself. It needs\n" +
			"the role admin, and what was done is in `weir policy audit`.",
		Args: known,
		RunE: showHelp,
	}
	a := newAdmin(env, cmd)
	cmd.AddCommand(newLedgerDistrust(a), newLedgerTrust(a))
	return cmd
}

func newLedgerDistrust(a *admin) *cobra.Command {
	var e edit
	var offline bool
	cmd := &cobra.Command{
		Use:   "distrust -m WHY",
		Short: "Say that commits may have been lost",
		Long: "Says that commits of the ledger may have been lost, as by a fail-over of PostgreSQL to a standby\n" +
			"that was behind. No share grows until every region has reported all it holds; no check is\n" +
			"denied or slower for it.\n\n" +
			"With --offline it writes to the database itself (WEIR_POSTGRES): stop the coordinators before the\n" +
			"fail-over, then do this, then start them, and none of them ever acts on what is missing.",
		Example: "  weir ledger distrust -m 'fail-over to db-2, which was 3 s behind'",
		Args:    noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.message == "" {
				return usagef("-m is missing: say why; it stays in the audit log")
			}
			by := policystore.Edit{Author: a.env.author(), Message: e.message}
			if offline {
				url, _ := a.env.lookupEnv("WEIR_POSTGRES")
				if err := configured(app.DistrustLedger(cmd.Context(), app.PostgresConfig{URL: url}, by)); err != nil {
					return err
				}
			} else if err := a.keep(cmd, func(c *rpc.StatusClient) error { return c.DistrustLedger(cmd.Context(), by) }); err != nil {
				return err
			}
			a.env.say("the ledger is distrusted: nothing grows until every region has reported; look at weir status")
			return nil
		},
	}
	e.flags(cmd)
	cmd.Flags().BoolVar(&offline, "offline", false, "write to the database of WEIR_POSTGRES, while no coordinator runs")
	return cmd
}

func newLedgerTrust(a *admin) *cobra.Command {
	var e edit
	var force bool
	cmd := &cobra.Command{
		Use:   "trust -m WHY",
		Short: "Say that the ledger is complete again",
		Long: "Says that a ledger that may have lost commits is complete again. It is refused while a region has\n" +
			"not reported all it holds. With --force you vouch for those regions: whatever they held, they\n" +
			"limit no traffic with it any more.",
		Example: "  weir ledger trust -m 'all regions have reported, one window has passed'",
		Args:    noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.message == "" {
				return usagef("-m is missing: say why; it stays in the audit log")
			}
			by := policystore.Edit{Author: a.env.author(), Message: e.message}
			if err := a.keep(cmd, func(c *rpc.StatusClient) error { return c.TrustLedger(cmd.Context(), by, force) }); err != nil {
				return err
			}
			a.env.say("the ledger is trusted")
			return nil
		},
	}
	e.flags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "vouch for regions that have not reported")
	return cmd
}

// keep makes one call about the ledger.
func (a *admin) keep(cmd *cobra.Command, do func(*rpc.StatusClient) error) error {
	client, err := a.statusClient(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return do(client)
}
