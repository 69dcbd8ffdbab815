package sim

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir/quota"
)

// Bounds of recorded demand.
const (
	MaxRows     = 1_000_000
	MaxRegions  = 32
	MaxDuration = 7 * 24 * 3600 // seconds
)

var header = []string{"time_seconds", "region", "rate"}

// Demand is demand that was recorded somewhere.
type Demand struct {
	name    string
	regions []quota.Region
	// rows of each region, by time since the first of all.
	rows     [][]sample
	duration float64
}

// sample is the demand from a time on, in tokens per second.
type sample struct {
	at, rate     float64
	line, column int
}

// ReadDemand reads demand as CSV with the header time_seconds,region,rate. A rate, in
// tokens per second, holds until the region's next row; before its first row a region
// is offered nothing. Rows may come in any order. Time counts from the earliest row,
// and the last one lasts as long as the time before it. An error wraps
// quota.ErrInvalid and begins with name:line:column, as editors can follow.
func ReadDemand(name string, r io.Reader) (*Demand, error) {
	reader := demandReader{csv: csv.NewReader(r), name: name, index: map[quota.Region]int{}, demand: &Demand{name: name}}
	reader.csv.FieldsPerRecord = -1
	reader.csv.ReuseRecord = true
	if err := reader.header(); err != nil {
		return nil, err
	}
	for n := 0; ; n++ {
		more, err := reader.row()
		if err != nil {
			return nil, err
		}
		if !more {
			return reader.finish()
		}
		if n == MaxRows {
			return nil, reader.bad(0, "more than %d rows", MaxRows)
		}
	}
}

// demandReader is a CSV on its way.
type demandReader struct {
	csv    *csv.Reader
	name   string
	fields []string
	index  map[quota.Region]int
	demand *Demand
}

// bad says what is wrong with a field of the last record.
func (d *demandReader) bad(field int, format string, args ...any) error {
	line, column := 1, 1
	if field < len(d.fields) {
		line, column = d.csv.FieldPos(field)
	}
	return d.badAt(line, column, format, args...)
}

func (d *demandReader) badAt(line, column int, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %s: %w", d.name, line, column, fmt.Sprintf(format, args...), quota.ErrInvalid)
}

// read reads a record; false at the end.
func (d *demandReader) read() (bool, error) {
	fields, err := d.csv.Read()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return false, d.badAt(parse.Line, parse.Column, "%v", parse.Err)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", d.name, err)
	}
	d.fields = fields
	return true, nil
}

func (d *demandReader) header() error {
	more, err := d.read()
	if err != nil {
		return err
	}
	if !more {
		return d.bad(0, "the file is empty; the first line is %s", strings.Join(header, ","))
	}
	for i, want := range header {
		if i >= len(d.fields) {
			return d.bad(len(d.fields)-1, "the column %s is missing; the first line is %s", want, strings.Join(header, ","))
		}
		got := strings.TrimSpace(strings.TrimPrefix(d.fields[i], "\ufeff"))
		if got != want {
			return d.bad(i, "column %q; want %s", got, want)
		}
	}
	if len(d.fields) > len(header) {
		return d.bad(len(header), "column %q is one too many", d.fields[len(header)])
	}
	return nil
}

// row reads a row; false at the end.
func (d *demandReader) row() (bool, error) {
	more, err := d.read()
	if err != nil || !more {
		return false, err
	}
	switch n := len(d.fields); {
	case n < len(header):
		return false, d.bad(n-1, "%s is missing", header[n])
	case n > len(header):
		return false, d.bad(len(header), "%q is one field too many", d.fields[len(header)])
	}
	at, err := d.number(0, math.MaxInt32*1000.0)
	if err != nil {
		return false, err
	}
	region := quota.Region(strings.TrimSpace(d.fields[1]))
	if !quota.ValidRegion(region) {
		return false, d.bad(1, "%q is not a region's name; use letters, digits, - and _", region)
	}
	rate, err := d.number(2, MaxRate)
	if err != nil {
		return false, err
	}
	i, ok := d.index[region]
	if !ok {
		if i = len(d.demand.regions); i == MaxRegions {
			return false, d.bad(1, "more than %d regions", MaxRegions)
		}
		d.index[region] = i
		d.demand.regions = append(d.demand.regions, region)
		d.demand.rows = append(d.demand.rows, nil)
	}
	line, column := d.csv.FieldPos(0)
	d.demand.rows[i] = append(d.demand.rows[i], sample{at, rate, line, column})
	return true, nil
}

func (d *demandReader) number(field int, most float64) (float64, error) {
	text := strings.TrimSpace(d.fields[field])
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0 && x <= most) {
		return 0, d.bad(field, "%s %q: use a number from 0 to %.0f", header[field], text, most)
	}
	return x, nil
}

// finish sorts the rows and counts time from the first.
func (d *demandReader) finish() (*Demand, error) {
	var times []float64
	for _, rows := range d.demand.rows {
		slices.SortStableFunc(rows, func(a, b sample) int { return cmp.Compare(a.at, b.at) })
		for i := range rows {
			if i > 0 && rows[i].at == rows[i-1].at {
				return nil, d.badAt(rows[i].line, rows[i].column, "time %v stands on line %d for this region already", rows[i].at, rows[i-1].line)
			}
			times = append(times, rows[i].at)
		}
	}
	slices.Sort(times)
	times = slices.Compact(times)
	if len(times) < 2 {
		return nil, d.badAt(1, 1, "%d different times; at least two are needed", len(times))
	}
	last := len(times) - 1
	d.demand.duration = times[last] - times[0] + times[last] - times[last-1]
	if d.demand.duration > MaxDuration {
		return nil, d.badAt(1, 1, "%.0f seconds from first to last; use at most %d", d.demand.duration, MaxDuration)
	}
	for _, rows := range d.demand.rows {
		for i := range rows {
			rows[i].at -= times[0]
		}
	}
	return d.demand, nil
}

// RunDemand runs recorded demand.
func RunDemand(ctx context.Context, d *Demand, o Options) (*Report, error) {
	return run(ctx, Scenario{
		Name: filepath.Base(d.name), About: "recorded demand", regions: d.regions, duration: d.duration, event: span{0, d.duration},
		loss: ordinaryLoss, absolute: true, demand: d.at, log: o.Log,
	}, o)
}

// at returns a function that is asked for one time after another.
func (d *Demand) at(*rand.Rand) func(float64, []float64) {
	next := make([]int, len(d.rows))
	return func(t float64, out []float64) {
		for i, rows := range d.rows {
			for next[i] < len(rows) && rows[next[i]].at <= t {
				next[i]++
			}
			out[i] = 0
			if next[i] > 0 {
				out[i] = rows[next[i]-1].rate
			}
		}
	}
}
