package main

import (
	"context"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
)

const (
	// completeWithin is how long a shell waits for proposals. Without an answer there are none.
	completeWithin = time.Second
	// maxProposed bounds the policies or revisions that are proposed.
	maxProposed = 200
)

const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeFlag registers proposals for a flag.
func completeFlag(cmd *cobra.Command, flag string, propose cobra.CompletionFunc) {
	// It fails only when the flag does not exist or has proposals already.
	_ = cmd.RegisterFlagCompletionFunc(flag, propose)
}

// onlyFirst proposes for the first argument and nothing for others.
func onlyFirst(propose cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		return propose(cmd, args, prefix)
	}
}

// contextNames proposes the contexts that there are.
func contextNames(env *environment) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		quiet := *env
		quiet.stderr = io.Discard
		c, err := loadContexts(&quiet)
		if err != nil {
			return nil, noFiles
		}
		return startingWith(prefix, slices.Sorted(maps.Keys(c.Contexts))), noFiles
	}
}

func startingWith(prefix string, all []cobra.Completion) []cobra.Completion {
	return slices.DeleteFunc(all, func(c cobra.Completion) bool { return !strings.HasPrefix(c, prefix) })
}

// ask proposes what a server knows. It is bounded in time and fails in silence:
// a prompt is no place for errors.
func (a *admin) ask(list func(ctx context.Context, c *rpc.PolicyClient, args []string, prefix string) ([]cobra.Completion, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		stderr := a.env.stderr
		a.env.stderr = io.Discard
		defer func() { a.env.stderr = stderr }()
		if a.env.bind(cmd) != nil {
			return nil, noFiles
		}
		client, err := a.client(cmd)
		if err != nil {
			return nil, noFiles
		}
		defer func() { _ = client.Close() }()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		all, err := list(ctx, client, args, prefix)
		if err != nil {
			return nil, noFiles
		}
		directive := noFiles
		if len(all) > 0 && strings.HasSuffix(all[0], "=") {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return startingWith(prefix, all), directive
	}
}

func policyIDs(ctx context.Context, c *rpc.PolicyClient, _ []string, prefix string) ([]cobra.Completion, error) {
	page, err := c.List(ctx, rpc.Query{Search: prefix, Size: maxProposed})
	if err != nil {
		return nil, err
	}
	var ids []cobra.Completion
	for _, p := range page.Items {
		ids = append(ids, p.ID)
	}
	return ids, nil
}

// revisionNumbers proposes the newest revisions, with what each changed.
func revisionNumbers(ctx context.Context, c *rpc.PolicyClient, _ []string, _ string) ([]cobra.Completion, error) {
	page, err := c.ListRevisions(ctx, rpc.Query{Size: maxProposed})
	if err != nil {
		return nil, err
	}
	var numbers []cobra.Completion
	for _, r := range page.Items {
		numbers = append(numbers, cobra.CompletionWithDesc(strconv.FormatInt(r.Number, 10), cell(r.Author)+": "+cell(r.Text)))
	}
	return numbers, nil
}

func tokenIDs(ctx context.Context, c *rpc.PolicyClient, _ []string, _ string) ([]cobra.Completion, error) {
	page, err := c.ListTokens(ctx, rpc.Query{Size: maxProposed})
	if err != nil {
		return nil, err
	}
	var ids []cobra.Completion
	for _, t := range page.Items {
		if t.Revoked.IsZero() {
			ids = append(ids, cobra.CompletionWithDesc(t.ID, string(t.Role)))
		}
	}
	return ids, nil
}

// policyKeys proposes policies, then the names of the chosen one's key.
func policyKeys(ctx context.Context, c *rpc.PolicyClient, args []string, prefix string) ([]cobra.Completion, error) {
	if len(args) == 0 {
		return policyIDs(ctx, c, args, prefix)
	}
	p, err := c.Get(ctx, args[0], nil)
	if err != nil {
		return nil, err
	}
	var names []cobra.Completion
	for _, key := range p.Policy.Key {
		given := func(arg string) bool { return strings.HasPrefix(arg, key+"=") }
		if !slices.ContainsFunc(args[1:], given) {
			names = append(names, key+"=")
		}
	}
	return names, nil
}
