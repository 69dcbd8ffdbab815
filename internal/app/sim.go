package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/sim"
)

// SimReport is what one scenario has shown.
type SimReport = sim.Report

// allOf asks for every scenario, or every algorithm.
const allOf = "all"

// SimConfig says what to simulate.
type SimConfig struct {
	Scenario  string
	CSV       string
	Interval  time.Duration
	Seed      uint64
	Seeds     int
	Algorithm string
	Rate      int64
	Burst     int64
	Window    time.Duration
	Log       bool
	Plot      string
}

// Flags registers the configuration's flags.
func (c *SimConfig) Flags(fs *pflag.FlagSet) {
	d := sim.Defaults()
	fs.StringVar(&c.Scenario, "scenario", allOf, "all, or one of "+strings.Join(SimScenarios(), ", "))
	fs.StringVar(&c.CSV, "csv", "", "file of recorded demand, with the columns time_seconds,region,rate, in place of a scenario")
	fs.DurationVar(&c.Interval, "interval", d.Interval, "time between two splits")
	fs.Uint64Var(&c.Seed, "seed", d.Seed, "first seed; the same seed gives the same numbers")
	fs.IntVar(&c.Seeds, "seeds", d.Seeds, "how many seeds to run and average, from --seed on")
	fs.StringVar(&c.Algorithm, "algorithm", allOf, "all, or some of "+strings.Join(sim.Algorithms(), ","))
	fs.Int64Var(&c.Rate, "rate", d.Rate, "the limit, in tokens per second")
	fs.Int64Var(&c.Burst, "burst", d.Burst, "capacity of token buckets, in tokens")
	fs.DurationVar(&c.Window, "window", d.Window, "window of sliding logs, which admit rate x window in it")
	fs.BoolVar(&c.Log, "log", false, "with --csv: a sliding log instead of a token bucket")
	fs.StringVar(&c.Plot, "plot", "", "SVG file for demand, shares and denials of the first algorithm and seed; with one scenario")
}

// SimScenarios lists the names of the scenarios.
func SimScenarios() []string {
	var names []string
	for _, s := range sim.Scenarios() {
		names = append(names, s.Name)
	}
	return names
}

// SimAlgorithms lists the names of the algorithms.
func SimAlgorithms() []string { return sim.Algorithms() }

// options checks the flags and returns them in the simulator's words.
func (c *SimConfig) options() (sim.Options, error) {
	o := sim.Defaults()
	o.Interval, o.Seed, o.Seeds, o.Plot = c.Interval, c.Seed, c.Seeds, c.Plot != ""
	o.Rate, o.Burst, o.Window, o.Log = c.Rate, c.Burst, c.Window, c.Log
	if c.Algorithm != allOf {
		o.Algorithms = strings.Split(c.Algorithm, ",")
	}
	if err := o.Validate(); err != nil {
		return o, simError(err)
	}
	switch {
	case c.CSV == "" && c.Scenario != allOf && !slices.Contains(SimScenarios(), c.Scenario):
		return o, invalid("scenario", "%q; use all or one of %s", c.Scenario, strings.Join(SimScenarios(), ", "))
	case c.CSV == "" && c.Scenario == allOf && c.Plot != "":
		return o, invalid("plot", "one file is for one scenario; name it with --scenario")
	case c.CSV == "" && c.Log:
		return o, invalid("log", "it is for --csv; scenarios choose their algorithm themselves")
	}
	return o, nil
}

// simError says an option of the simulator as the flag that it is.
func simError(err error) error {
	if option, ok := errors.AsType[*sim.OptionError](err); ok {
		return invalid(option.Option, "%s", option.Problem)
	}
	return err
}

// RunSim simulates what the configuration says, one scenario after the other.
func RunSim(ctx context.Context, c SimConfig) ([]*SimReport, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	if c.CSV != "" {
		return c.runRecorded(ctx, o)
	}
	names := []string{c.Scenario}
	if c.Scenario == allOf {
		names = SimScenarios()
	}
	var reports []*SimReport
	for _, name := range names {
		r, err := sim.Run(ctx, name, o)
		if err != nil {
			return nil, simError(err)
		}
		reports = append(reports, r)
	}
	return reports, c.plot(reports[0])
}

func (c *SimConfig) runRecorded(ctx context.Context, o sim.Options) ([]*SimReport, error) {
	f, err := os.Open(c.CSV)
	if err != nil {
		return nil, fmt.Errorf("recorded demand: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	demand, err := sim.ReadDemand(c.CSV, f)
	if err != nil {
		return nil, err
	}
	r, err := sim.RunDemand(ctx, demand, o)
	if err != nil {
		return nil, simError(err)
	}
	return []*SimReport{r}, c.plot(r)
}

// plot writes the drawing, if one was asked for.
func (c *SimConfig) plot(r *SimReport) error {
	if c.Plot == "" {
		return nil
	}
	if err := writeFile(c.Plot, r.Plot.WriteSVG); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name) //nolint:gosec // the user says where
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close() // the first error tells more
		return err
	}
	return f.Close()
}
