package splitter

import (
	"math"
	"time"

	"github.com/weirhq/weir/quota"
)

// The parameters of the split function. They are constants, because measured
// results change little with any of them.
const (
	// gamma bounds what one region may ask for, relative to what it has, so
	// that a wave of retries does not pass for demand.
	gamma = 4
	// headroom is the part of its demand that a region gets on top where there is enough.
	headroom = 0.10
	// contention is how far above its demand a region may be raised when
	// demand is above the limit.
	contention = 1.02
	// shortBand and farBand, parts of the limit, are the dead bands of hysteresis.
	shortBand = 0.01
	farBand   = 0.15
)

// Region is what is known of one region.
type Region struct {
	// Name is unique within one input. Ties are broken by it.
	Name quota.Region
	// Demand is the present offered load, Peak what it has been lately, in
	// tokens per second. Anything that is not a positive number counts as zero,
	// and +Inf as the whole limit.
	Demand, Peak float64
	// Floor is what the region gets at least, as Floors computes it for this limit.
	Floor quota.Share
	// Weight is relative to those of the other regions. All zero means equal.
	Weight float64
	// Present is the share that the region has been assigned by the last split.
	Present quota.Share
	// Bound is the most that the region may be using (U of the ledger). It is
	// read for silent regions only.
	Bound quota.Share
	// Silent regions have not reported lately: they keep their bound.
	Silent bool
}

// Input is one quota to split.
type Input struct {
	Algorithm quota.Algorithm
	Limit     quota.Limit
	Regions   []Region
	// Urgent is set when a region asked between two periodic runs. It leaves
	// alone splits that are merely far from ideal and short nowhere.
	Urgent bool
}

// Split appends the share of each region, in the order of the input, to dst[:0]
// and reports whether any differs from what the region has. It may be called by
// many goroutines at once, with different dst.
func Split(dst []quota.Share, in Input) ([]quota.Share, bool) {
	n := len(in.Regions)
	dst = resize(dst, n)
	if n == 0 {
		return dst, false
	}
	var w work
	w.load(&in)
	w.plan()
	if w.settle(in.Urgent) {
		for i := range in.Regions {
			dst[i] = in.Regions[i].Present
		}
		return dst, false
	}
	w.round()
	if w.sameTokens() {
		for i := range in.Regions {
			dst[i] = in.Regions[i].Present
		}
		return dst, false
	}
	changed := false
	for k := range n {
		i := w.order[k]
		dst[i] = w.out[k]
		changed = changed || dst[i] != in.Regions[i].Present
	}
	return dst, changed
}

// Small reports whether a limit is too small to give each of n regions a
// capacity that admits something and can follow demand (less than two tokens
// each). Its whole tokens go to the regions with the largest claims, the other
// regions get nothing.
func Small(l quota.Limit, n int) bool { return l.Capacity < 2*quota.Tokens(n)*quota.Token }

// work is one split in progress. Its slices are in the order of the regions'
// names, and amounts are in milli-tokens of the driving component: refill per
// period for token buckets, capacity for logs. A log's demand is what arrives in
// one window.
type work struct {
	in    *Input
	order []int
	// byRefill tells which component drives the split.
	byRefill bool
	limit    float64

	demand, peak, floor, present, weight []float64
	// fixed is the amount of a silent region, else negative.
	fixed []float64
	// ideal is what the regions should have; target, after hysteresis, what they get.
	ideal, target []float64
	base          []float64
	// free is what silent regions leave, contended whether demand and floors exceed it.
	free      float64
	contended bool

	out []quota.Share
}

func drivenByRefill(a quota.Algorithm, l quota.Limit) bool {
	return a == quota.TokenBucket && l.Refill > 0
}

func (w *work) component(s quota.Share) quota.Tokens {
	if w.byRefill {
		return s.Refill
	}
	return s.Capacity
}

