package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// course is one scenario with one seed, on its way.
type course struct {
	scenario Scenario
	policy   *quota.Policy
	interval time.Duration
	seed     uint64
	regions  []quota.Region
	loss     float64
	// lead is how long requests have been coming before the scenario begins, history
	// how long the regions have been there before that. In microseconds.
	lead, history int64

	demand   func(t float64, out []float64)
	rates    []float64 // tokens per second
	arrivals []int
	rngs     []*rand.Rand
	ideal    *ideal
	entrants []*entrant
	// before is what was up in the last tick.
	regionUp, coordinatorUp bool
}

// ideal is the central bucket that has no regions.
type ideal struct {
	bucket *central
	again  *retries
	tally
}

// entrant is one algorithm and what it has done.
type entrant struct {
	name     string
	world    world
	envelope *central
	again    []*retries
	tally
	// violations counts ticks in which more was admitted than the envelope has room for.
	violations int
	// changesAt is how many changes of the split there were when the scenario began.
	changesAt int
	wrong     float64
	victims   struct{ offered, admitted float64 }
	plot      *series
}

// tally counts requests from the beginning of the scenario.
type tally struct {
	offered, admitted, eventAdmitted float64
	// denied is of the present second.
	denied int
}

func (t *tally) add(inEvent bool, offered, admitted int) {
	t.offered += float64(offered)
	t.admitted += float64(admitted)
	t.denied += offered - admitted
	if inEvent {
		t.eventAdmitted += float64(admitted)
	}
}

// retries are denied requests that wait for their repetition.
type retries struct {
	chance float64
	rng    *rand.Rand
	ring   [int(time.Second / tick)]int
	at     int
}

// due returns what is repeated in this tick.
func (r *retries) due() int { return r.ring[r.at] }

// denied says how many were denied in this tick, and ends it.
func (r *retries) denied(n int) {
	r.ring[r.at] = 0
	if r.chance > 0 {
		r.ring[r.at] = binomial(r.rng, n, r.chance)
	}
	r.at = (r.at + 1) % len(r.ring)
}

// newCourse prepares a scenario and its entrants.
func newCourse(s Scenario, o Options, seed uint64) (*course, error) {
	c := &course{
		scenario: s, interval: o.Interval, seed: seed, regions: s.regions, loss: s.loss, policy: o.policy(s.log),
		lead: micros(2*o.Interval + 30*time.Second), history: micros(o.history),
		demand: s.demand(source(seed, purposeScenario)), rates: make([]float64, len(s.regions)), arrivals: make([]int, len(s.regions)),
		regionUp: true, coordinatorUp: true,
	}
	start := epoch - c.lead
	bucket, err := newCentral(c.policy.Algorithm, c.policy.Limit, start)
	if err != nil {
		return nil, err
	}
	c.ideal = &ideal{bucket: bucket, again: c.retries(0)}
	for i := range c.regions {
		c.rngs = append(c.rngs, source(seed, purposeArrivals+uint64(i)))
	}
	for i, name := range o.Algorithms {
		e, err := c.enter(name, uint64(i+1))
		if err != nil {
			return nil, err
		}
		c.entrants = append(c.entrants, e)
	}
	return c, nil
}

func (c *course) retries(stream uint64) *retries {
	return &retries{chance: c.scenario.retry, rng: source(c.seed, purposeRetries+stream<<32)}
}

func (c *course) enter(name string, number uint64) (*entrant, error) {
	e := &entrant{name: name}
	start := epoch - c.lead
	var err error
	if e.envelope, err = newCentral(c.policy.Algorithm, c.policy.Limit, start); err != nil {
		return nil, err
	}
	for i := range c.regions {
		e.again = append(e.again, c.retries(number<<8+uint64(i)))
	}
	switch name {
	case Weir:
		e.world, err = newSplit(c, start-c.history)
	case Proportional:
		e.world = newTextbook(c, proportional, start)
	case MaxMin:
		e.world = newTextbook(c, maxMin, start)
	case Static:
		e.world = newTextbook(c, even, start)
	default:
		err = fmt.Errorf("algorithm %q: %w", name, quota.ErrInvalid)
	}
	return e, err
}

