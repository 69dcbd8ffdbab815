package sim

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// The drawing, in pixels.
const (
	plotWidth    = 960
	plotLeft     = 84
	plotRight    = 24
	panelTop     = 104 // of the first panel
	panelHeight  = 168
	panelGap     = 48
	plotPanels   = 3
	axisHeight   = 56
	legendColumn = 142
	legendRow    = 20
	maxPoints    = 480
)

// Eight colours that people with any colour vision can tell apart; further regions
// have them again, dashed.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#5f5f5f"}

// WriteSVG draws the demand, the shares and the denials of every region over time.
func (p *Plot) WriteSVG(w io.Writer) error {
	d := drawing{plot: p}
	columns := (plotWidth - plotLeft - plotRight) / legendColumn
	d.top = float64(panelTop + legendRow*((len(p.Regions)+2-1)/columns))
	height := d.top + plotPanels*panelHeight + (plotPanels-1)*panelGap + axisHeight
	d.f(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" font-family="system-ui, sans-serif" font-size="12" role="img">`+"\n",
		plotWidth, height, plotWidth, height)
	title := fmt.Sprintf("%s, %s", p.Scenario, p.Algorithm)
	d.f("<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", escape(title))
	d.text(plotLeft, 28, `font-size="17" font-weight="600" fill="#111111"`, title)
	about := p.About
	if d.shaded() {
		about += " (shaded)"
	}
	d.text(plotLeft, 48, `fill="#444444"`, about)
	d.legend(columns)
	total := make([]float64, len(p.Seconds))
	for _, share := range p.Share {
		for i, x := range share {
			total[i] += x
		}
	}
	d.panel(0, "demand, requests/s", p.Demand, nil)
	d.panel(1, "share in force, tokens/s", p.Share, total)
	d.panel(2, "denied, requests/s", p.Denied, nil)
	d.timeAxis()
	d.f("</svg>\n")
	_, err := w.Write(d.b.Bytes())
	return err
}

// drawing is an SVG on its way.
type drawing struct {
	b    bytes.Buffer
	plot *Plot
	// top is where the first panel begins.
	top float64
}

func (d *drawing) f(format string, args ...any) { fmt.Fprintf(&d.b, format, args...) }

func (d *drawing) text(x, y float64, attributes, s string) {
	d.f(`<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, attributes, escape(s))
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder does not fail
	return b.String()
}

func stroke(region int) string {
	s := fmt.Sprintf(`stroke="%s"`, palette[region%len(palette)])
	if n := region / len(palette); n > 0 {
		s += fmt.Sprintf(` stroke-dasharray="%d 3"`, 3*n)
	}
	return s
}

func (d *drawing) legend(columns int) {
	item := func(n int, line, name string) {
		x, y := float64(plotLeft+legendColumn*(n%columns)), float64(70+legendRow*(n/columns))
		d.f(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke-width="3" %s/>`+"\n", x, y-4, x+22, y-4, line)
		if len(name) > 16 {
			name = name[:15] + "…"
		}
		d.text(x+28, y, `fill="#222222"`, name)
	}
	for i, name := range d.plot.Regions {
		item(i, stroke(i), string(name))
	}
	item(len(d.plot.Regions), `stroke="#111111" stroke-dasharray="6 4"`, "limit")
	item(len(d.plot.Regions)+1, `stroke="#999999"`, "sum of shares")
}

// end is the last instant, in seconds; never zero.
func (d *drawing) end() float64 {
	if n := len(d.plot.Seconds); n > 0 {
		return max(1, d.plot.Seconds[n-1])
	}
	return 1
}

// shaded reports whether the event is a part of the time only.
func (d *drawing) shaded() bool { return d.plot.From > 0 || d.plot.To < d.end() }

func (d *drawing) x(t float64) float64 {
	return plotLeft + t/d.end()*(plotWidth-plotLeft-plotRight)
}

