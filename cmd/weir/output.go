package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// output is the -o flag of every command that prints data.
type output struct{ format string }

var formats = []cobra.Completion{"table", "json", "yaml"}

func (o *output) flags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.format, "output", "o", "table", "table, json or yaml")
}

func (o *output) check() error {
	switch o.format {
	case "table", "json", "yaml":
		return nil
	}
	return usagef("-o %q: use table, json or yaml", o.format)
}

// print writes data, which is JSON as the API says it, in the chosen format.
func (o *output) print(w io.Writer, data func() ([]byte, error), table func(io.Writer) error) error {
	if o.format == "table" {
		return table(w)
	}
	text, err := data()
	if err != nil {
		return err
	}
	if o.format == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	// The encoder of the API varies its spaces on purpose; a program that compares
	// what two runs print is not to see that.
	var stable bytes.Buffer
	if err := json.Indent(&stable, text, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", stable.Bytes())
	return err
}

// own is data that is not of the API.
func own(v any) func() ([]byte, error) {
	return func() ([]byte, error) { return json.Marshal(v) }
}

// tableOf prints aligned columns. Cells are made safe to show.
type tableOf struct{ w *tabwriter.Writer }

func newTable(w io.Writer, columns ...string) tableOf {
	t := tableOf{newTabs(w)}
	t.row(columns...)
	return t
}

func newTabs(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func (t tableOf) row(cells ...string) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, cell(c))
	}
	fmt.Fprintln(t.w)
}

func (t tableOf) flush() error { return t.w.Flush() }

// maxCell bounds what one cell shows, in runes.
const maxCell = 200

// cell is a text on one line, without anything that a terminal would act on.
func cell(s string) string {
	var b strings.Builder
	n := 0
	for field := range strings.FieldsSeq(s) {
		if n > 0 {
			b.WriteByte(' ')
		}
		for _, r := range field {
			if n++; n > maxCell {
				return b.String() + "..."
			}
			if !unicode.IsPrint(r) {
				r = unicode.ReplacementChar
			}
			b.WriteRune(r)
		}
	}
	if n == 0 {
		return "-"
	}
	return b.String()
}
