package sim_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/sim"
	"github.com/weirhq/weir/quota"
)

func TestRecordedDemandNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const head = "time_seconds,region,rate\n"
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "d.csv:1:1: the file is empty"},
		{"other header", "time,region,rate\n", `d.csv:1:1: column "time"; want time_seconds`},
		{"header too short", "time_seconds,region\n", "d.csv:1:14: the column rate is missing"},
		{"header too long", "time_seconds,region,rate,x\n", `d.csv:1:26: column "x" is one too many`},
		{"rate is no number", head + "0,eu,5\n60,eu,many\n", `d.csv:3:7: rate "many"`},
		{"rate is negative", head + "0,eu,-1\n", `d.csv:2:6: rate "-1"`},
		{"rate is NaN", head + "0,eu,NaN\n", `d.csv:2:6: rate "NaN"`},
		{"rate is infinite", head + "0,eu,Inf\n", "d.csv:2:6"},
		{"time is negative", head + "-1,eu,1\n", `d.csv:2:1: time_seconds "-1"`},
		{"region is no name", head + "0,a b,1\n", `d.csv:2:3: "a b" is not a region's name`},
		{"region is missing", head + "0,,1\n", "d.csv:2:3"},
		{"field is missing", head + "0,eu\n", "d.csv:2:3: rate is missing"},
		{"field too many", head + "0,eu,1,2\n", `d.csv:2:8: "2" is one field too many`},
		{"quote is open", head + "0,\"eu,1\n", "d.csv:2:9"},
		{"same time twice", head + "0,eu,1\n5,us,1\n0,eu,2\n", "d.csv:4:1: time 0 stands on line 2 for this region already"},
		{"one time only", head + "7,eu,1\n7,us,1\n", "1 different times"},
		{"no row", head, "0 different times"},
		{"too long", head + "0,eu,1\n1e9,eu,1\n", "seconds from first to last"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := sim.ReadDemand("d.csv", strings.NewReader(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, quota.ErrInvalid) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestRecordedDemandIsReplayed(t *testing.T) {
	t.Parallel()
	// Any order, a byte order mark, spaces and seconds since 1970.
	text := "\ufefftime_seconds,region,rate\n1700000120, us ,30\n1700000000,eu,60\n1700000060,eu,0\n1700000000,us,10\n"
	d, err := sim.ReadDemand("dir/demand.csv", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	o := options(sim.Weir, sim.Static)
	o.Rate, o.Burst, o.Plot = 100, 200, true
	r, err := sim.RunDemand(context.Background(), d, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Scenario != "demand.csv" || len(r.Plot.Seconds) != 180 {
		t.Errorf("scenario %q of %d seconds", r.Scenario, len(r.Plot.Seconds))
	}
	mean := func(region, from, to int) (sum float64) {
		for _, x := range r.Plot.Demand[region][from:to] {
			sum += x / float64(to-from)
		}
		return sum
	}
	if r.Plot.Regions[0] != "us" || r.Plot.Regions[1] != "eu" {
		t.Fatalf("regions %v", r.Plot.Regions)
	}
	for _, tc := range []struct {
		region, from, to int
		want             float64
	}{{0, 0, 120, 10}, {0, 120, 180, 30}, {1, 0, 60, 60}, {1, 60, 180, 0}} {
		if got := mean(tc.region, tc.from, tc.to); got < tc.want*0.85 || got > tc.want*1.15 {
			t.Errorf("region %d is offered %.1f/s from %d to %d s, want %.0f", tc.region, got, tc.from, tc.to, tc.want)
		}
	}
	o.Log, o.Window, o.Plot = true, 10_000_000_000, false
	if r, err = sim.RunDemand(context.Background(), d, o); err != nil || r.Results[0].EnvelopeViolations != 0 {
		t.Errorf("as a log: %+v, %v", r, err)
	}
}
