package main

import (
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/app"
)

func newSim(env *environment) *cobra.Command {
	var cfg app.SimConfig
	var out output
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Replay demand through the split of a limit, in virtual time",
		Long: "Replays demand through the split of one global limit in virtual time and compares what is\n" +
			"admitted with an ideal central bucket, and with textbook ways to split. The splitter, the\n" +
			"coordinator and its ledger are those that a deployment runs. Needs no server.\n\n" +
			"EVENT is the part of a scenario in which something happens; docs/sim.md says what each column is.",
		Example: "  weir sim --scenario flash --plot flash.svg\n  weir sim --csv demand.csv --rate 500 --algorithm weir -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			reports, err := app.RunSim(cmd.Context(), cfg)
			if err != nil {
				return configured(err)
			}
			data := own(reports)
			if len(reports) == 1 {
				data = own(reports[0])
			}
			return out.print(env.stdout, data, func(w io.Writer) error { return simTable(w, reports) })
		},
	}
	cfg.Flags(cmd.Flags())
	out.flags(cmd.Flags())
	completeFlag(cmd, "scenario", cobra.FixedCompletions(append(app.SimScenarios(), "all"), cobra.ShellCompDirectiveNoFileComp))
	completeFlag(cmd, "algorithm", cobra.FixedCompletions(append(app.SimAlgorithms(), "all"), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func simTable(w io.Writer, reports []*app.SimReport) error {
	t := newTable(w, "SCENARIO", "ALGORITHM", "% OF IDEAL", "EVENT %", "SHARES OVER LIMIT %", "ENVELOPE BROKEN", "WRONG DENIALS %", "CHANGES/H", "VICTIMS %")
	digits := func(x float64, n int) string { return strconv.FormatFloat(x, 'f', n, 64) }
	for _, r := range reports {
		for i := range r.Results {
			x := &r.Results[i]
			victims := ""
			if x.VictimsServed != nil {
				victims = digits(*x.VictimsServed, 2)
			}
			t.row(r.Scenario, x.Algorithm, digits(x.Utilisation, 2), digits(x.EventUtilisation, 2), digits(x.SharesOverLimitMax, 2),
				strconv.Itoa(x.EnvelopeViolations), digits(x.WrongDenials, 3), digits(x.ChangesPerHour, 1), victims)
		}
	}
	return t.flush()
}
