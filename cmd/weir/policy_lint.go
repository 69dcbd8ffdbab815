package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

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
	Warnings []problemView `json:"warnings,omitempty"`
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

func newProblemView(p fileProblem) problemView {
	return problemView{p.File, p.Path, p.Line, p.Column, p.Reason, p.Remedy, p.Nearest}
}

func newPolicyLint(a *admin) *cobra.Command {
	var remote bool
	var regions string
	cmd := &cobra.Command{
		Use:   "lint FILE|FOLDER|- ...",
		Short: "Find everything that is wrong with policy documents",
		Long: "Finds everything that is wrong with policy documents, which are one set together. It needs no\n" +
			"server; with --remote the coordinator reads them, which may be of another version.\n\n" +
			"It warns of limits that are too small to be split between the regions. How many these are the\n" +
			"coordinator knows; without one, --regions says it. And it says what partition mode strict costs.\n" +
			"A warning is no failure.",
		Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.out.check(); err != nil {
				return err
			}
			read := reading{parse: app.ParsePolicies, warn: app.StrictModes}
			n, err := regionCount(regions)
			switch {
			case err != nil:
				return err
			case remote && n > 0:
				return usagef("--regions and --remote exclude each other: the coordinator knows its regions")
			case remote:
				client, err := a.client(cmd)
				if err != nil {
					return err
				}
				defer func() { _ = client.Close() }()
				read = remotely(cmd.Context(), client)
			case n > 0:
				read.warn = func(text []byte) []quota.Problem {
					return append(app.SmallLimits(text, n), app.StrictModes(text)...)
				}
			}
			docs, err := readDocuments(a.env.stdin, args)
			if err != nil {
				return err
			}
			policies, wrong, err := lint(docs, read.parse)
			if err == nil && wrong == nil && !remote {
				_, err = quota.Compile(0, policies, nil)
			}
			if err != nil {
				return err
			}
			var warnings []fileProblem
			for _, doc := range docs {
				for _, p := range read.warn(doc.Text) {
					warnings = append(warnings, fileProblem{doc.Name, p})
				}
			}
			return printLint(a, docs, len(policies), wrong, warnings)
		},
	}
	cmd.Flags().StringVar(&regions, "regions", "", "how many regions share the limits, or their names as the coordinator has them: warn of limits too small for so many")
	completeFlag(cmd, "regions", cobra.NoFileCompletions)
	cmd.Flags().BoolVar(&remote, "remote", false, "let the coordinator read the documents")
	return cmd
}

// regionCount reads a number of regions, or names that are counted.
func regionCount(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 {
			return 0, usagef("--regions %d: use 1 or more, or the names of the regions", n)
		}
		return n, nil
	}
	return strings.Count(text, ",") + 1, nil
}

func printLint(a *admin, docs []app.PolicyDocument, policies int, wrong *problemsError, warnings []fileProblem) error {
	view := lintView{Valid: wrong == nil, Policies: policies}
	if wrong != nil {
		view.Omitted = wrong.omitted
		for _, p := range wrong.problems {
			view.Problems = append(view.Problems, newProblemView(p))
		}
	}
	for _, p := range warnings {
		view.Warnings = append(view.Warnings, newProblemView(p))
	}
	err := a.out.print(a.env.stdout, own(view), func(w io.Writer) error {
		if wrong != nil {
			for _, p := range wrong.problems {
				fmt.Fprintln(w, p)
			}
		}
		for _, p := range warnings {
			fmt.Fprintln(w, warningText(p))
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case wrong == nil && len(warnings) > 0:
		a.env.say("%s: nothing wrong, %s", count(len(docs), "document", "documents"), count(len(warnings), "warning", "warnings"))
		return nil
	case wrong == nil:
		a.env.say("%s: nothing wrong", count(len(docs), "document", "documents"))
		return nil
	}
	return errors.New(countProblems(len(wrong.problems) + wrong.omitted))
}

// warningText is the form of fileProblem that says that it is none.
func warningText(p fileProblem) string {
	p.Path = "warning: " + p.Path
	return p.String()
}

// warn tells on the side what a document that was accepted will not do.
func (a *admin) warn(docs []app.PolicyDocument, warnings []quota.Problem) {
	for _, p := range warnings {
		name := "the merged documents"
		if len(docs) == 1 {
			name = docs[0].Name
		} else {
			p.Line, p.Column = 0, 0 // of a text that nobody has seen
		}
		a.env.say("%s", warningText(fileProblem{name, p}))
	}
}

// reading is how documents are read and what is said about valid ones.
type reading struct {
	parse func(text []byte) ([]*quota.Policy, error)
	warn  func(text []byte) []quota.Problem
}

// remotely has the coordinator read. Of the policies only the number comes back.
func remotely(ctx context.Context, c *rpc.PolicyClient) reading {
	warnings := map[string][]quota.Problem{}
	return reading{
		parse: func(text []byte) ([]*quota.Policy, error) {
			v, err := c.Validate(ctx, text)
			if err != nil {
				return nil, err
			}
			if v.Err != nil {
				return nil, v.Err
			}
			warnings[string(text)] = v.Warnings
			return make([]*quota.Policy, v.Policies), nil
		},
		warn: func(text []byte) []quota.Problem { return warnings[string(text)] },
	}
}
