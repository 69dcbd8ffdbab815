package coordinator

import (
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

const (
	fastSeconds = 3    // what demand is
	slowSeconds = 60   // how long a peak is remembered
	idle        = 0.01 // tokens per second that are as good as none
)

// load estimates offered load in tokens per second. A quota that a report leaves
// out is offered what the last report said.
type load struct {
	// now is the last report's rate, fast its short average, peak a slowly
	// fading maximum of fast.
	now, fast, peak float64
	at              time.Time
}

func (l *load) observe(rate float64, at time.Time) {
	if l.at.IsZero() || (l.now < idle && l.fast < idle) {
		// There is nothing to average a first rate with: it is the estimate.
		l.settle(at)
		*l = load{now: rate, fast: rate, peak: max(l.peak, rate), at: at}
		return
	}
	// The rate is that of the time since the last report.
	l.now = rate
	l.settle(at)
}

// settle brings the averages up to a time.
func (l *load) settle(at time.Time) {
	dt := at.Sub(l.at).Seconds()
	if l.at.IsZero() || dt <= 0 {
		return
	}
	l.at = at
	if l.now == 0 && l.fast == 0 && l.peak == 0 {
		return
	}
	l.fast += (1 - math.Exp(-dt/fastSeconds)) * (l.now - l.fast)
	l.peak = max(l.fast, l.fast+(l.peak-l.fast)*math.Exp(-dt/slowSeconds))
}

// Rebalance says what one run of the split did.
type Rebalance struct {
	At time.Time `json:"at"`
	// Duration is the time spent splitting, set by the Coordinator.
	Duration time.Duration `json:"duration"`
	// Quotas is how many were looked at, Changes which of them have a new split.
	Quotas  int      `json:"quotas"`
	Changes []Change `json:"changes,omitempty"`
}

// Change is a new split of one quota.
type Change struct {
	ID        quota.ID        `json:"id"`
	Algorithm quota.Algorithm `json:"-"`
	Limit     quota.Limit     `json:"limit"`
	Regions   []RegionChange  `json:"regions"`
}

// RegionChange is one region's part in a new split. To takes effect when the
// regions that give up theirs have acknowledged that.
type RegionChange struct {
	Region quota.Region `json:"region"`
	// Demand is in tokens per second.
	Demand float64     `json:"demand"`
	From   quota.Share `json:"from"`
	To     quota.Share `json:"to"`
}

// Tick does what is due at a time, and reports whether that was a rebalance.
func (m *Machine) Tick(now time.Time) (Rebalance, bool) {
	for _, q := range m.order {
		if q.removed || q.leaving {
			m.plan(q, now)
		}
	}
	m.sweep(now)
	m.outlive(now)
	m.reclaim(now)
	m.borrowDue(now)
	if now.Before(m.next) || m.recovering || !m.configured {
		return Rebalance{}, false
	}
	m.next = now.Add(m.interval)
	out := Rebalance{At: now}
	for _, q := range m.order {
		if q.removed {
			continue
		}
		out.Quotas++
		m.updateWeights(q, now)
		m.review(q, now)
		if change, changed := m.resplit(q, now); changed {
			out.Changes = append(out.Changes, change)
		}
		m.plan(q, now)
	}
	return out, true
}

// Next returns when Tick is due.
func (m *Machine) Next() time.Time {
	next := m.next
	if at, ok := m.nextReclaim(); ok && at.Before(next) {
		next = at
	}
	if at, ok := m.nextBorrow(); ok && at.Before(next) {
		next = at
	}
	return next
}

// sweep forgets quotas that no region has anything of, and regions that have left.
func (m *Machine) sweep(now time.Time) {
	kept := m.order[:0]
	for _, q := range m.order {
		if m.forgettable(q, now) || m.returned(q) {
			m.remove(q)
			continue
		}
		kept = append(kept, q)
	}
	clear(m.order[len(kept):])
	m.order = kept
	for _, r := range m.regions {
		if r.leaving && !r.gone && !m.holds(r) {
			r.gone = true
			m.touchRegion(r)
		}
	}
}

// remove forgets a quota; the caller takes it out of the order.
func (m *Machine) remove(q *splitQuota) {
	delete(m.quotas, q.id)
	if q.parent != nil {
		q.parent.keys = slices.DeleteFunc(q.parent.keys, func(k *splitQuota) bool { return k == q })
	}
}

// outlive ends the caution after lost data when every window has passed.
func (m *Machine) outlive(now time.Time) {
	for _, r := range m.regions {
		if r.lostAt.IsZero() || slices.ContainsFunc(m.order, func(q *splitQuota) bool { return q.within(now, r.lostAt) }) {
			continue
		}
		r.lostAt = time.Time{}
		if r.known && !m.recovering {
			m.touchRegion(r)
		}
	}
}

// forgettable reports whether no region has, or can have, anything of a removed
// quota, not even the floor of its policy.
func (m *Machine) forgettable(q *splitQuota, now time.Time) bool {
	if !q.removed || q.removedAt.IsZero() || m.hasRows(q) || len(q.keys) > 0 {
		return false
	}
	for i := range q.rows {
		if q.rows[i].dirty || q.rows[i].inOutbox || !m.dropping(q, i, now) {
			return false
		}
	}
	return true
}

func (m *Machine) holds(r *region) bool {
	for _, q := range m.order {
		if q.rows[r.index].exists() {
			return true
		}
	}
	return false
}

// resplit runs the split function and notes the new targets.
func (m *Machine) resplit(q *splitQuota, now time.Time) (Change, bool) {
	if !m.retarget(q, now, true) {
		return Change{}, false
	}
	c := Change{ID: q.id, Algorithm: q.algorithm, Limit: q.limit}
	k := 0
	for i := range q.rows {
		if m.regions[i].leaving {
			continue
		}
		c.Regions = append(c.Regions, RegionChange{
			Region: m.regions[i].name, Demand: q.rows[i].load.fast, From: m.inputs[k].Present, To: q.targets[i],
		})
		k++
	}
	return c, true
}

// retarget computes the targets of a quota and reports whether any has changed.
func (m *Machine) retarget(q *splitQuota, now time.Time, silence bool) bool {
	m.fillInputs(q, now)
	if !silence {
		// A new policy, or a new limit, is for everybody.
		for k := range m.inputs {
			m.inputs[k].Silent = false
		}
	}
	shares, changed := splitter.Split(m.shares, splitter.Input{Algorithm: q.algorithm, Limit: q.limit, Regions: m.inputs})
	m.shares = shares
	if changed {
		m.scatter(q.targets)
	}
	return changed
}

// fillInputs makes m.inputs the regions of a quota that are in service.
func (m *Machine) fillInputs(q *splitQuota, now time.Time) {
	m.inputs = m.inputs[:0]
	for i, r := range m.regions {
		if r.leaving {
			continue
		}
		l := &q.rows[i].load
		l.settle(now)
		m.inputs = append(m.inputs, splitter.Region{
			Name: r.name, Demand: q.rows[i].demand(now), Peak: l.peak, Floor: q.floors[i], Weight: q.weightOf(i, r.name),
			Present: q.targets[i], Bound: m.bound(q, i), Silent: now.Sub(r.last) > silentAfter,
		})
	}
}

// scatter copies m.shares, which are in the order of m.inputs, to one element per region.
func (m *Machine) scatter(dst []quota.Share) {
	k := 0
	for i, r := range m.regions {
		dst[i] = quota.Share{}
		if !r.leaving {
			dst[i] = m.shares[k]
			k++
		}
	}
}
