package sim

import (
	"math"
	"math/rand/v2"
)

// source is a stream of random numbers of its own for one purpose, so that what one
// part draws does not change what another sees.
func source(seed, purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15*(purpose+1))) //nolint:gosec // a simulation wants the same numbers again
}

// Purposes of streams. Those of arrivals are followed by the region's number.
const (
	purposeScenario = iota
	purposeNetwork
	purposeAgent
	purposeRetries
	purposeArrivals = 1000
)

// poissonStep is the largest mean that is drawn at once: e^-16 is far from the
// smallest double, and sums of Poisson numbers are Poisson numbers.
const poissonStep = 16

// poisson draws the number of arrivals of a given mean, exactly distributed.
func poisson(r *rand.Rand, mean float64) int {
	n := 0
	for ; mean > poissonStep; mean -= poissonStep {
		n += poissonOnce(r, poissonStep)
	}
	if mean > 0 {
		n += poissonOnce(r, mean)
	}
	return n
}

func poissonOnce(r *rand.Rand, mean float64) int {
	limit, product := math.Exp(-mean), r.Float64()
	n := 0
	for product > limit {
		product *= r.Float64()
		n++
	}
	return n
}

// binomial draws how many of n happen, each with the given chance.
func binomial(r *rand.Rand, n int, chance float64) int {
	k := 0
	for range n {
		if r.Float64() < chance {
			k++
		}
	}
	return k
}
