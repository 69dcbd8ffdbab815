package quota_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// The promise of a global bucket: whatever the shares do, as long as a share that
// shrinks does so before another grows, all regions together admit at most
// capacity + refill*T of a key in any interval of true time. It is checked with
// integers, under clocks that run fast by all that is allowed.

// tick is the step of true time: 2000 us of it are exactly 2001 us of a clock that is
// fast by 1/2000, which is quota.Drift.
const tick = 2000

// envelope is the bucket that all admissions of a key, of whatever region, must fit:
// a level that is below zero is an interval that admitted too much.
type envelope struct {
	limit quota.Limit
	level int64 // in milli-tokens times the period in microseconds
	at    int64 // true time, microseconds
}

func (e *envelope) admit(now int64, cost quota.Tokens) error {
	period := e.limit.Period.Microseconds()
	e.level = min(int64(e.limit.Capacity)*period, e.level+(now-e.at)*int64(e.limit.Refill))
	e.at = now
	e.level -= int64(cost) * period
	if e.level < 0 {
		return fmt.Errorf("limit %s, %s per %s: %.3f tokens too many at %s", e.limit.Capacity, e.limit.Refill, e.limit.Period,
			float64(-e.level)/float64(period)/1000, time.Duration(now)*time.Microsecond)
	}
	return nil
}

type envelopeRegion struct {
	model  *quota.Model
	offset int64 // of its clock
	share  quota.Share
}

// world is K regions that split one limit.
type world struct {
	r       *rand.Rand
	limit   quota.Limit
	floor   quota.Share // of each region
	regions []*envelopeRegion
	keys    map[string]*envelope
	names   []string
	now     int64 // true time
	version int64
	// mutate breaks a grant on purpose, given the share before.
	mutate func(g *quota.Grant, before quota.Share)
	// growFirst breaks the order of a move on purpose.
	growFirst bool
	// busy worlds spend all the time.
	busy bool
}

var envelopeLimits = []quota.Limit{
	perPeriod(100, 100, time.Minute),
	perPeriod(10, 10, time.Minute),
	perPeriod(30, 7, 13*time.Second),
	perPeriod(12, 600, time.Second),
	perPeriod(1000, 3, time.Second),
	perPeriod(8, 1, time.Hour),
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 7))
	w := &world{r: r, limit: envelopeLimits[r.IntN(len(envelopeLimits))], keys: map[string]*envelope{}, busy: r.IntN(2) == 0}
	k := 2 + r.IntN(3)
	part := []quota.Tokens{0, 5, 2}[r.IntN(3)]
	if part > 0 {
		w.floor = quota.Share{
			Capacity: w.limit.Capacity / part / quota.Tokens(k) / quota.Token * quota.Token,
			Refill:   w.limit.Refill / part / quota.Tokens(k),
		}
	}
	for range k {
		w.regions = append(w.regions, &envelopeRegion{model: quota.NewModel(), offset: start + r.Int64N(1_000_000_000), share: w.floor})
	}
	l := w.limit
	for name, own := range map[string]quota.Limit{
		"plain": l, "other": l,
		"double":     {Capacity: 2 * l.Capacity, Refill: 2 * l.Refill, Period: l.Period},
		"third":      {Capacity: l.Capacity / 3, Refill: l.Refill, Period: 3 * l.Period},
		"faster":     {Capacity: l.Capacity, Refill: 5 * l.Refill, Period: l.Period},
		"burstier":   {Capacity: 10 * l.Capacity, Refill: l.Refill, Period: l.Period},
		"slow burst": {Capacity: 3 * l.Capacity, Refill: l.Refill, Period: 4 * l.Period},
	} {
		own.Capacity = own.Capacity / quota.Token * quota.Token
		w.keys[name] = &envelope{limit: own, level: int64(own.Capacity) * own.Period.Microseconds()}
	}
	w.names = []string{"plain", "other", "double", "third", "faster", "burstier", "slow burst"}
	return w
}

func (g *envelopeRegion) clock(now int64) int64 { return g.offset + now/tick*(tick+1) }

// split draws shares as the splitter may give them: at least the floor, and no more
// capacity than the refill's part of it and a token.
func (w *world) split() []quota.Share {
	shares := make([]quota.Share, len(w.regions))
	refill, capacity := w.limit.Refill, w.limit.Capacity
	for i := range shares {
		shares[i] = w.floor
		refill -= w.floor.Refill
		capacity -= w.floor.Capacity
	}
	for n, i := range w.r.Perm(len(shares)) {
		part := quota.Tokens(float64(refill) * []float64{0, 0.001, w.r.Float64(), w.r.Float64(), 1}[w.r.IntN(5)])
		if n == len(shares)-1 && w.r.IntN(4) > 0 {
			part = refill
		}
		shares[i].Refill += part
		refill -= part
	}
	for _, i := range w.r.Perm(len(shares)) {
		if shares[i].Refill == 0 {
			continue
		}
		most := quota.Tokens(math.Floor(float64(shares[i].Refill)*float64(w.limit.Capacity)/float64(w.limit.Refill))) + quota.Token
		room := min(capacity, most/quota.Token*quota.Token-shares[i].Capacity)
		if room <= 0 {
			continue
		}
		if w.r.IntN(4) == 0 {
			room = quota.Tokens(w.r.Int64N(int64(room))) / quota.Token * quota.Token
		}
		shares[i].Capacity += room
		capacity -= room
	}
	return shares
}

func (w *world) grant(i int, share quota.Share, gift quota.Tokens) error {
	g := w.regions[i]
	w.version++
	grant := quota.Grant{
		ID: quota.ID{Policy: "p"}, Version: w.version, Algorithm: quota.TokenBucket,
		Limit: w.limit, Floor: w.floor, Share: share, Permanent: share, Gift: gift,
	}
	if w.mutate != nil {
		w.mutate(&grant, g.share)
	}
	_, err := g.model.Apply(g.clock(w.now), 0, 1, "g", []string{"share"}, []quota.Grant{grant})
	g.share = share
	return err
}

