package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
)

func newPolicyDiff(a *admin) *cobra.Command {
	var ch changes
	cmd := &cobra.Command{
		Use:   "diff {-f FILE|FOLDER|- | FROM [TO]}",
		Short: "Compare documents with the policies, or two revisions",
		Long: "Compares documents with the newest revision, as `weir policy apply` would change it, or two\n" +
			"revisions with each other; without TO the newest one is meant.\n\n" +
			"Exits with 0 when there is no difference, 1 when there is one, and 2 when it failed.",
		Args:              takes(0, 2),
		ValidArgsFunction: a.ask(revisionNumbers),
	}
	ch.flags(a, cmd)
	compare := a.run(func(c session) error {
		if len(c.args) > 0 {
			return compareRevisions(a, c, len(ch.files)+len(ch.remove) > 0)
		}
		return ch.compare(a, c)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := compare(cmd, args)
		if err == nil || errors.Is(err, errDiffers) {
			return err
		}
		return &exitCodeError{exitTrouble, err}
	}
	return cmd
}

var errDiffers = &exitCodeError{code: exitDiffers}

// compare says what applying the documents would change.
func (ch *changes) compare(a *admin, c session) error {
	docs, change, err := ch.read(a.env.stdin)
	if err != nil {
		return err
	}
	change.DryRun = true
	planned, err := c.Apply(c.cmd.Context(), change)
	if err != nil {
		return refused(c, docs, err)
	}
	err = a.out.print(a.env.stdout, planned.JSON, func(w io.Writer) error { return diffTable(w, planned) })
	return differs(a, err, planned.Diff.Empty())
}

func compareRevisions(a *admin, c session, documents bool) error {
	if documents {
		return usagef("-f compares documents with the newest revision; leave the revisions out")
	}
	from, err := revisionNumber(c.args[0])
	if err != nil {
		return err
	}
	var to *int64
	if len(c.args) > 1 {
		n, err := revisionNumber(c.args[1])
		if err != nil {
			return err
		}
		to = &n
	}
	d, err := c.Diff(c.cmd.Context(), from, to)
	if err != nil {
		return err
	}
	err = a.out.print(a.env.stdout, d.JSON, func(w io.Writer) error {
		return diffTable(w, &rpc.Applied{Diff: d.Diff})
	})
	return differs(a, err, d.Diff.Empty())
}

func differs(a *admin, err error, same bool) error {
	switch {
	case err != nil:
		return err
	case same:
		a.env.say("no difference")
		return nil
	}
	return errDiffers
}

func newPolicyRollback(a *admin) *cobra.Command {
	var g guarded
	cmd := &cobra.Command{
		Use:   "rollback REVISION",
		Short: "Return to an earlier revision",
		Long: "Makes a new revision that is equal to an earlier one; 0 is the empty set. When the newest\n" +
			"revision is live in some regions only, rolling back to that one takes it everywhere.",
		Args: takes(1, 1), ValidArgsFunction: onlyFirst(a.ask(revisionNumbers)),
		RunE: a.run(func(c session) error {
			to, err := revisionNumber(c.args[0])
			if err != nil {
				return err
			}
			expect, err := g.expected(c.cmd)
			if err != nil {
				return err
			}
			applied, err := c.Rollback(c.cmd.Context(), rpc.Rollback{Edit: g.by(a.env), To: to, Expect: expect, DryRun: g.dryRun})
			if err != nil {
				return err
			}
			a.outcomeOf(applied, g.dryRun)
			return a.out.print(a.env.stdout, applied.JSON, func(w io.Writer) error { return diffTable(w, applied) })
		}),
	}
	g.flags(a, cmd)
	return cmd
}
