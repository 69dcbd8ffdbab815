package sim_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/sim"
	"github.com/weirhq/weir/quota"
)

// elements reads an SVG as XML and returns its elements, with their text.
func elements(t *testing.T, svg []byte) (counts map[string]int, texts []string) {
	t.Helper()
	counts = map[string]int{}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return counts, texts
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			counts[x.Name.Local]++
			for _, a := range x.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s %s=%q", x.Name.Local, a.Name.Local, a.Value)
				}
				if v, err := strconv.ParseFloat(a.Value, 64); err == nil && (v < 0 || v > 2000) {
					t.Errorf("%s %s=%q is outside of the drawing", x.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			if s := strings.TrimSpace(string(x)); s != "" {
				texts = append(texts, s)
			}
		}
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	t.Parallel()
	o := options(sim.Weir)
	o.Plot = true
	var b bytes.Buffer
	if err := run(t, "flash", o).Plot.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	counts, texts := elements(t, b.Bytes())
	if counts["svg"] != 1 || counts["polyline"] != 3*4+1 {
		t.Errorf("elements %v", counts)
	}
	all := strings.Join(texts, "\n")
	for _, want := range []string{"us-east", "ap-south", "limit", "sum of shares", "demand, requests/s", "share in force, tokens/s", "denied, requests/s", "time, minutes", "20"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is nowhere in the drawing", want)
		}
	}
}

func TestPlotOfAnything(t *testing.T) {
	t.Parallel()
	hostile := &sim.Plot{Scenario: `<script>alert(1)</script>&"`, About: "a & b < c", Algorithm: "]]>", Limit: 10}
	for range 20 {
		hostile.Regions = append(hostile.Regions, `<x y="1">&`)
		hostile.Demand = append(hostile.Demand, []float64{1e9, 0})
		hostile.Share = append(hostile.Share, []float64{0, 0})
		hostile.Denied = append(hostile.Denied, []float64{0.001, 0})
	}
	hostile.Seconds, hostile.To = []float64{1, 2}, 1e9
	nothing := &sim.Plot{Regions: []quota.Region{"a"}, Demand: [][]float64{nil}, Share: [][]float64{nil}, Denied: [][]float64{nil}}
	for _, p := range []*sim.Plot{hostile, nothing, {}} {
		var b bytes.Buffer
		if err := p.WriteSVG(&b); err != nil {
			t.Fatal(err)
		}
		if counts, _ := elements(t, b.Bytes()); counts["script"] != 0 || counts["x"] != 0 {
			t.Errorf("elements %v", counts)
		}
	}
}

func TestPlotReportsFailedWrites(t *testing.T) {
	t.Parallel()
	if err := (&sim.Plot{}).WriteSVG(full{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