// panel draws one of the panels. With a total it shows the limit as well.
func (d *drawing) panel(number int, label string, lines [][]float64, total []float64) {
	top := d.top + float64(number)*(panelHeight+panelGap)
	bottom := top + panelHeight
	highest := 0.0
	reduced := make([][]float64, len(lines))
	for i, line := range lines {
		reduced[i] = thin(line)
		for _, v := range reduced[i] {
			highest = max(highest, v)
		}
	}
	if total != nil {
		highest = max(highest, d.plot.Limit)
		for _, v := range thin(total) {
			highest = max(highest, v)
		}
	}
	step := niceStep(highest, 4)
	highest = max(step, math.Ceil(highest*1.02/step)*step)
	y := func(v float64) float64 { return bottom - v/highest*panelHeight }

	if d.shaded() {
		from, to := d.x(min(d.plot.From, d.end())), d.x(min(d.plot.To, d.end()))
		d.f(`<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="#f2efe6"/>`+"\n", from, top, to-from, panelHeight)
	}
	d.text(plotLeft, top-8, `fill="#222222" font-weight="600"`, label)
	for v := 0.0; v <= highest+step/2; v += step {
		d.f(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#dddddd"/>`+"\n", plotLeft, y(v), plotWidth-plotRight, y(v))
		d.text(plotLeft-8, y(v)+4, `text-anchor="end" fill="#555555"`, axisNumber(v))
	}
	if total != nil {
		d.line(thin(total), y, `stroke="#999999" stroke-width="1.5"`)
		d.f(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#111111" stroke-dasharray="6 4"/>`+"\n",
			plotLeft, y(d.plot.Limit), plotWidth-plotRight, y(d.plot.Limit))
	}
	for i, line := range reduced {
		d.line(line, y, stroke(i)+` stroke-width="1.8"`)
	}
}

func (d *drawing) line(values []float64, y func(float64) float64, attributes string) {
	if len(values) == 0 {
		return
	}
	d.f(`<polyline fill="none" stroke-linejoin="round" %s points="`, attributes)
	width := d.end() / float64(len(values))
	for i, v := range values {
		d.f("%.1f,%.1f ", d.x((float64(i)+0.5)*width), y(v))
	}
	d.f("\"/>\n")
}

func (d *drawing) timeAxis() {
	bottom := d.top + plotPanels*panelHeight + (plotPanels-1)*panelGap
	unit, label := 1.0, "time, s"
	switch end := d.end(); {
	case end > 3*24*3600:
		unit, label = 24*3600, "time, days"
	case end > 3*3600:
		unit, label = 3600, "time, hours"
	case end > 300:
		unit, label = 60, "time, minutes"
	}
	step := niceStep(d.end()/unit, 10) * unit
	for t := 0.0; t <= d.end()*(1+1e-9); t += step {
		for n := range plotPanels {
			y := d.top + float64(n)*(panelHeight+panelGap) + panelHeight
			d.f(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#555555"/>`+"\n", d.x(t), y, d.x(t), y+5)
		}
		d.text(d.x(t), bottom+20, `text-anchor="middle" fill="#555555"`, axisNumber(t/unit))
	}
	d.text((plotLeft+plotWidth-plotRight)/2, bottom+42, `text-anchor="middle" fill="#222222"`, label)
}

// thin returns at most maxPoints means of equally many values each, but for the last.
func thin(values []float64) []float64 {
	n := (len(values) + maxPoints - 1) / maxPoints
	if n <= 1 {
		return values
	}
	out := make([]float64, 0, maxPoints)
	for i := 0; i < len(values); i += n {
		part := values[i:min(i+n, len(values))]
		sum := 0.0
		for _, v := range part {
			sum += v
		}
		out = append(out, sum/float64(len(part)))
	}
	return out
}

// niceStep is 1, 2 or 5 times a power of ten, so that about n of it make up a span.
func niceStep(span float64, n int) float64 {
	if span <= 0 {
		return 1
	}
	raw := span / float64(n)
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*power {
			return m * power
		}
	}
	return 10 * power
}

// axisNumber prints a number of an axis.
func axisNumber(v float64) string { return strconv.FormatFloat(round(v), 'f', -1, 64) }
