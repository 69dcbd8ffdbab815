package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

func newPolicy(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Read and change the policies",
		Long: "Reads and changes the policies that the coordinator keeps: revisions of the whole set, and\n" +
			"overrides of single keys beside them.",
		Args: known,
		RunE: showHelp,
	}
	a := newAdmin(env, cmd)
	cmd.AddCommand(
		newPolicyApply(a), newPolicyGet(a), newPolicyList(a), newPolicyDiff(a), newPolicyHistory(a),
		newPolicyRollback(a), newPolicyLint(a), newOverride(a), newPolicyAudit(a),
	)
	return cmd
}

// edit are the flags of every change.
type edit struct{ message string }

func (e *edit) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&e.message, "message", "m", "", "why; it stays in the history")
	completeFlag(cmd, "message", cobra.NoFileCompletions)
}

func (e *edit) by(env *environment) rpc.Edit {
	return rpc.Edit{Author: env.author(), Message: e.message}
}

// guarded are the flags of changes of the set.
type guarded struct {
	edit
	expect int64
	dryRun bool
}

func (g *guarded) flags(a *admin, cmd *cobra.Command) {
	g.edit.flags(cmd)
	cmd.Flags().BoolVar(&g.dryRun, "dry-run", false, "say what would change, and change nothing")
	cmd.Flags().Int64Var(&g.expect, "expect-revision", 0, "fail with exit code 4 unless this is the newest revision")
	completeFlag(cmd, "expect-revision", a.ask(revisionNumbers))
}

// expected returns the revision that the change was made for; nil is any.
func (g *guarded) expected(cmd *cobra.Command) (*int64, error) {
	return optionalRevision(cmd, "expect-revision", g.expect)
}

func optionalRevision(cmd *cobra.Command, flag string, n int64) (*int64, error) {
	if !cmd.Flags().Changed(flag) {
		return nil, nil //nolint:nilnil // absent is a value here
	}
	if n < 0 {
		return nil, usagef("--%s %d: revisions count from 0, the empty set", flag, n)
	}
	return &n, nil
}

func revisionNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, usagef("%q is no revision: revisions are numbered from 0, the empty set; see weir policy history", text)
	}
	return n, nil
}

// outcomeOf tells what became of a change, beside the data on stdout.
func (a *admin) outcomeOf(applied *rpc.Applied, dryRun bool) {
	r := applied.Revision
	switch {
	case dryRun:
		a.env.say("dry run: nothing was changed; the newest revision is %d", r.Number)
	case !applied.Committed:
		a.env.say("nothing to change: revision %d says the same", r.Number)
	case len(r.Regions) > 0:
		a.env.say("revision %d is live in %s only; take it everywhere with: weir policy rollback %d; undo it with: weir policy rollback %d",
			r.Number, regionNames(r.Regions), r.Number, r.Number-1)
	default:
		a.env.say("revision %d is live", r.Number)
	}
}

func regionNames(regions []quota.Region) string {
	names := make([]string, len(regions))
	for i, r := range regions {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}