func (w *work) load(in *Input) {
	n := len(in.Regions)
	w.in = in
	w.order = byName(in.Regions)
	w.byRefill = drivenByRefill(in.Algorithm, in.Limit)
	w.limit = float64(w.component(in.Limit.Share()))
	buf := make([]float64, 9*n)
	next := func() []float64 {
		s := buf[:n:n]
		buf = buf[n:]
		return s
	}
	w.demand, w.peak, w.floor = next(), next(), next()
	w.present, w.weight, w.fixed = next(), next(), next()
	w.ideal, w.target, w.base = next(), next(), next()

	perPeriod := float64(quota.Token) * periodSeconds(in.Limit.Period)
	for k, i := range w.order {
		r := &in.Regions[i]
		w.floor[k] = float64(w.component(r.Floor))
		w.present[k] = float64(w.component(r.Present))
		// A region that has nothing may still ask for gamma times an equal part.
		most := min(gamma*max(w.present[k], w.floor[k], w.limit/float64(n)), w.limit)
		w.demand[k] = amount(r.Demand, perPeriod, most)
		w.peak[k] = amount(r.Peak, perPeriod, w.limit)
		if w.byRefill {
			w.demand[k] = min(math.Ceil(w.demand[k]), w.limit)
		}
	}
	weights(w.weight, func(k int) float64 { return in.Regions[w.order[k]].Weight })
	w.fixSilent()
}

// fixSilent keeps silent regions at their bound. Where that leaves less than the
// floors of the others (the limit was lowered meanwhile), they are cut down
// towards their floors; the ledger goes on counting what they may use.
func (w *work) fixSilent() {
	kept, floors, cuttable, silent := 0.0, 0.0, 0.0, 0
	for k, i := range w.order {
		w.fixed[k] = -1
		if !w.in.Regions[i].Silent {
			floors += w.floor[k]
			continue
		}
		silent++
		w.fixed[k] = max(float64(w.component(w.in.Regions[i].Bound)), w.floor[k])
		kept += w.fixed[k]
		cuttable += w.fixed[k] - w.floor[k]
	}
	if silent == len(w.order) {
		// Nobody is left to take the difference, so nobody is singled out.
		for k := range w.fixed {
			w.fixed[k] = -1
		}
		w.free = w.limit
		return
	}
	if over := kept + floors - w.limit; over > 0 && cuttable > 0 {
		keep := max(0, 1-over/cuttable)
		kept = 0
		for k := range w.fixed {
			if w.fixed[k] >= 0 {
				w.fixed[k] = w.floor[k] + (w.fixed[k]-w.floor[k])*keep
				kept += w.fixed[k]
			}
		}
	}
	w.free = max(0, w.limit-kept)
}

// plan fills ideal: demand, then headroom, then surplus.
func (w *work) plan() {
	sum := 0.0
	for k := range w.order {
		if w.fixed[k] >= 0 {
			w.ideal[k] = w.fixed[k]
			continue
		}
		w.base[k] = max(w.demand[k], w.floor[k])
		sum += w.base[k]
	}
	if sum > w.free {
		w.contended = true
		for k := range w.order {
			w.base[k] = max(contention*w.demand[k], w.floor[k])
		}
		w.waterfill()
		return
	}
	for k := range w.order {
		if w.fixed[k] < 0 {
			w.ideal[k] = w.base[k]
		}
	}
	w.spread(w.giveHeadroom(w.free - sum))
}

// giveHeadroom raises regions towards what they may soon need, and returns what is left of rest.
func (w *work) giveHeadroom(rest float64) float64 {
	need := 0.0
	for k := range w.order {
		if w.fixed[k] < 0 {
			need += w.wish(k)
		}
	}
	if need <= 0 || rest <= 0 {
		return rest
	}
	part := min(1, rest/need)
	for k := range w.order {
		if w.fixed[k] < 0 {
			w.ideal[k] += part * w.wish(k)
		}
	}
	return max(0, rest-need)
}

func (w *work) wish(k int) float64 {
	return max(0, max(w.demand[k]*(1+headroom), w.peak[k])-w.ideal[k])
}

// spread adds rest, half in proportion to what the regions have, half by weight.
func (w *work) spread(rest float64) {
	if rest <= 0 {
		return
	}
	have, weight := 0.0, 0.0
	for k := range w.order {
		if w.fixed[k] < 0 {
			have += w.ideal[k]
			weight += w.weight[k]
		}
	}
	byShare, byWeight := rest/2, rest/2
	if have <= 0 {
		byShare, byWeight, have = 0, rest, 1
	}
	for k := range w.order {
		if w.fixed[k] < 0 {
			w.ideal[k] += byShare*(w.ideal[k]/have) + byWeight*(w.weight[k]/weight)
		}
	}
}

