package splitter

import (
	"math"
	"math/bits"

	"github.com/weirhq/weir/quota"
)

// round turns target into shares.
//
// The driving component is rounded first. For token buckets that is the refill,
// in milli-tokens; the capacity follows it, in whole tokens, because a region can
// admit only with a capacity of at least one.
func (w *work) round() {
	n := len(w.order)
	w.out = make([]quota.Share, n)
	limit := w.in.Limit
	if !w.byRefill {
		for k, c := range w.wholeTokens() {
			w.out[k].Capacity = c
		}
		return
	}
	parts := newParts(n)
	for k, i := range w.order {
		parts.set(k, w.target[k])
		lower := int64(w.in.Regions[i].Floor.Refill)
		if !w.contended && w.fixed[k] < 0 {
			lower = max(lower, int64(min(w.demand[k], math.Floor(w.target[k]))))
		}
		parts.lower[k] = lower
	}
	parts.apportion(int64(limit.Refill))
	for k := range n {
		w.out[k].Refill = quota.Tokens(parts.units[k])
	}
	w.capacities()
	if Small(limit, n) {
		w.moveUseless()
	}
}

// wholeTokens divides the capacity by target, for what has no refill.
func (w *work) wholeTokens() []quota.Tokens {
	n := len(w.order)
	parts := newParts(n)
	for k, i := range w.order {
		parts.set(k, w.target[k]/float64(quota.Token))
		parts.lower[k] = w.in.Regions[i].Floor.Capacity.Whole()
	}
	if !Small(w.in.Limit, n) {
		w.raiseLower(parts, func(int) int64 { return 1 })
	}
	parts.apportion(w.in.Limit.Capacity.Whole())
	return w.fraction(parts, func(k int) float64 { return w.target[k] })
}

// capacities sets the capacities that belong to the refills in out: the exact
// proportion, rounded to whole tokens, so that none exceeds it by more than one token.
func (w *work) capacities() {
	n := len(w.order)
	parts := newParts(n)
	for k, i := range w.order {
		parts.units[k], parts.frac[k] = proportion(w.out[k].Refill, w.in.Limit)
		parts.lower[k] = w.in.Regions[i].Floor.Capacity.Whole()
	}
	w.raiseLower(parts, func(k int) int64 {
		if w.out[k].Refill > 0 && !Small(w.in.Limit, n) {
			return 1
		}
		return 0
	})
	w.raiseLower(parts, func(k int) int64 {
		if w.fixed[k] < 0 {
			return 0
		}
		bound := quota.Share{Capacity: w.in.Regions[w.order[k]].Bound.Capacity, Refill: w.out[k].Refill}
		return Fit(w.in.Algorithm, w.in.Limit, bound).Capacity.Whole()
	})
	parts.apportion(w.in.Limit.Capacity.Whole())
	for k, c := range w.fraction(parts, func(k int) float64 {
		units, frac := proportion(w.out[k].Refill, w.in.Limit)
		return (float64(units) + frac) * float64(quota.Token)
	}) {
		w.out[k].Capacity = c
	}
}

// raiseLower raises the lower bounds to those given, if there is enough for all of them.
func (w *work) raiseLower(p *parts, to func(k int) int64) {
	sum := int64(0)
	for k, l := range p.lower {
		sum += max(l, to(k))
	}
	if sum > w.in.Limit.Capacity.Whole() {
		return
	}
	for k := range p.lower {
		p.lower[k] = max(p.lower[k], to(k))
	}
}

// fraction returns the parts as tokens and gives what a fractional limit has
// above whole tokens to the region that got the least of what it was due.
func (w *work) fraction(p *parts, due func(int) float64) []quota.Tokens {
	out := make([]quota.Tokens, len(p.units))
	best, most := 0, math.Inf(-1)
	for k := range out {
		out[k] = quota.Tokens(p.units[k]) * quota.Token
		if lack := due(k) - float64(out[k]); lack > most {
			best, most = k, lack
		}
	}
	out[best] += w.in.Limit.Capacity % quota.Token
	return out
}

