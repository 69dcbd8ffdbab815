package coordinator

import (
	"math"
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	// historySpan is how far back admitted traffic counts for weights.
	historySpan = 24 * time.Hour
	// weightGrowth is by what factor a weight can grow in an hour: who floods a
	// region trains its weight slowly, and who stops loses it at once.
	weightGrowth = 1.25
	// leastPart is what a region's weight is at least, of an equal one.
	leastPart = 0.25
)

// history is the long mean of what one region has admitted of a policy, in tokens
// per second. Admitted and not offered: only what the limit let through can have
// been ordinary traffic.
type history struct {
	rate, mean float64
	at, since  time.Time
}

// observe notes the rate that has held since the last report.
func (h *history) observe(rate float64, at time.Time) {
	if h.since.IsZero() {
		h.since, h.at, h.mean = at, at, rate
	}
	h.rate = rate
	h.settle(at)
}

// settle brings the mean up to a time. While there is less than a day of history,
// all of it counts alike.
func (h *history) settle(at time.Time) {
	dt := at.Sub(h.at).Seconds()
	if h.since.IsZero() || dt <= 0 {
		return
	}
	span := min(at.Sub(h.since), historySpan).Seconds()
	h.mean += (1 - math.Exp(-dt/max(span, dt))) * (h.rate - h.mean)
	h.at = at
}

// updateWeights moves the weights of a policy towards its regions' parts of what was
// admitted. A machine that takes over begins with the parts of the shares it found,
// since these follow the weights that were.
func (m *Machine) updateWeights(q *splitQuota, now time.Time) {
	if q.split.Strategy == quota.SplitExplicit || q.parent != nil {
		return
	}
	parts := m.admittedParts(q, now)
	if parts == nil {
		return
	}
	if q.weights == nil {
		q.weights, q.weightsAt = m.firstWeights(q), now
	}
	grown := math.Pow(weightGrowth, max(0, now.Sub(q.weightsAt).Hours()))
	q.weightsAt = now
	least := leastPart / float64(len(parts))
	for i := range parts {
		q.weights[i] = max(least, min(parts[i], q.weights[i]*grown))
	}
}

// admittedParts returns each region's part of what was admitted lately, nil when
// nothing was.
func (m *Machine) admittedParts(q *splitQuota, now time.Time) []float64 {
	parts := make([]float64, len(q.rows))
	sum := 0.0
	for i := range q.rows {
		h := &q.rows[i].history
		h.settle(now)
		if !m.regions[i].leaving {
			parts[i] = h.mean
			sum += h.mean
		}
	}
	if sum < idle {
		return nil
	}
	for i := range parts {
		parts[i] /= sum
	}
	return parts
}

// firstWeights returns each region's part of the split that an earlier leader left,
// equal ones when there was none.
func (m *Machine) firstWeights(q *splitQuota) []float64 {
	parts := make([]float64, len(q.rows))
	of := func(s quota.Share) float64 {
		if q.limit.Refill > 0 && q.algorithm == quota.TokenBucket {
			return float64(s.Refill)
		}
		return float64(s.Capacity)
	}
	sum := 0.0
	for i := range q.rows {
		if q.inherited {
			parts[i] = of(q.rows[i].Sent)
			sum += parts[i]
		}
	}
	for i := range parts {
		if sum > 0 {
			parts[i] = max(parts[i]/sum, leastPart/float64(len(parts)))
		} else {
			parts[i] = 1 / float64(len(parts))
		}
	}
	return parts
}

// weightOf is the weight of a region in a split.
func (q *splitQuota) weightOf(i int, name quota.Region) float64 {
	if q.split.Strategy == quota.SplitExplicit {
		return q.split.Weights[name]
	}
	if q.parent != nil {
		q = q.parent
	}
	if q.weights == nil {
		return 1
	}
	return q.weights[i]
}
