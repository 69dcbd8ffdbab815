package splitter

import "math"

// leastWeight keeps a region of no weight in the division of what others leave.
const leastWeight = 1e-9

// weights fills dst with weights that sum to about one. Weights that are not
// positive finite numbers count as none; if none is left, all are equal.
func weights(dst []float64, of func(int) float64) {
	largest := 0.0
	for k := range dst {
		dst[k] = of(k)
		if !(dst[k] > 0) || math.IsInf(dst[k], 1) {
			dst[k] = 0
		}
		largest = max(largest, dst[k])
	}
	sum := 0.0
	for k := range dst {
		if largest > 0 {
			// By the largest first: the sum of huge weights must stay finite.
			dst[k] = max(dst[k]/largest, leastWeight)
		} else {
			dst[k] = 1
		}
		sum += dst[k]
	}
	for k := range dst {
		dst[k] /= sum
	}
}

// waterfill sets ideal to the weighted max-min division of free: each region
// that is not fixed gets level*weight, but not less than its floor and not more
// than its base, at the level where the sum is free. It is called when the sum of
// the bases exceeds free, and floors never do.
func (w *work) waterfill() {
	n := len(w.order)
	// A region's part starts to rise with the level at floor/weight and stops at
	// base/weight; between two such points the sum is a straight line.
	points := make([]float64, 0, 2*n)
	sum, slope := 0.0, 0.0
	for k := range n {
		if w.fixed[k] >= 0 {
			continue
		}
		sum += w.floor[k]
		points = append(points, w.floor[k]/w.weight[k], w.base[k]/w.weight[k])
	}
	insertionSort(points)
	level := 0.0
	for _, p := range points {
		step := (p - level) * slope
		if sum+step >= w.free && slope > 0 {
			level += (w.free - sum) / slope
			break
		}
		sum += step
		level = p
		slope = w.slopeAbove(level)
	}
	for k := range n {
		if w.fixed[k] < 0 {
			w.ideal[k] = min(max(level*w.weight[k], w.floor[k]), w.base[k])
		}
	}
}

// slopeAbove returns how fast the sum rises just above a level.
func (w *work) slopeAbove(level float64) float64 {
	s := 0.0
	for k := range w.order {
		if w.fixed[k] < 0 && w.floor[k]/w.weight[k] <= level && level < w.base[k]/w.weight[k] {
			s += w.weight[k]
		}
	}
	return s
}

// insertionSort sorts in place; the slices are short and nearly sorted often enough.
func insertionSort(s []float64) {
	for i := 1; i < len(s); i++ {
		for j := i; j > 0 && s[j] < s[j-1]; j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
}