// moveUseless gives the refill of regions without capacity, which could never
// spend it, to those with capacity.
func (w *work) moveUseless() {
	var idle, capacity quota.Tokens
	for k := range w.out {
		if w.out[k].Capacity == 0 {
			idle += w.out[k].Refill
		}
		capacity += w.out[k].Capacity
	}
	if idle == 0 || capacity == 0 {
		return
	}
	p := newParts(len(w.out))
	for k := range w.out {
		if w.out[k].Capacity == 0 {
			w.out[k].Refill = 0
			p.frac[k] = -2
			continue
		}
		p.set(k, float64(idle)*(float64(w.out[k].Capacity)/float64(capacity)))
	}
	p.apportion(int64(idle))
	for k := range w.out {
		w.out[k].Refill += quota.Tokens(p.units[k])
	}
}

// parts are amounts on their way to integers: units so far, and the fraction
// of a unit that was cut off.
type parts struct {
	units, lower []int64
	frac         []float64
}

func newParts(n int) *parts {
	buf := make([]int64, 2*n)
	return &parts{units: buf[:n:n], lower: buf[n:], frac: make([]float64, n)}
}

func (p *parts) set(k int, x float64) {
	whole := math.Floor(x)
	p.units[k], p.frac[k] = int64(whole), x-whole
}

// apportion makes the units sum exactly to total, none below its lower bound:
// what is missing goes to the largest fractions first, what is too much is
// taken from the smallest. Equal fractions go by position.
func (p *parts) apportion(total int64) {
	rest := total
	for k := range p.units {
		if p.units[k] < p.lower[k] {
			// Already above its part, so the last to get more.
			p.units[k], p.frac[k] = p.lower[k], -1
		}
		rest -= p.units[k]
	}
	for rest > 0 {
		given := p.raise(rest)
		if given == 0 {
			return // Nobody may get more; callers leave somebody who may.
		}
		rest -= given
	}
	for rest < 0 {
		cut := p.cut(-rest)
		if cut == 0 {
			return // The lower bounds exceed the total; callers never let them.
		}
		rest += cut
	}
}

// raise hands out at most rest units, one each, by largest fraction.
func (p *parts) raise(rest int64) int64 {
	given := int64(0)
	used := make([]bool, len(p.units))
	for given < rest && given < int64(len(p.units)) {
		best := -1
		for k := range p.units {
			// A fraction below -1 marks what must get nothing.
			if !used[k] && p.frac[k] >= -1 && (best < 0 || p.frac[k] > p.frac[best]) {
				best = k
			}
		}
		if best < 0 {
			break
		}
		used[best] = true
		p.units[best]++
		given++
	}
	return given
}

// cut takes one unit from the region with the smallest fraction among those above their bound.
func (p *parts) cut(excess int64) int64 {
	best := -1
	for k := range p.units {
		if p.units[k] > p.lower[k] && (best < 0 || p.frac[k] < p.frac[best]) {
			best = k
		}
	}
	if best < 0 {
		return 0
	}
	n := min(max(1, excess/int64(len(p.units))), p.units[best]-p.lower[best])
	p.units[best] -= n
	p.frac[best]++
	return n
}

// proportion returns refill*C/R in whole tokens and the fraction of a token
// above, exactly but for the last bits of the fraction. Refill is at most R, R above zero.
func proportion(refill quota.Tokens, l quota.Limit) (whole int64, frac float64) {
	divisor := int64(l.Refill) * int64(quota.Token)
	q, rem := mulDiv(int64(refill), int64(l.Capacity), divisor)
	return q, float64(rem) / float64(divisor)
}

// mulDiv returns a*b/c and the remainder, exactly. None may be negative, and the
// result fits because a is at most c.
func mulDiv(a, b, c int64) (q, rem int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	x, r := bits.Div64(hi, lo, uint64(c))
	return int64(x), int64(r)
}

// Fit returns the largest share within s that obeys the rule between capacity
// and refill of a token bucket under limit l; other shares pass through. A
// coordinator that hands out a share in steps uses it on each step.
func Fit(a quota.Algorithm, l quota.Limit, s quota.Share) quota.Share {
	if !drivenByRefill(a, l) {
		return s
	}
	if s.Refill <= 0 {
		return quota.Share{}
	}
	exact, _ := mulDiv(int64(min(s.Refill, l.Refill)), int64(l.Capacity), int64(l.Refill))
	most := quota.Tokens(exact) + quota.Token
	if s.Capacity > most {
		s.Capacity = most - most%quota.Token
	}
	return s
}
