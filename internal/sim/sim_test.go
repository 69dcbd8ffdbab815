package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/sim"
	"github.com/weirhq/weir/quota"
)

func options(algorithms ...string) sim.Options {
	o := sim.Defaults()
	o.Seeds, o.Algorithms = 1, algorithms
	return o
}

func run(t *testing.T, name string, o sim.Options) *sim.Report {
	t.Helper()
	r, err := sim.Run(context.Background(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What every scenario must show. The least utilisation of the event is under what is
// measured (docs/sim.md) by a margin, so that it fails when the split gets worse and
// not when a random number falls otherwise.
func TestScenariosHoldTheLimitAndUseIt(t *testing.T) {
	t.Parallel()
	least := map[string]float64{
		"diurnal": 99.9, "flash": 99.9, "overload": 98, "region-loss": 70, "coordinator-outage": 71,
		"attack": 99, "random-walk": 99.9, "retries": 99.9, "log": 97,
	}
	if len(least) != len(sim.Scenarios()) {
		t.Errorf("%d scenarios have a bound, there are %d", len(least), len(sim.Scenarios()))
	}
	for name, least := range least {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := run(t, name, options(sim.Weir)).Results[0]
			if x.SharesOverLimitMax != 0 || x.EnvelopeViolations != 0 {
				t.Errorf("shares are over the limit by %v %%, the envelope is broken in %d ticks", x.SharesOverLimitMax, x.EnvelopeViolations)
			}
			// Within any time, regions and ideal differ by a burst at most.
			if x.EventUtilisation < least || x.EventUtilisation > 100.5 {
				t.Errorf("utilisation in the event is %v, want %v to 100.5", x.EventUtilisation, least)
			}
		})
	}
}

func TestModestRegionsAreServedUnderAttack(t *testing.T) {
	t.Parallel()
	r := run(t, "attack", options(sim.Weir, sim.Proportional))
	if r.Results[0].VictimsServed == nil || *r.Results[0].VictimsServed < 98.8 {
		t.Errorf("victims served: %v", r.Results[0].VictimsServed)
	}
	if *r.Results[1].VictimsServed > 40 {
		t.Errorf("with the proportional split %v %% of the victims are served", *r.Results[1].VictimsServed)
	}
}

// What section 12 says of splits that are pushed: their shares pass the limit.
func TestTextbookSharesPassTheLimit(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"flash", "random-walk"} {
		for _, x := range run(t, name, options(sim.Proportional, sim.MaxMin)).Results {
			if x.SharesOverLimitMax < 5 {
				t.Errorf("%s, %s: shares are over the limit by %v %%", name, x.Algorithm, x.SharesOverLimitMax)
			}
		}
	}
}

func TestSameSeedSameNumbers(t *testing.T) {
	t.Parallel()
	o := options(sim.Weir, sim.Proportional)
	a, b := run(t, "retries", o), run(t, "retries", o)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%+v and then %+v", a.Results, b.Results)
	}
	o.Seed = 2
	if c := run(t, "retries", o); reflect.DeepEqual(a, c) {
		t.Error("another seed gives the same numbers")
	}
}

// What an algorithm meets must not depend on which others run beside it.
func TestAlgorithmsDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	all, one := run(t, "flash", options(sim.Weir, sim.Static)), run(t, "flash", options(sim.Weir))
	if !reflect.DeepEqual(all.Results[0], one.Results[0]) {
		t.Errorf("alone %+v, beside others %+v", one.Results[0], all.Results[0])
	}
}

func TestReportAsJSON(t *testing.T) {
	t.Parallel()
	victims := 99.5
	got, err := json.Marshal(sim.Report{Scenario: "attack", Results: []sim.Result{
		{Algorithm: "weir", Utilisation: 99.9, EventUtilisation: 99.8, WrongDenials: 0.01, ChangesPerHour: 12, VictimsServed: &victims},
		{Algorithm: "static", SharesOverLimitMax: 3, EnvelopeViolations: 2},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"scenario":"attack","results":[` +
		`{"algorithm":"weir","utilisation":99.9,"eventUtilisation":99.8,"sharesOverLimitMax":0,"envelopeViolations":0,"wrongDenials":0.01,"changesPerHour":12,"victimsServed":99.5},` +
		`{"algorithm":"static","utilisation":0,"eventUtilisation":0,"sharesOverLimitMax":3,"envelopeViolations":2,"wrongDenials":0,"changesPerHour":0}]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for option, change := range map[string]func(*sim.Options){
		"interval":  func(o *sim.Options) { o.Interval = time.Millisecond },
		"seeds":     func(o *sim.Options) { o.Seeds = 0 },
		"rate":      func(o *sim.Options) { o.Rate = 0 },
		"burst":     func(o *sim.Options) { o.Burst = -1 },
		"window":    func(o *sim.Options) { o.Window = 1500 * time.Millisecond },
		"algorithm": func(o *sim.Options) { o.Algorithms = []string{"magic"} },
	} {
		o := options(sim.Static)
		change(&o)
		_, err := sim.Run(context.Background(), "flash", o)
		if bad, ok := errors.AsType[*sim.OptionError](err); !ok || bad.Option != option || !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%s: %v", option, err)
		}
	}
	o := options(sim.Static)
	o.Rate, o.Window = 100_000, time.Hour
	for _, name := range []string{"log", "no such"} {
		if _, err := sim.Run(context.Background(), name, o); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRunStopsWhenAsked(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := sim.Run(ctx, "flash", options(sim.Static)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOtherLimitsAndIntervals(t *testing.T) {
	t.Parallel()
	o := options(sim.Algorithms()...)
	o.Rate, o.Burst, o.Window, o.Interval = 40, 8, 10*time.Second, 5*time.Second
	for _, name := range []string{"flash", "region-loss", "log"} {
		x := run(t, name, o).Results[0]
		if x.SharesOverLimitMax != 0 || x.EnvelopeViolations != 0 {
			t.Errorf("%s: %+v", name, x)
		}
	}
	if !slices.Contains(sim.Algorithms(), sim.Weir) {
		t.Error("weir is not among the algorithms")
	}
}