// cancelEvery is how many ticks pass between looks at the context.
const cancelEvery = 1024

// run runs the course to its end.
func (c *course) run(ctx context.Context) error {
	c.setRates(0)
	for _, e := range c.entrants {
		if err := e.world.past(epoch-c.lead-c.history, epoch-c.lead, c.rates); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	end := epoch + int64(c.scenario.duration*1e6)
	for now, n := epoch-c.lead, 0; now < end; now, n = now+micros(tick), n+1 {
		if n%cancelEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if now == epoch {
			for _, e := range c.entrants {
				e.changesAt = e.world.base().changes
			}
		}
		if err := c.tick(now); err != nil {
			return err
		}
	}
	c.endSecond(end)
	return nil
}

func (c *course) setRates(t float64) {
	c.demand(max(0, t), c.rates)
	if c.scenario.absolute {
		return
	}
	for i := range c.rates {
		c.rates[i] *= c.policy.Limit.PerSecond()
	}
}

// tick passes one tick that begins now.
func (c *course) tick(now int64) error {
	t := float64(now-epoch) / 1e6
	if err := c.disturb(now, t); err != nil {
		return err
	}
	c.setRates(t)
	sum := 0
	for i, rng := range c.rngs {
		c.arrivals[i] = poisson(rng, c.rates[i]*tick.Seconds())
		sum += c.arrivals[i]
	}
	if now >= epoch && (now-epoch)%micros(time.Second) == 0 {
		c.endSecond(now)
	}
	at, counts, event := now+micros(tick), now >= epoch, c.scenario.event.holds(t)
	offered := sum + c.ideal.again.due()
	admitted := c.ideal.bucket.admit(at, offered)
	c.ideal.again.denied(offered - admitted)
	if counts {
		c.ideal.add(event, offered, admitted)
	}
	for _, e := range c.entrants {
		if err := e.tick(c, at, counts, event); err != nil {
			return fmt.Errorf("%s at %.2f s: %w", e.name, t, err)
		}
	}
	return nil
}

// disturb takes away and brings back what the scenario says.
func (c *course) disturb(now int64, t float64) error {
	region, coordinator := !c.scenario.regionDown.holds(t), !c.scenario.coordinatorDown.holds(t)
	for _, e := range c.entrants {
		if region != c.regionUp {
			e.world.setRegion(now, 0, region)
		}
		if coordinator != c.coordinatorUp {
			if err := e.world.setCoordinator(now, coordinator); err != nil {
				return err
			}
		}
	}
	c.regionUp, c.coordinatorUp = region, coordinator
	return nil
}

// endSecond compares what was denied in the second before with the ideal.
func (c *course) endSecond(now int64) {
	for _, e := range c.entrants {
		e.wrong += float64(max(0, e.denied-c.ideal.denied))
		e.denied = 0
		if e.plot != nil {
			e.plot.endSecond(float64(now-epoch)/1e6, e.world.base(), c.policy.Limit)
		}
	}
	c.ideal.denied = 0
}

// tick has an algorithm decide the arrivals of one tick.
func (e *entrant) tick(c *course, at int64, counts, event bool) error {
	if err := e.world.advance(at); err != nil {
		return err
	}
	total := int64(0)
	for i, s := range e.world.base().stores {
		offered, admitted := c.arrivals[i]+e.again[i].due(), 0
		if offered > 0 {
			var err error
			if admitted, err = s.admit(at, offered); err != nil {
				return err
			}
		}
		e.again[i].denied(offered - admitted)
		e.world.note(i, offered, admitted)
		total += int64(admitted)
		if !counts {
			continue
		}
		e.add(event, offered, admitted)
		if event && slices.Contains(c.scenario.victims, i) {
			e.victims.offered += float64(offered)
			e.victims.admitted += float64(admitted)
		}
		if e.plot != nil {
			e.plot.add(i, offered, admitted)
		}
	}
	if !e.envelope.spend(at, total) {
		e.violations++
	}
	return nil
}

// percent is a part of a whole, 100 when the whole is nothing.
func percent(part, whole float64) float64 {
	if whole <= 0 {
		return 100
	}
	return 100 * part / whole
}

// round keeps the digits that mean something.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }
