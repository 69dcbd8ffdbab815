package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func newToken(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make and revoke API tokens",
		Long: "Makes and revokes API tokens. A server keeps only a hash of a token's secret, so that it is\n" +
			"shown once, when the token is made.",
		Args: known,
		RunE: showHelp,
	}
	a := newAdmin(env, cmd)
	cmd.AddCommand(newTokenCreate(a), newTokenList(a), newTokenRevoke(a))
	return cmd
}

// createdView is the API's CreateTokenResponse.
type createdView struct {
	Secret string    `json:"secret"`
	Token  tokenView `json:"token"`
}

type tokenView struct {
	ID        string `json:"id"`
	Role      string `json:"role"`
	Region    string `json:"region,omitempty"`
	Author    string `json:"author,omitempty"`
	CreatedAt string `json:"createdAt,omitempty"`
	ExpiresAt string `json:"expiresAt,omitempty"`
}

func newCreatedView(secret rpc.Secret, t policystore.Token) createdView {
	return createdView{string(secret), tokenView{
		ID: t.ID, Role: string(t.Role), Region: string(t.Region), Author: t.Author,
		CreatedAt: timestamp(t.Created), ExpiresAt: timestamp(t.Expires),
	}}
}

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func newTokenCreate(a *admin) *cobra.Command {
	var e edit
	var role, region, expires string
	cmd := &cobra.Command{
		Use:   "create ID --role viewer|editor|admin|region",
		Short: "Make a token and print its secret, once",
		Long: "Makes a token and prints its secret to stdout and nowhere else. Keep it: nobody can show it\n" +
			"again. viewer may read, editor may change policies as well, admin may make tokens as well,\n" +
			"and region is for the nodes of one region.",
		Example: "  weir token create ci --role editor --expires 90d > token.txt\n" +
			"  weir token create us-east-nodes --role region --region us-east > token.txt",
		Args: takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.run(func(c session) error {
			if role == "" {
				return usagef("--role is missing: viewer, editor, admin or region")
			}
			end, err := expiry(expires, time.Now())
			if err != nil {
				return err
			}
			secret, t, err := c.CreateToken(c.cmd.Context(), policystore.Token{
				ID: c.args[0], Role: policystore.Role(role), Region: quota.Region(region), Expires: end,
			}, e.message)
			if err != nil {
				return err
			}
			a.env.say("token %s has the role %s and expires: %s; its secret cannot be shown again", t.ID, t.Role, when(t.Expires))
			return a.out.print(a.env.stdout, own(newCreatedView(secret, t)), func(w io.Writer) error {
				_, err := fmt.Fprintln(w, string(secret))
				return err
			})
		}),
	}
	e.flags(cmd)
	cmd.Flags().StringVar(&role, "role", "", "viewer, editor, admin or region")
	cmd.Flags().StringVar(&region, "region", "", "the region of a token of role region")
	cmd.Flags().StringVar(&expires, "expires", "", "when it ends: a duration such as 90d, or a time such as 2030-01-31T00:00:00Z; never, if not given")
	completeFlag(cmd, "role", cobra.FixedCompletions([]cobra.Completion{"viewer", "editor", "admin", "region"}, noFiles))
	completeFlag(cmd, "region", cobra.NoFileCompletions)
	completeFlag(cmd, "expires", cobra.NoFileCompletions)
	return cmd
}

func newTokenList(a *admin) *cobra.Command {
	var p paging
	cmd := &cobra.Command{
		Use: "list", Short: "List the tokens, without their secrets", Args: noArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.run(func(c session) error {
			return listPages(a, c, p, rpc.Query{}, lister[policystore.Token]{
				what: "tokens", columns: []string{"ID", "ROLE", "REGION", "AUTHOR", "CREATED", "EXPIRES", "REVOKED"},
				row: func(t policystore.Token) []string {
					return []string{t.ID, string(t.Role), string(t.Region), t.Author, when(t.Created), when(t.Expires), when(t.Revoked)}
				},
				fetch: func(c session, q rpc.Query) (*rpc.Page[policystore.Token], error) {
					return c.ListTokens(c.cmd.Context(), q)
				},
			})
		}),
	}
	p.flags(cmd)
	return cmd
}

func newTokenRevoke(a *admin) *cobra.Command {
	var e edit
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "End a token for good", Args: takes(1, 1),
		ValidArgsFunction: onlyFirst(a.ask(tokenIDs)),
		RunE: a.run(func(c session) error {
			if err := c.RevokeToken(c.cmd.Context(), c.args[0], e.message); err != nil {
				return err
			}
			a.env.say("token %s is revoked", c.args[0])
			return nil
		}),
	}
	e.flags(cmd)
	return cmd
}

func newWhoAmI(env *environment) *cobra.Command {
	cmd := &cobra.Command{Use: "whoami", Short: "Say whom the coordinator takes you for", Args: noArgs, ValidArgsFunction: cobra.NoFileCompletions}
	a := newAdmin(env, cmd)
	cmd.RunE = a.run(func(c session) error {
		who, err := c.WhoAmI(c.cmd.Context())
		if err != nil {
			return err
		}
		return a.out.print(env.stdout, who.JSON, func(w io.Writer) error {
			if !who.Authenticated {
				_, err := fmt.Fprintln(w, "nobody: this server knows no callers and lets everybody do everything")
				return err
			}
			return pairs(w, "token", who.ID, "role", string(who.Role), "region", string(who.Region), "expires", when(who.Expires))
		})
	})
	return cmd
}
