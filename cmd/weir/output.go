package main

import (
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// output is the -o flag of every command that prints data.
type output struct{ format string }

func (o *output) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "table, json or yaml")
}

func (o *output) check() error {
	switch o.format {
	case "table", "json", "yaml":
		return nil
	}
	return usageError{fmt.Errorf("-o %q: use table, json or yaml", o.format)}
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
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}
