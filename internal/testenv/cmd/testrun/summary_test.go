package main

import (
	"strings"
	"testing"
)

func TestSummarise(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		events string
		want   summary
		shows  string
		ok     bool
	}{
		{
			name: "tests and subtests pass",
			events: `{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":1.5}`,
			want: summary{passed: 2}, shows: "ok    p 1.5s", ok: true,
		},
		{
			name: "a failure shows its output",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"got 1\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			want: summary{failed: 1}, shows: "got 1",
		},
		{
			name: "a skip is a failure",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"no docker\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			want: summary{failed: 1}, shows: "no docker",
		},
		{
			name: "a package that fails by itself",
			events: `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"goroutines left\n"}
{"Action":"fail","Package":"p"}`,
			want: summary{passed: 1, failed: 1}, shows: "goroutines left",
		},
		{
			name: "a package that does not build",
			events: `{"Action":"build-output","ImportPath":"p","Output":"x.go:1: undefined: y\n"}
{"Action":"build-fail","ImportPath":"p"}
{"Action":"fail","Package":"p"}`,
			want: summary{failed: 1}, shows: "undefined: y",
		},
		{
			name:   "a package without tests is no skip",
			events: `{"Action":"skip","Package":"p"}`,
			want:   summary{},
		},
		{
			name:   "plain text is passed on",
			events: "go: cannot find main module",
			want:   summary{}, shows: "cannot find main module",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			got, err := summarise(strings.NewReader(tc.events), &out)
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("counted %v, want %v", got, tc.want)
			}
			if !strings.Contains(out.String(), tc.shows) {
				t.Errorf("printed %q, want it to show %q", out.String(), tc.shows)
			}
			if (got.err() == nil) != tc.ok {
				t.Errorf("err = %v, want ok %t", got.err(), tc.ok)
			}
		})
	}
}

func TestSummaryLine(t *testing.T) {
	t.Parallel()
	if got := (summary{passed: 3, failed: 1}).String(); got != "3 passed, 1 failed" {
		t.Errorf("got %q", got)
	}
}
