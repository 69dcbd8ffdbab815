package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// The algorithms.
const (
	// Weir is this code.
	Weir = "weir"
	// Proportional gives each region the part of the limit that it has of all demand.
	Proportional = "proportional"
	// MaxMin meets small demands first and spreads what is left evenly.
	MaxMin = "max-min"
	// Static gives every region the same part for ever.
	Static = "static"
)

// Algorithms lists all algorithms.
func Algorithms() []string { return []string{Weir, Proportional, MaxMin, Static} }

// Bounds of what can be simulated.
const (
	MinInterval = time.Second
	MaxInterval = time.Hour
	MaxSeeds    = 1000
	MaxRate     = 1_000_000
	MaxBurst    = 1_000_000_000
	MaxWindow   = 24 * time.Hour
	// MaxEntries bounds what a log holds in a window.
	MaxEntries = 10_000_000
)

// Options say how a scenario is run. The zero value is not valid; see Defaults.
type Options struct {
	// Interval is the time between two splits.
	Interval time.Duration
	// Seed is the first of Seeds consecutive seeds.
	Seed  uint64
	Seeds int
	// Algorithms are those to compare, in the order of the results.
	Algorithms []string
	// Rate is the limit in tokens per second.
	Rate int64
	// Burst is the capacity of a token bucket in tokens.
	Burst int64
	// Window is that of a sliding log, which admits Rate x Window in it.
	Window time.Duration
	// Log has recorded demand meet a sliding log instead of a token bucket. Scenarios
	// choose themselves.
	Log bool
	// Plot has the demand, shares and denials of the first algorithm and seed recorded.
	Plot bool

	history time.Duration
}

// Defaults returns the options that the published figures were measured with.
func Defaults() Options {
	return Options{
		Interval: time.Minute, Seed: 1, Seeds: 3, Algorithms: Algorithms(),
		Rate: 1000, Burst: 2000, Window: time.Minute, history: 24 * time.Hour,
	}
}

// OptionError says which option cannot be, and what could. It wraps quota.ErrInvalid.
type OptionError struct{ Option, Problem string }

func (e *OptionError) Error() string { return e.Option + ": " + e.Problem }

func (e *OptionError) Unwrap() error { return quota.ErrInvalid }

// Validate returns an *OptionError for the first option that cannot be.
func (o *Options) Validate() error {
	bad := func(option string, value any, want string) error {
		return &OptionError{option, fmt.Sprintf("%v; use %s", value, want)}
	}
	switch {
	case o.Interval < MinInterval || o.Interval > MaxInterval:
		return bad("interval", o.Interval, "1s to 1h")
	case o.Seeds < 1 || o.Seeds > MaxSeeds:
		return bad("seeds", o.Seeds, "1 to 1000")
	case o.Rate < 1 || o.Rate > MaxRate:
		return bad("rate", o.Rate, "1 to 1000000 tokens per second")
	case o.Burst < 1 || o.Burst > MaxBurst:
		return bad("burst", o.Burst, "1 to 1000000000 tokens")
	case o.Window < time.Second || o.Window > MaxWindow || o.Window%time.Second != 0:
		return bad("window", o.Window, "whole seconds from 1s to 24h")
	case len(o.Algorithms) == 0:
		return bad("algorithm", `""`, strings.Join(Algorithms(), ", "))
	}
	for i, a := range o.Algorithms {
		if !slices.Contains(Algorithms(), a) || slices.Contains(o.Algorithms[:i], a) {
			return bad("algorithm", strconv.Quote(a), "each at most once of "+strings.Join(Algorithms(), ", "))
		}
	}
	return nil
}

// policy is the policy of the one quota.
func (o *Options) policy(log bool) *quota.Policy {
	p := &quota.Policy{ID: policyID, Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailClosed}
	p.Limit = quota.Limit{Capacity: quota.Tokens(o.Burst) * quota.Token, Refill: quota.Tokens(o.Rate) * quota.Token, Period: time.Second}
	if log {
		p.Algorithm = quota.SlidingLog
		p.Limit = quota.Limit{Capacity: quota.Tokens(o.Rate*int64(o.Window/time.Second)) * quota.Token, Period: o.Window}
	}
	return p
}

// Report is what a scenario has shown.
type Report struct {
	Scenario string   `json:"scenario"`
	Results  []Result `json:"results"`
	// Plot is what was recorded; nil unless asked for.
	Plot *Plot `json:"-"`
}

