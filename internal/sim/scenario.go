package sim

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/weirhq/weir/quota"
)

// Scenario is demand over time and what goes wrong meanwhile. Times are in seconds
// from its beginning, demand is in parts of the limit's rate.
type Scenario struct {
	Name string
	// About is one line for people.
	About string

	regions  []quota.Region
	log      bool
	duration float64
	// event is what eventUtilisation looks at.
	event span
	loss  float64
	// retry is the chance that a denied request is sent again one second later.
	retry float64
	// victims are the regions under attack.
	victims []int
	// regionDown is when region 0 is away, coordinatorDown when nobody splits.
	regionDown, coordinatorDown span
	// demand returns a function that fills in the demand of every region at a time.
	// With absolute it is in tokens per second instead.
	demand   func(rng *rand.Rand) func(t float64, out []float64)
	absolute bool
}

// span is a time from one second to another, empty when both are equal.
type span struct{ from, to float64 }

func (s span) holds(t float64) bool { return t >= s.from && t < s.to }

// eventStart is when something happens, in every scenario: not at a rebalance.
const eventStart = 300

const ordinaryLoss = 0.01

var fourRegions = []quota.Region{"us-east", "us-west", "eu-west", "ap-south"}

// Scenarios lists the built-in scenarios.
func Scenarios() []Scenario {
	flash := span{eventStart, eventStart + 600}
	all := []Scenario{
		{
			Name: "diurnal", About: "a day in an hour: demand follows the sun at 95 % of the limit",
			duration: 3600, event: span{0, 3600}, demand: diurnal(3600),
		},
		{
			Name: "flash", About: "6.5 times the demand in one region at once; 95 % of the limit together",
			duration: 1200, event: flash, demand: during(flash, parts{0.1, 0.1, 0.1, 0.1}, parts{0.65, 0.1, 0.1, 0.1}),
		},
		{
			Name: "overload", About: "255 % of the limit, most of it in one region",
			duration: 1200, event: flash, demand: during(flash, parts{0.15, 0.15, 0.15, 0.15}, parts{2, 0.3, 0.125, 0.125}),
		},
		{
			Name: "region-loss", About: "a region with 30 % of the limit is away for 10 minutes, its clients go to the others",
			duration: 1200, event: flash, regionDown: flash,
			demand: during(flash, parts{0.3, 0.25, 0.2, 0.2}, parts{0, 0.35, 0.3, 0.3}),
		},
		{
			Name: "coordinator-outage", About: "no coordinator for 10 minutes, and demand moves half a minute into them",
			duration: 1200, event: flash, coordinatorDown: flash,
			demand: during(span{flash.from + 30, flash.to + 30}, parts{0.34, 0.39, 0.11, 0.11}, parts{0.62, 0.11, 0.11, 0.11}),
		},
		{
			Name: "attack", About: "ten times the demand from one region; the others together ask for 70 % of the limit",
			duration: 1200, event: flash, victims: []int{1, 2, 3},
			demand: during(flash, parts{0.3, 0.44, 0.16, 0.1}, parts{3, 0.44, 0.16, 0.1}),
		},
		{
			Name: "random-walk", About: "demand wanders between the regions at 95 % of the limit, with 5 % loss",
			duration: 1800, event: span{0, 1800}, loss: 0.05, demand: randomWalk(1800),
		},
		{
			Name: "retries", About: "a flash crowd to 96 % of the limit whose clients repeat 90 % of what is denied",
			duration: 1200, event: flash, retry: 0.9, demand: during(flash, parts{0.1, 0.1, 0.1, 0.1}, parts{0.66, 0.1, 0.1, 0.1}),
		},
		{
			Name: "log", About: "a sliding log of a minute; a flash crowd moves from region to region at 95 % of the limit",
			duration: 1020, event: span{eventStart, eventStart + 540}, log: true, demand: moving(span{eventStart, eventStart + 540}, 180),
		},
	}
	for i := range all {
		all[i].regions = fourRegions
		if all[i].loss == 0 {
			all[i].loss = ordinaryLoss
		}
	}
	return all
}

// scenarioNamed finds a built-in scenario.
func scenarioNamed(name string) (Scenario, bool) {
	all := Scenarios()
	i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		return Scenario{}, false
	}
	return all[i], true
}

// parts are demands of all regions.
type parts []float64

// during is one demand within a time and another outside of it.
func during(s span, before, within parts) func(*rand.Rand) func(float64, []float64) {
	return func(*rand.Rand) func(float64, []float64) {
		return func(t float64, out []float64) {
			if s.holds(t) {
				copy(out, within)
			} else {
				copy(out, before)
			}
		}
	}
}

// moving is a flash crowd that goes on to the next region after some seconds.
func moving(s span, seconds float64) func(*rand.Rand) func(float64, []float64) {
	return func(*rand.Rand) func(float64, []float64) {
		return func(t float64, out []float64) {
			for i := range out {
				out[i] = 0.1
			}
			if s.holds(t) {
				out[int((t-s.from)/seconds)%len(out)] = 0.65
			}
		}
	}
}

// tight is the part of the limit that is asked for in scenarios that only move demand.
const tight = 0.95

// diurnal moves demand around the regions once: each swings by 72 % around its mean,
// a quarter of a day after the one before.
func diurnal(day float64) func(*rand.Rand) func(float64, []float64) {
	return func(*rand.Rand) func(float64, []float64) {
		return func(t float64, out []float64) {
			n := float64(len(out))
			for i := range out {
				out[i] = tight / n * (1 + 0.72*math.Cos(2*math.Pi*(t/day-float64(i)/n)))
			}
		}
	}
}

// randomWalk has the logarithm of each region's part walk by 0.06 a second, drawn
// back to the middle within five minutes.
func randomWalk(duration int) func(*rand.Rand) func(float64, []float64) {
	return func(rng *rand.Rand) func(float64, []float64) {
		const step, back = 0.06, 1.0 / 300
		var at [4]float64
		table := make([][4]float64, duration+1)
		for second := range table {
			sum := 0.0
			for i := range at {
				at[i] += step*rng.NormFloat64() - back*at[i]
				table[second][i] = math.Exp(at[i])
				sum += table[second][i]
			}
			for i := range at {
				table[second][i] *= tight / sum
			}
		}
		return func(t float64, out []float64) {
			copy(out, table[min(max(int(t), 0), duration)][:])
		}
	}
}
