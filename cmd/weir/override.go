package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func newOverride(a *admin) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "override",
		Short: "Give single keys numbers of their own",
		Long: "Gives single keys of a policy numbers of their own. A key is named by name=value pairs, one\n" +
			"for each attribute of the policy's key, in any order.",
		Args: known,
		RunE: showHelp,
	}
	cmd.AddCommand(newOverrideSet(a), newOverrideGet(a), newOverrideList(a), newOverrideDelete(a))
	return cmd
}

func newOverrideSet(a *admin) *cobra.Command {
	var e edit
	var n numbers
	var expires string
	cmd := &cobra.Command{
		Use:   "set POLICY name=value ...",
		Short: "Set the override of a key",
		Example: "  weir policy override set api-free apiKey=ak_17 --capacity 500 --refill 1000/1m --expires 7d\n" +
			"  weir policy override set login ip=203.0.113.7 username=ada --limit 100\n" +
			"  weir policy override set api-free apiKey=ak_ops --unlimited",
		Args: takes(2, -1), ValidArgsFunction: a.ask(policyKeys),
		RunE: a.run(func(c session) error {
			end, err := expiry(expires, time.Now())
			if err != nil {
				return err
			}
			p, err := c.Get(c.cmd.Context(), c.args[0], nil)
			if err != nil {
				return err
			}
			o := quota.Override{Policy: p.Policy.ID, Expires: end}
			if o.Key, err = keyOf(p.Policy.ID, p.Policy.Key, c.args[1:]); err != nil {
				return err
			}
			if o.Limit, o.Unlimited, err = n.limit(c.cmd, p.Policy); err != nil {
				return err
			}
			warnings, err := c.SetOverridesWarned(c.cmd.Context(), e.by(a.env), o)
			if err != nil {
				return err
			}
			a.env.say("override %s is set", policystore.IDOf(o))
			for _, w := range warnings {
				a.env.say("warning: %s", w)
			}
			return printOverride(a, c, policystore.IDOf(o))
		}),
	}
	e.flags(cmd)
	n.flags(cmd)
	cmd.Flags().StringVar(&expires, "expires", "", "when it ends: a duration such as 24h or 7d, or a time such as 2030-01-31T00:00:00Z")
	completeFlag(cmd, "expires", cobra.NoFileCompletions)
	return cmd
}

func newOverrideGet(a *admin) *cobra.Command {
	return &cobra.Command{
		Use: "get POLICY name=value ...", Short: "Print the override of a key",
		Args: takes(2, -1), ValidArgsFunction: a.ask(policyKeys),
		RunE: a.run(func(c session) error {
			id, err := overrideID(c)
			if err != nil {
				return err
			}
			return printOverride(a, c, id)
		}),
	}
}

func newOverrideDelete(a *admin) *cobra.Command {
	var e edit
	cmd := &cobra.Command{
		Use: "delete POLICY name=value ...", Short: "Delete the override of a key",
		Args: takes(2, -1), ValidArgsFunction: a.ask(policyKeys),
		RunE: a.run(func(c session) error {
			id, err := overrideID(c)
			if err != nil {
				return err
			}
			if err := c.DeleteOverrides(c.cmd.Context(), e.by(a.env), id); err != nil {
				return err
			}
			a.env.say("override %s is deleted", id)
			return nil
		}),
	}
	e.flags(cmd)
	return cmd
}

func newOverrideList(a *admin) *cobra.Command {
	var p paging
	var q rpc.Query
	cmd := &cobra.Command{
		Use: "list [POLICY]", Short: "List the overrides in force",
		Args: takes(0, 1), ValidArgsFunction: onlyFirst(a.ask(policyIDs)),
		RunE: a.run(func(c session) error {
			if len(c.args) > 0 {
				q.Policy = c.args[0]
			}
			return listPages(a, c, p, q, lister[quota.Override]{
				what: "overrides", columns: overrideColumns, row: overrideRow,
				fetch: func(c session, q rpc.Query) (*rpc.Page[quota.Override], error) {
					return c.ListOverrides(c.cmd.Context(), q)
				},
			})
		}),
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&q.Search, "search", "", "only keys with a value that holds this text")
	return cmd
}

var overrideColumns = []string{"OVERRIDE", "LIMIT", "EXPIRES"}

func overrideRow(o quota.Override) []string {
	return []string{policystore.IDOf(o).String(), limitText(o.Limit, o.Unlimited), when(o.Expires)}
}

func printOverride(a *admin, c session, id policystore.OverrideID) error {
	o, err := c.GetOverride(c.cmd.Context(), id.Policy, id.Key...)
	if err != nil {
		return err
	}
	return a.out.print(a.env.stdout, o.JSON, func(w io.Writer) error {
		t := newTable(w, overrideColumns...)
		t.row(overrideRow(o.Override)...)
		return t.flush()
	})
}

// overrideID reads POLICY name=value ... of an override that is there already.
func overrideID(c session) (policystore.OverrideID, error) {
	id := policystore.OverrideID{Policy: c.args[0]}
	p, err := c.Get(c.cmd.Context(), id.Policy, nil)
	var names []string
	switch {
	case err == nil:
		names = p.Policy.Key
	case errors.Is(err, quota.ErrNotFound):
		// An override can outlive its policy, and is to be found all the same: the
		// pairs are then taken in their order.
		for _, pair := range c.args[1:] {
			name, _, _ := strings.Cut(pair, "=")
			names = append(names, name)
		}
	default:
		return id, err
	}
	id.Key, err = keyOf(id.Policy, names, c.args[1:])
	return id, err
}

// keyOf puts the values of name=value pairs into the order of a policy's key.
func keyOf(policy string, names, pairs []string) ([]string, error) {
	if len(names) == 0 {
		return nil, usagef("policy %s counts everything together: it has no key to override", policy)
	}
	values := make([]string, len(names))
	given := make([]bool, len(names))
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usagef("%q: write the key as name=value, for example %s=...", pair, names[0])
		}
		i := slices.Index(names, name)
		if i < 0 {
			return nil, usagef("policy %s has no %q in its key; the key is %s", policy, name, strings.Join(names, ", "))
		}
		if given[i] {
			return nil, usagef("%q is given twice", name)
		}
		values[i], given[i] = value, true
	}
	if i := slices.Index(given, false); i >= 0 {
		return nil, usagef("%s=... is missing; the key of policy %s is %s", names[i], policy, strings.Join(names, ", "))
	}
	return values, nil
}
