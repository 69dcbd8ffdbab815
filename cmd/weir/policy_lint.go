package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// lintView is the result of lint: the API's ValidateResponse, and with each
// problem the file that it is in.
type lintView struct {
	Valid    bool          `json:"valid"`
	Problems []problemView `json:"problems,omitempty"`
	Omitted  int           `json:"omitted,omitempty"`
	Policies int           `json:"policies,omitempty"`
}

type problemView struct {
	File    string `json:"file"`
	Path    string `json:"path,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Reason  string `json:"reason"`
	Remedy  string `json:"remedy,omitempty"`
	Nearest string `json:"nearest,omitempty"`
}

func newPolicyLint(a *admin) *cobra.Command {
	var remote bool
	cmd := &cobra.Command{
		Use:   "lint FILE|FOLDER|- ...",
		Short: "Find everything that is wrong with policy documents",
		Long: "Finds everything that is wrong with policy documents, which are one set together. It needs no\n" +
			"server; with --remote the coordinator reads them, which may be of another version.",
		Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.out.check(); err != nil {
				return err
			}
			parse := app.ParsePolicies
			if remote {
				client, err := a.client(cmd)
				if err != nil {
					return err
				}
				defer func() { _ = client.Close() }()
				parse = func(text []byte) ([]*quota.Policy, error) { return validate(cmd.Context(), client, text) }
			}
			docs, err := readDocuments(a.env.stdin, args)
			if err != nil {
				return err
			}
			policies, wrong, err := lint(docs, parse)
			if err == nil && wrong == nil && !remote {
				_, err = quota.Compile(0, policies, nil)
			}
			if err != nil {
				return err
			}
			return printLint(a, docs, len(policies), wrong)
		},
	}
	cmd.Flags().BoolVar(&remote, "remote", false, "let the coordinator read the documents")
	return cmd
}

func printLint(a *admin, docs []app.PolicyDocument, policies int, wrong *problemsError) error {
	view := lintView{Valid: wrong == nil, Policies: policies}
	if wrong != nil {
		view.Omitted = wrong.omitted
		for _, p := range wrong.problems {
			view.Problems = append(view.Problems, problemView{p.File, p.Path, p.Line, p.Column, p.Reason, p.Remedy, p.Nearest})
		}
	}
	err := a.out.print(a.env.stdout, own(view), func(w io.Writer) error {
		if wrong == nil {
			return nil
		}
		for _, p := range wrong.problems {
			fmt.Fprintln(w, p)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case wrong == nil:
		a.env.say("%s: nothing wrong", count(len(docs), "document", "documents"))
		return nil
	}
	return errors.New(countProblems(len(wrong.problems) + wrong.omitted))
}

// validate has the form of app.ParsePolicies. Of the policies only the number
// comes back.
func validate(ctx context.Context, c *rpc.PolicyClient, text []byte) ([]*quota.Policy, error) {
	v, err := c.Validate(ctx, text)
	if err != nil {
		return nil, err
	}
	if v.Err != nil {
		return nil, v.Err
	}
	return make([]*quota.Policy, v.Policies), nil
}
