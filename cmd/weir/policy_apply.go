package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// changes are the flags that say what the policies are to be.
type changes struct {
	files  []string
	patch  bool
	remove []string
}

func (ch *changes) flags(a *admin, cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&ch.files, "file", "f", nil, "document, folder of documents, or - for stdin; several are one set")
	cmd.Flags().BoolVar(&ch.patch, "patch", false, "add or replace these policies and leave all others as they are")
	cmd.Flags().StringArrayVar(&ch.remove, "delete", nil, "id of a policy to remove; goes with --patch, or without any -f")
	completeFlag(cmd, "delete", a.ask(policyIDs))
}

// read returns the documents and the change that they ask for.
func (ch *changes) read(stdin io.Reader) ([]app.PolicyDocument, rpc.Change, error) {
	change := rpc.Change{Patch: ch.patch, Delete: ch.remove}
	switch {
	case len(ch.files) == 0 && len(ch.remove) == 0:
		return nil, change, usagef("nothing to apply; pass -f FILE, -f FOLDER or -f - for stdin")
	case len(ch.files) == 0:
		change.Patch = true
		return nil, change, nil
	case len(ch.remove) > 0 && !ch.patch:
		return nil, change, usagef("--delete goes with --patch: without it the documents are the whole set, and what they leave out is removed")
	}
	docs, err := readDocuments(stdin, ch.files)
	if err != nil {
		return nil, change, err
	}
	change.Document, err = merge(docs)
	return docs, change, err
}

// applying is one run of `weir policy apply`.
type applying struct {
	changes
	guarded
	regions []string
	yes     bool
}

func newPolicyApply(a *admin) *cobra.Command {
	var p applying
	cmd := &cobra.Command{
		Use:   "apply -f FILE|FOLDER|- [-f ...]",
		Short: "Make the policies what documents say",
		Long: "Makes the policies what the documents say, as a new revision of the whole set: policies that\n" +
			"they leave out are removed. With --patch they are added or replaced, and others stay.\n\n" +
			"On a terminal it shows what would change and asks. Without a terminal a change that would\n" +
			"remove what is left out needs --yes.",
		Example: "  weir policy apply -f policies/ -m 'double the free tier'\n" +
			"  weir policy apply -f login.yaml --patch --region eu-west\n" +
			"  weir policy apply --delete old-login",
		Args: noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.run(func(c session) error {
			docs, change, err := p.read(a.env.stdin)
			if err != nil {
				return err
			}
			if change.Expect, err = p.expected(c.cmd); err != nil {
				return err
			}
			change.Edit, change.DryRun = p.by(a.env), p.dryRun
			for _, r := range p.regions {
				change.Regions = append(change.Regions, quota.Region(r))
			}
			return refused(c, docs, p.apply(a, c, docs, change))
		}),
	}
	p.changes.flags(a, cmd)
	p.guarded.flags(a, cmd)
	cmd.Flags().StringArrayVar(&p.regions, "region", nil, "make it live in this region only; repeat it for several")
	cmd.Flags().BoolVar(&p.yes, "yes", false, "do not ask, and remove what the documents leave out")
	completeFlag(cmd, "region", cobra.NoFileCompletions)
	return cmd
}

func (p *applying) apply(a *admin, c session, docs []app.PolicyDocument, change rpc.Change) error {
	ask := a.interactive() && !slices.Contains(p.files, "-")
	var applied *rpc.Applied
	var err error
	if p.dryRun || p.yes || change.Patch && !ask {
		applied, err = c.Apply(c.cmd.Context(), change)
	} else {
		applied, err = p.agreed(a, c, change, ask)
	}
	if err != nil {
		return err
	}
	a.warn(docs, applied.Warnings)
	a.outcomeOf(applied, p.dryRun)
	return a.out.print(a.env.stdout, applied.JSON, func(w io.Writer) error { return diffTable(w, applied) })
}

// maxOvertaken is how often a change is looked at again when others were faster.
const maxOvertaken = 10

// agreed applies a change once the user has agreed to what it does. What is
// applied is what was looked at: when somebody else was faster, it looks again.
func (p *applying) agreed(a *admin, c session, change rpc.Change, ask bool) (*rpc.Applied, error) {
	for tries := 0; ; tries++ {
		look := change
		look.DryRun = true
		planned, err := c.Apply(c.cmd.Context(), look)
		if err != nil {
			return nil, err
		}
		if err := a.agree(planned, change, ask); err != nil {
			return nil, err
		}
		seen := change
		if seen.Expect == nil {
			seen.Expect = &planned.Revision.Number
		}
		applied, err := c.Apply(c.cmd.Context(), seen)
		overtaken := change.Expect == nil && errors.Is(err, quota.ErrConflict)
		if !overtaken || tries == maxOvertaken {
			return applied, err
		}
	}
}

var errDisagreed = errors.New("nothing was changed: you did not say yes")

// agree returns nil when the change may be made.
func (a *admin) agree(planned *rpc.Applied, change rpc.Change, ask bool) error {
	removed := planned.Diff.Summary().Removed
	if !ask {
		if len(removed) > 0 {
			return usagef("%d policies are left out and would be removed (%s); pass --yes if that is meant, or --patch to keep them",
				len(removed), someOf(removed))
		}
		return nil
	}
	if planned.Diff.Empty() && slices.Equal(planned.Revision.Regions, change.Regions) {
		return nil // nothing will happen
	}
	fmt.Fprint(a.env.stderr, planned.Diff.String())
	where := "everywhere"
	if len(change.Regions) > 0 {
		where = "in " + regionNames(change.Regions)
	}
	fmt.Fprintf(a.env.stderr, "Change revision %d like this, %s? [y/N] ", planned.Revision.Number, where)
	answer, err := bufio.NewReader(a.env.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errDisagreed
	}
	return nil
}

// interactive reports whether there is somebody to ask.
func (a *admin) interactive() bool {
	f, ok := a.env.stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// someOf lists ids, the first few of many.
func someOf(ids []string) string {
	const most = 8
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return strings.Join(ids[:most], ", ") + ", ..."
}

// diffTable prints what a change does; nothing when it does nothing.
func diffTable(w io.Writer, applied *rpc.Applied) error {
	if applied.Diff.Empty() {
		return nil
	}
	_, err := io.WriteString(w, applied.Diff.String())
	return err
}
