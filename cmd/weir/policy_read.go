package main

import (
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func newPolicyGet(a *admin) *cobra.Command {
	var revision int64
	var region string
	cmd := &cobra.Command{
		Use:   "get [ID]",
		Short: "Print a policy, or the whole set, as a document",
		Long: "Prints a policy as a document that `weir policy apply --patch` takes. Without an id it prints\n" +
			"the whole set, as `weir policy apply` takes it.",
		Example: "  weir policy get api-free\n  weir policy get --revision 12 > policies.yaml",
		Args:    takes(0, 1), ValidArgsFunction: onlyFirst(a.ask(policyIDs)),
		RunE: a.run(func(c session) error {
			at, err := optionalRevision(c.cmd, "revision", revision)
			if err != nil {
				return err
			}
			if len(c.args) == 0 {
				return getSet(a, c, at, quota.Region(region))
			}
			if region != "" {
				return usagef("--region prints the whole set that is live there; leave the id out")
			}
			p, err := c.Get(c.cmd.Context(), c.args[0], at)
			if err != nil {
				return err
			}
			a.env.say("revision %d", p.Revision)
			return a.out.print(a.env.stdout, p.JSON, text(p.Document))
		}),
	}
	cmd.Flags().Int64Var(&revision, "revision", 0, "look in this revision instead of the newest")
	cmd.Flags().StringVar(&region, "region", "", "print the set that is live in this region")
	completeFlag(cmd, "revision", a.ask(revisionNumbers))
	completeFlag(cmd, "region", cobra.NoFileCompletions)
	return cmd
}

func getSet(a *admin, c session, at *int64, region quota.Region) error {
	get := func() (*rpc.RevisionDocument, error) { return c.GetRevision(c.cmd.Context(), at) }
	if region != "" {
		if at != nil {
			return usagef("--revision and --region exclude each other")
		}
		get = func() (*rpc.RevisionDocument, error) { return c.InForce(c.cmd.Context(), region) }
	}
	set, err := get()
	if err != nil {
		return err
	}
	a.env.say("revision %d", set.Revision.Number)
	return a.out.print(a.env.stdout, set.JSON, text(set.Document))
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func newPolicyList(a *admin) *cobra.Command {
	var p paging
	var q rpc.Query
	var revision int64
	cmd := &cobra.Command{
		Use: "list", Short: "List the policies", Args: noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.run(func(c session) error {
			at, err := optionalRevision(c.cmd, "revision", revision)
			if err != nil {
				return err
			}
			q.Revision = at
			return listPages(a, c, p, q, lister[*quota.Policy]{
				what: "policies", columns: []string{"ID", "LIMIT", "KEY", "SCOPE", "MATCH", "REMARKS"},
				row: policyRow,
				fetch: func(c session, q rpc.Query) (*rpc.Page[*quota.Policy], error) {
					return c.List(c.cmd.Context(), q)
				},
			})
		}),
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&q.Search, "search", "", "only ids that hold this text")
	cmd.Flags().Int64Var(&revision, "revision", 0, "look in this revision instead of the newest")
	completeFlag(cmd, "revision", a.ask(revisionNumbers))
	return cmd
}

func policyRow(p *quota.Policy) []string {
	var match, remarks []string
	for _, c := range p.Match {
		match = append(match, c.Attribute+"="+c.Pattern)
	}
	if p.Shadow {
		remarks = append(remarks, "shadow")
	}
	return []string{
		p.ID, limitText(p.Limit, p.Unlimited), strings.Join(p.Key, ","), p.Scope.String(),
		strings.Join(match, " "), strings.Join(remarks, ", "),
	}
}

// limitText says the numbers of a policy or of an override.
func limitText(l quota.Limit, unlimited bool) string {
	switch {
	case unlimited:
		return "unlimited"
	case l.Refill > 0:
		return l.Capacity.String() + " + " + l.Refill.String() + "/" + quota.FormatDuration(l.Period)
	case l.Period > 0:
		return l.Capacity.String() + " in " + quota.FormatDuration(l.Period)
	}
	return l.Capacity.String()
}

func newPolicyHistory(a *admin) *cobra.Command {
	var p paging
	var q rpc.Query
	cmd := &cobra.Command{
		Use: "history", Short: "List the revisions, newest first", Args: noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.run(func(c session) error {
			return listPages(a, c, p, q, lister[rpc.Revision]{
				what: "revisions", columns: []string{"REVISION", "WHEN", "AUTHOR", "LIVE", "CHANGE", "MESSAGE"},
				row: revisionRow,
				fetch: func(c session, q rpc.Query) (*rpc.Page[rpc.Revision], error) {
					return c.ListRevisions(c.cmd.Context(), q)
				},
			})
		}),
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&q.Author, "author", "", "only those by this author")
	cmd.Flags().StringVar(&q.Search, "search", "", "only those whose message holds this text")
	return cmd
}

func revisionRow(r rpc.Revision) []string {
	live := "everywhere"
	if len(r.Regions) > 0 {
		live = regionNames(r.Regions)
	}
	change := r.Text
	if r.RestoredFrom > 0 {
		change = "back to " + strconv.FormatInt(r.RestoredFrom, 10) + ": " + change
	}
	return []string{strconv.FormatInt(r.Number, 10), when(r.Time), r.Author, live, change, r.Message}
}

func newPolicyAudit(a *admin) *cobra.Command {
	var p paging
	var q rpc.Query
	cmd := &cobra.Command{
		Use: "audit", Short: "List who changed what, newest first", Args: noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.run(func(c session) error {
			return listPages(a, c, p, q, lister[policystore.AuditEntry]{
				what: "entries", columns: []string{"NUMBER", "WHEN", "AUTHOR", "ACTION", "REVISION", "DETAIL", "MESSAGE"},
				row: func(e policystore.AuditEntry) []string {
					return []string{
						strconv.FormatInt(e.Number, 10), when(e.Time), e.Author, string(e.Action),
						strconv.FormatInt(e.Revision, 10), e.Detail, e.Message,
					}
				},
				fetch: func(c session, q rpc.Query) (*rpc.Page[policystore.AuditEntry], error) {
					return c.ListAudit(c.cmd.Context(), q)
				},
			})
		}),
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&q.Author, "author", "", "only what this author did")
	cmd.Flags().StringVar(&q.Action, "action", "", "only this action, such as apply, rollback or set-overrides")
	cmd.Flags().StringVar(&q.Search, "search", "", "only where the message or the detail holds this text")
	return cmd
}