// move goes from the present shares to others, the shrinking ones first, with traffic
// in between.
func (w *world) move(to []quota.Share) error {
	steps := []func(i int) quota.Share{
		func(i int) quota.Share { return w.regions[i].share.Min(to[i]) },
		func(i int) quota.Share { return to[i] },
	}
	if w.growFirst {
		steps[0] = func(i int) quota.Share { return w.regions[i].share.Max(to[i]) }
	}
	for _, step := range steps {
		for _, i := range w.r.Perm(len(w.regions)) {
			if share := step(i); share != w.regions[i].share {
				if err := w.grant(i, share, 0); err != nil {
					return err
				}
			}
			if err := w.traffic(w.r.IntN(3)); err != nil {
				return err
			}
		}
	}
	return nil
}

// pass lets true time go by: moments, or about as long as a bucket lives. In half of
// the worlds all regions but one spend meanwhile what they have, so that whatever the
// one gains too much shows.
func (w *world) pass(name string) error {
	life := quota.BucketLife(w.limit, w.floor).Microseconds()
	fill := quota.FillTime(w.limit).Microseconds()
	span := []int64{tick, fill / 100, fill, fill + fill/10, life, 2 * life}[w.r.IntN(6)]
	if w.r.IntN(2) == 0 {
		span = w.r.Int64N(span + 1)
	}
	if !w.busy {
		w.now += (span + tick - 1) / tick * tick
		return nil
	}
	lazy := w.r.IntN(len(w.regions))
	end := w.now + min(span, 8*fill)
	for w.now < end {
		w.now += (min(fill/4, end-w.now) + tick - 1) / tick * tick
		for i := range w.regions {
			if i != lazy {
				if err := w.drain(i, name); err != nil {
					return err
				}
			}
		}
	}
	return w.drain(lazy, name)
}

func (w *world) traffic(n int) error {
	for range n {
		name := w.names[w.r.IntN(len(w.names))]
		if w.busy || w.r.IntN(3) == 0 {
			name = "plain"
		}
		if err := w.pass(name); err != nil {
			return err
		}
		for _, i := range w.r.Perm(len(w.regions))[:1+w.r.IntN(len(w.regions))] {
			if err := w.drain(i, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain takes what one region gives of one key, or some of it.
func (w *world) drain(i int, name string) error {
	g, env := w.regions[i], w.keys[name]
	now := g.clock(w.now)
	g.model.Expire(now)
	e := quota.Entry{
		Bucket: name, ShareKey: "share", Algorithm: quota.TokenBucket, Limit: env.limit, Base: w.limit, Floor: w.floor,
	}
	cost := quota.Token
	if !w.busy && w.r.IntN(3) == 0 {
		cost = max(quota.Token, env.limit.Capacity/7/quota.Token*quota.Token)
	}
	most := 2000
	if !w.busy {
		most = w.r.IntN(2000)
	}
	for ; most >= 0; most-- {
		out, err := g.model.Acquire(now, quota.Attempt{Cost: cost, Entries: []quota.Entry{e}})
		if err != nil {
			return err
		}
		if !out.Allowed {
			return nil
		}
		if err := env.admit(w.now, cost); err != nil {
			return fmt.Errorf("key %s: %w", name, err)
		}
	}
	return nil
}

// lose replaces a region's dataset by an empty one; the coordinator grants the same
// share again.
func (w *world) lose(i int) error {
	g := w.regions[i]
	g.model = quota.NewModel()
	g.model.Initialise(g.clock(w.now), 0, "g", false)
	share := g.share
	g.share = w.floor
	if err := w.traffic(w.r.IntN(3)); err != nil {
		return err
	}
	return w.grant(i, share, 0)
}

// run lets a world live. The error is a broken promise.
func (w *world) run(moves int) error {
	for _, g := range w.regions {
		g.model.Initialise(g.clock(0), 0, "g", true)
	}
	if err := w.traffic(w.r.IntN(2)); err != nil {
		return err
	}
	// The first grants bring the capacity along, once.
	for i, share := range w.split() {
		if err := w.grant(i, share, max(0, share.Capacity-w.floor.Capacity)); err != nil {
			return err
		}
	}
	for range moves {
		if err := w.traffic(w.r.IntN(4)); err != nil {
			return err
		}
		if w.r.IntN(30) == 0 {
			if err := w.lose(w.r.IntN(len(w.regions))); err != nil {
				return err
			}
		}
		if err := w.move(w.split()); err != nil {
			return err
		}
	}
	return nil
}

func TestGlobalEnvelopeHolds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		if err := newWorld(seed).run(60); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The test above must notice what it is there for.
func TestEnvelopeTestCatchesMutants(t *testing.T) {
	t.Parallel()
	for name, mutate := range map[string]func(w *world){
		"a bucket lives only as long as it takes to fill": func(w *world) {
			w.mutate = func(g *quota.Grant, _ quota.Share) { g.Floor = g.Limit.Share() }
		},
		"growing a share raises levels": func(w *world) {
			w.mutate = func(g *quota.Grant, before quota.Share) { g.Gift = max(0, g.Share.Capacity-before.Capacity) }
		},
		"a share grows before another shrinks": func(w *world) { w.growFirst = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(60) {
				w := newWorld(seed)
				mutate(w)
				if err := w.run(60); err != nil {
					t.Logf("noticed in world %d: %v", seed, err)
					return
				}
			}
			t.Error("not noticed in any of 60 worlds")
		})
	}
}
