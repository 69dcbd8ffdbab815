package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirhq/weir/internal/rpc"
)

const (
	defaultRows = 100
	// rowsPerCall is what the server gives at most in one answer.
	rowsPerCall = 1000
)

// paging are the flags of commands that list.
type paging struct {
	limit int
	page  string
}

func (p *paging) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", defaultRows, "list at most so many; 0 lists all")
	cmd.Flags().StringVar(&p.page, "page", "", "go on where an earlier list ended: the token that it named")
	completeFlag(cmd, "limit", cobra.NoFileCompletions)
	completeFlag(cmd, "page", cobra.NoFileCompletions)
}

// lister says how to list things of one kind.
type lister[T any] struct {
	// what are the things called.
	what    string
	columns []string
	row     func(T) []string
	fetch   func(session, rpc.Query) (*rpc.Page[T], error)
}

// listPages prints pages until the limit. As a table they are one; as data each
// is the answer of the API, one document after the other.
func listPages[T any](a *admin, c session, p paging, q rpc.Query, l lister[T]) error {
	if p.limit < 0 {
		return usagef("--limit %d: use 1 or more, or 0 for all", p.limit)
	}
	q.Page = p.page
	t := newTable(a.env.stdout, l.columns...)
	listed, pages := 0, 0
	for {
		q.Size = rowsPerCall
		if p.limit > 0 {
			q.Size = min(p.limit-listed, rowsPerCall)
		}
		page, err := l.fetch(c, q)
		if err != nil {
			return err
		}
		if pages++; pages > 1 && a.out.format == "yaml" {
			fmt.Fprintln(a.env.stdout, "---")
		}
		listed += len(page.Items)
		err = a.out.print(a.env.stdout, page.JSON, func(io.Writer) error {
			for _, item := range page.Items {
				t.row(l.row(item)...)
			}
			return nil
		})
		if err != nil {
			return err
		}
		q.Page = page.Next
		if page.Next == "" || p.limit > 0 && listed >= p.limit {
			break
		}
	}
	if a.out.format == "table" && listed > 0 {
		if err := t.flush(); err != nil {
			return err
		}
	}
	switch {
	case listed == 0:
		a.env.say("no %s", l.what)
	case q.Page != "":
		a.env.say("there may be more %s; go on with --page %s", l.what, q.Page)
	}
	return nil
}

// pairs prints names and values, one pair a line.
func pairs(w io.Writer, namesAndValues ...string) error {
	t := tableOf{newTabs(w)}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		t.row(namesAndValues[i], namesAndValues[i+1])
	}
	return t.flush()
}
