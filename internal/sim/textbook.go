package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// rule divides a limit by what the regions were offered in the last interval, as
// parts of the limit that sum to one.
type rule func(demand []float64, limit float64) []float64

// even gives every region the same part, whatever the demand.
func even(demand []float64, _ float64) []float64 {
	parts := make([]float64, len(demand))
	for i := range parts {
		parts[i] = 1 / float64(len(demand))
	}
	return parts
}

// proportional gives every region the part that it has of all demand.
func proportional(demand []float64, limit float64) []float64 {
	sum := 0.0
	for _, d := range demand {
		sum += d
	}
	if sum <= 0 {
		return even(demand, limit)
	}
	parts := make([]float64, len(demand))
	for i, d := range demand {
		parts[i] = d / sum
	}
	return parts
}

// maxMin fills all demands at the same pace, those that are met drop out, and what
// is left when all are met goes to all in equal parts.
func maxMin(demand []float64, limit float64) []float64 {
	order := make([]int, len(demand))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(demand[a], demand[b]) })
	parts := make([]float64, len(demand))
	left := limit
	for k, i := range order {
		got := min(demand[i], left/float64(len(order)-k))
		parts[i] = got / limit
		left -= got
	}
	for i := range parts {
		parts[i] += left / limit / float64(len(parts))
	}
	return parts
}

// divide cuts an amount into parts, exactly: what rounding leaves goes to the
// largest fractions, the first of equal ones.
func divide(total quota.Tokens, parts []float64) []quota.Tokens {
	out := make([]quota.Tokens, len(parts))
	fraction := make([]float64, len(parts))
	left := total
	for i, p := range parts {
		exact := float64(total) * p
		out[i] = min(quota.Tokens(math.Floor(exact)), left)
		fraction[i] = exact - float64(out[i])
		left -= out[i]
	}
	for ; left > 0; left-- {
		best := 0
		for i := range fraction {
			if fraction[i] > fraction[best] {
				best = i
			}
		}
		out[best]++
		fraction[best]--
	}
	return out
}

// divideLimit cuts a limit into shares. Logs are cut into whole tokens.
func divideLimit(a quota.Algorithm, l quota.Limit, parts []float64) []quota.Share {
	shares := make([]quota.Share, len(parts))
	if a == quota.SlidingLog {
		for i, n := range divide(quota.Tokens(l.Capacity.Whole()), parts) {
			shares[i].Capacity = n * quota.Token
		}
		return shares
	}
	capacity, refill := divide(l.Capacity, parts), divide(l.Refill, parts)
	for i := range shares {
		shares[i] = quota.Share{Capacity: capacity[i], Refill: refill[i]}
	}
	return shares
}

// textbook is a split that is computed each interval and pushed, without
// acknowledgement, versions or order.
type textbook struct {
	fleet
	policy   *quota.Policy
	rule     rule
	interval int64
	next     int64
	down     bool
	// window counts what each region was offered since it last said so, heard what the
	// coordinator was told since the last push.
	window   []float64
	heard    []float64
	reportAt []int64
	pushed   []quota.Share
}

func newTextbook(c *course, r rule, start int64) *textbook {
	n := len(c.regions)
	t := &textbook{
		fleet: newFleet(c), policy: c.policy, rule: r, interval: micros(c.interval), next: start + micros(c.interval),
		window: make([]float64, n), heard: make([]float64, n), reportAt: make([]int64, n),
	}
	t.pushed = divideLimit(c.policy.Algorithm, c.policy.Limit, even(t.heard, 0))
	for i := range n {
		t.stores = append(t.stores, newPlainStore(c.policy, t.pushed[i], t.checkShares))
		// Regions do not report all at the same instant.
		t.reportAt[i] = start + int64(i+1)*micros(time.Second)/int64(n)
	}
	return t
}

func (t *textbook) advance(now int64) error {
	if err := t.net.advance(now); err != nil {
		return err
	}
	for i, s := range t.stores {
		if now < t.reportAt[i] {
			continue
		}
		t.reportAt[i] += micros(time.Second)
		s.model.Expire(now)
		offered := t.window[i]
		t.window[i] = 0
		if t.cut[i] {
			continue
		}
		if err := t.net.send(now, func(int64) error {
			t.heard[i] += offered
			return nil
		}); err != nil {
			return err
		}
	}
	if now < t.next {
		return nil
	}
	t.next += t.interval
	if t.down {
		clear(t.heard)
		return nil
	}
	return t.push(now)
}

// push computes a split and tells the regions.
func (t *textbook) push(now int64) error {
	seconds := float64(t.interval) / 1e6
	for i := range t.heard {
		t.heard[i] /= seconds
	}
	shares := divideLimit(t.policy.Algorithm, t.policy.Limit, t.rule(t.heard, t.policy.Limit.PerSecond()))
	clear(t.heard)
	if slices.Equal(shares, t.pushed) {
		return nil
	}
	t.changes++
	t.pushed = shares
	for i, s := range t.stores {
		if err := t.net.send(now, func(int64) error {
			if !t.cut[i] {
				s.set(shares[i])
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func (t *textbook) note(region, offered, _ int) { t.window[region] += float64(offered) }

func (t *textbook) setCoordinator(_ int64, up bool) error {
	t.down = !up
	return nil
}

func (t *textbook) setRegion(_ int64, i int, up bool) { t.cut[i] = !up }

// past is nothing: a textbook split remembers one interval.
func (t *textbook) past(int64, int64, []float64) error { return nil }
