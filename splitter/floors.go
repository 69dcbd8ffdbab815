package splitter

import (
	"math"

	"github.com/weirhq/weir/quota"
)

// Floors appends to dst[:0] the floor of each region, in the order of the
// input: together percent of the limit (0 to 100), half of it in equal parts,
// half by weight. Only the regions' names and weights are read.
//
// Floors are rounded as shares are: refill in milli-tokens, capacity in whole
// tokens by largest remainder, neither sum above its percentage. Of a limit that
// is Small, a region whose floor has no capacity has no floor at all.
func Floors(dst []quota.Share, a quota.Algorithm, l quota.Limit, percent float64, regions []Region) []quota.Share {
	n := len(regions)
	dst = resize(dst, n)
	if n == 0 {
		return dst
	}
	order := byName(regions)
	weight := make([]float64, n)
	weights(weight, func(k int) float64 { return regions[order[k]].Weight })
	part := 0.0
	if percent > 0 {
		part = min(percent, 100) / 100
	}
	of := func(total quota.Tokens) (*parts, int64) {
		whole := int64(math.Floor(float64(total) * part))
		p := newParts(n)
		for k := range n {
			p.set(k, float64(whole)*(0.5/float64(n)+0.5*weight[k]))
		}
		return p, whole
	}
	if !drivenByRefill(a, l) {
		p, total := of(quota.Tokens(l.Capacity.Whole()))
		p.apportion(total)
		for k, i := range order {
			dst[i] = quota.Share{Capacity: quota.Tokens(p.units[k]) * quota.Token}
		}
		return dst
	}
	p, total := of(l.Refill)
	p.apportion(total)
	capacity := newParts(n)
	for k := range n {
		capacity.units[k], capacity.frac[k] = proportion(quota.Tokens(p.units[k]), l)
	}
	capacities, _ := proportion(quota.Tokens(total), l)
	capacity.apportion(capacities)
	for k, i := range order {
		dst[i] = quota.Share{
			Capacity: quota.Tokens(capacity.units[k]) * quota.Token,
			Refill:   quota.Tokens(p.units[k]),
		}
		if dst[i].Capacity == 0 && Small(l, n) {
			dst[i].Refill = 0
		}
	}
	return dst
}

// byName returns the positions of the regions in the order of their names.
func byName(regions []Region) []int {
	order := make([]int, len(regions))
	for i := range order {
		order[i] = i
		for j := i; j > 0 && regions[order[j]].Name < regions[order[j-1]].Name; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	return order
}