// Result is one algorithm over all seeds: means, but the largest excess of shares and
// the sum of violations. "The ideal" is one central bucket of the same limit that is
// offered the same requests, with their retries, and knows no regions.
type Result struct {
	Algorithm string `json:"algorithm"`
	// Utilisation is what was admitted in the whole scenario, in percent of what the
	// ideal admits. Above 100 more was admitted than the limit allows.
	Utilisation float64 `json:"utilisation"`
	// EventUtilisation is the same within the scenario's event: the flash crowd, the
	// outage, the attack. Diurnal, random-walk and recorded demand are events throughout.
	EventUtilisation float64 `json:"eventUtilisation"`
	// SharesOverLimitMax is by how much the sum of all regions' shares in force has been
	// above the limit at most, at any instant, in percent of the limit; of capacity and
	// refill the worse. A region that is away counts with the share that it holds.
	SharesOverLimitMax float64 `json:"sharesOverLimitMax"`
	// EnvelopeViolations is how many ticks ended with more admitted, in some time until
	// then, than the limit allows in any such time: capacity + refill x time, or the
	// limit of a log in one window. Exact, in true time, over all regions.
	EnvelopeViolations int `json:"envelopeViolations"`
	// WrongDenials is what was denied beyond what the ideal denied in the same second,
	// in percent of all requests.
	WrongDenials float64 `json:"wrongDenials"`
	// ChangesPerHour is how often the split was changed, per hour.
	ChangesPerHour float64 `json:"changesPerHour"`
	// VictimsServed is what was admitted during the attack of requests from regions
	// that do not attack, in percent. Only in scenarios with an attack.
	VictimsServed *float64 `json:"victimsServed,omitempty"`
}

// Run runs one of the Scenarios.
func Run(ctx context.Context, name string, o Options) (*Report, error) {
	s, ok := scenarioNamed(name)
	if !ok {
		var names []string
		for _, s := range Scenarios() {
			names = append(names, s.Name)
		}
		return nil, &OptionError{"scenario", fmt.Sprintf("%q; use %s", name, strings.Join(names, ", "))}
	}
	return run(ctx, s, o)
}

func run(ctx context.Context, s Scenario, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if seconds := int64(o.Window / time.Second); s.log && o.Rate*seconds > MaxEntries {
		return nil, &OptionError{"window", fmt.Sprintf("%v at %d/s is more than %d entries of a log", o.Window, o.Rate, MaxEntries)}
	}
	r := &Report{Scenario: s.Name, Results: make([]Result, len(o.Algorithms))}
	for n := range o.Seeds {
		c, err := newCourse(s, o, o.Seed+uint64(n)) //nolint:contextcheck // a ledger in memory waits for nothing
		if err != nil {
			return nil, err
		}
		if o.Plot && n == 0 {
			c.entrants[0].plot = newSeries(len(c.regions))
		}
		if err := c.run(ctx); err != nil {
			return nil, fmt.Errorf("scenario %s, seed %d: %w", s.Name, c.seed, err)
		}
		for i, e := range c.entrants {
			r.Results[i].add(c, e, float64(o.Seeds))
		}
		if o.Plot && n == 0 {
			r.Plot = c.plotOf(c.entrants[0])
		}
	}
	for i := range r.Results {
		r.Results[i].round()
	}
	return r, nil
}

// add adds what one of several seeds has shown.
func (r *Result) add(c *course, e *entrant, seeds float64) {
	r.Algorithm = e.name
	r.Utilisation += percent(e.admitted, c.ideal.admitted) / seeds
	r.EventUtilisation += percent(e.eventAdmitted, c.ideal.eventAdmitted) / seeds
	r.SharesOverLimitMax = max(r.SharesOverLimitMax, 100*e.world.base().over)
	r.EnvelopeViolations += e.violations
	if e.offered > 0 {
		r.WrongDenials += 100 * e.wrong / e.offered / seeds
	}
	r.ChangesPerHour += float64(e.world.base().changes-e.changesAt) / (c.scenario.duration / 3600) / seeds
	if len(c.scenario.victims) > 0 {
		if r.VictimsServed == nil {
			r.VictimsServed = new(float64)
		}
		*r.VictimsServed += percent(e.victims.admitted, e.victims.offered) / seeds
	}
}

func (r *Result) round() {
	for _, x := range []*float64{&r.Utilisation, &r.EventUtilisation, &r.SharesOverLimitMax, &r.WrongDenials, &r.ChangesPerHour} {
		*x = round(*x)
	}
	if r.VictimsServed != nil {
		*r.VictimsServed = round(*r.VictimsServed)
	}
}