// settle applies hysteresis: it reports whether the present split stays, and
// else fills target.
func (w *work) settle(urgent bool) bool {
	copy(w.target, w.ideal)
	if !w.presentHolds() {
		return false
	}
	short, far := w.isShort()
	if !short && (urgent || !far) {
		return true
	}
	if short && (urgent || !far) && !Small(w.in.Limit, len(w.order)) {
		w.minimal()
	}
	return false
}

// sameTokens reports whether a split of a small limit may stay as it is although
// it was computed anew: its whole tokens would lie where they lie. Their refill
// then has the dead band of larger limits.
func (w *work) sameTokens() bool {
	if !w.byRefill || !Small(w.in.Limit, len(w.order)) || !w.presentHolds() {
		return false
	}
	for k, i := range w.order {
		has, gets := w.in.Regions[i].Present, w.out[k]
		if has.Capacity != gets.Capacity || math.Abs(float64(has.Refill-gets.Refill)) > farBand*w.limit {
			return false
		}
		if !w.contended && float64(has.Refill) < min(w.demand[k], float64(gets.Refill)) {
			return false
		}
	}
	return true
}

// isShort reports whether any region has too little, and whether any is far from its ideal.
func (w *work) isShort() (short, far bool) {
	for k := range w.order {
		if math.Abs(w.present[k]-w.ideal[k]) > farBand*w.limit {
			far = true
		}
		if w.shortOf(k) > 0 {
			short = true
		}
	}
	return short, far
}

// shortOf returns by how much a region has to be raised. A region that has less
// than its demand although all demand can be met is short without any dead band:
// what it lacks it denies in every second.
func (w *work) shortOf(k int) float64 {
	if w.fixed[k] >= 0 {
		return 0
	}
	soon := min(w.demand[k]*(1+headroom/3), w.ideal[k])
	if w.present[k] < soon-shortBand*w.limit || (!w.contended && w.present[k] < w.demand[k]) {
		return max(0, w.ideal[k]-w.present[k])
	}
	return 0
}

// minimal raises the regions that are short and takes from those above their
// ideal, in proportion, if these have enough; else the target stays the ideal.
func (w *work) minimal() {
	need, excess := 0.0, 0.0
	for k := range w.order {
		if s := w.shortOf(k); s > 0 {
			need += s
		} else if w.fixed[k] < 0 {
			excess += max(0, w.present[k]-w.ideal[k])
		}
	}
	if excess < need || excess <= 0 {
		return
	}
	for k := range w.order {
		switch {
		case w.fixed[k] >= 0:
			w.target[k] = w.present[k]
		case w.shortOf(k) > 0:
			w.target[k] = w.ideal[k]
		default:
			w.target[k] = w.present[k] - max(0, w.present[k]-w.ideal[k])*(need/excess)
		}
	}
}

// presentHolds reports whether the present split is a split of this limit at all.
func (w *work) presentHolds() bool {
	var sum quota.Share
	for i := range w.in.Regions {
		r := &w.in.Regions[i]
		if !r.Floor.Within(r.Present) || Fit(w.in.Algorithm, w.in.Limit, r.Present) != r.Present {
			return false
		}
		sum = sum.Add(r.Present)
	}
	want := w.in.Limit.Share()
	if w.in.Algorithm != quota.TokenBucket {
		want.Refill = 0
	}
	return sum == want
}

func periodSeconds(d time.Duration) float64 {
	if d <= 0 {
		return 1
	}
	return d.Seconds()
}

// amount turns a rate into an amount between zero and most.
func amount(rate, perPeriod, most float64) float64 {
	if !(rate > 0) {
		return 0
	}
	return min(rate*perPeriod, most)
}

func resize(dst []quota.Share, n int) []quota.Share {
	if cap(dst) < n {
		return make([]quota.Share, n)
	}
	return dst[:n]
}
