package coordinator

import (
	"math"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

const (
	// borrowGap is the least time between two splits of one quota that regions have asked for.
	borrowGap = 200 * time.Millisecond
	// restlessFor is how long all regions report more often after one has asked for
	// more: who is to give learns of it in its next answer.
	restlessFor = 5 * time.Second
	// burstLife is how long the rate of a running second stands for demand.
	burstLife = time.Second
	// leastMove is the part of a limit that an urgent split must have brought a region,
	// or the region is not listened to for a while: saturation is not an emergency.
	leastMove = 0.01
	// firstRest and lastRest are that while, doubled each time.
	firstRest = time.Second
	lastRest  = 16 * time.Second
)

// appeal is a region's asking for more of a quota between two rebalances.
type appeal struct {
	// burst is the rate of the second before at, in tokens per second.
	burst float64
	at    time.Time
	// rest is how long the region is not listened to, until until.
	rest  time.Duration
	until time.Time
	// open is true until a split has answered it.
	open bool
	// since is when the region began to ask for what it does not hold yet.
	since time.Time
}

// demand is what a region is taken to be offered: the rate of the running second
// where it has just asked for more by it.
func (r *row) demand(now time.Time) float64 {
	if !r.appeal.at.IsZero() && now.Sub(r.appeal.at) <= burstLife {
		return max(r.load.fast, r.appeal.burst)
	}
	return r.load.fast
}

// urge takes in an urgent line of a report: the quota is split again as soon as may be.
func (m *Machine) urge(now time.Time, row *row, rate float64) {
	a := &row.appeal
	q := row.quota
	if q.removed || m.recovering || !m.configured || (q.algorithm == quota.SlidingLog && q.parent == nil) {
		// A log's default split is given up by windows (W4): it has nothing to lend at once.
		return
	}
	a.burst, a.at = rate, now // also while it rests: what it is offered is what it is offered
	if now.Before(a.until) {
		m.borrows.Rested++
		return
	}
	if a.open = true; a.since.IsZero() {
		a.since = now
	}
	q.rouse(now)
	m.borrows.Asked++
	m.restless = now.Add(restlessFor)
	if wait := q.borrowedAt.Add(borrowGap); now.Before(wait) {
		if !q.urgent {
			q.urgent = true
			m.urgent = append(m.urgent, q)
		}
		return
	}
	m.borrow(q, now)
}

// borrowDue splits the quotas that had to wait for their gap.
func (m *Machine) borrowDue(now time.Time) {
	waiting := m.urgent[:0]
	for _, q := range m.urgent {
		switch {
		case q.removed:
			q.urgent = false
		case now.Before(q.borrowedAt.Add(borrowGap)):
			waiting = append(waiting, q)
		default:
			m.borrow(q, now)
		}
	}
	clear(m.urgent[len(waiting):])
	m.urgent = waiting
}

// nextBorrow returns when the first of the waiting quotas may be split.
func (m *Machine) nextBorrow() (at time.Time, ok bool) {
	for _, q := range m.urgent {
		if t := q.borrowedAt.Add(borrowGap); !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// borrow splits a quota between two rebalances: who is short is raised, who has most
// to spare gives (5.11). It changes targets only; what may be granted when is the
// business of plan, so nothing of the safety argument is new.
func (m *Machine) borrow(q *splitQuota, now time.Time) {
	q.urgent, q.borrowedAt = false, now
	m.before = append(m.before[:0], q.targets...)
	m.fillInputs(q, now)
	shares, changed := splitter.Split(m.shares, splitter.Input{
		Algorithm: q.algorithm, Limit: q.limit, Regions: m.inputs, Urgent: true,
	})
	m.shares = shares
	if changed {
		m.scatter(q.targets)
		m.borrows.Moved++
	}
	for i := range q.rows {
		a := &q.rows[i].appeal
		if !a.open {
			continue
		}
		a.open = false
		if gained(m.before[i], q.targets[i], q) >= leastMove {
			a.rest = 0
			continue
		}
		a.since = time.Time{}
		a.rest = min(max(firstRest, 2*a.rest), lastRest)
		a.until = now.Add(a.rest)
	}
	m.plan(q, now)
}

// maxServed bounds what is kept for who measures the times.
const maxServed = 1000

// serve notes that a region holds all that it was to have, if it had asked for it.
func (m *Machine) serve(row *row, now time.Time) {
	a := &row.appeal
	if a.since.IsZero() || !row.settled() || row.Sent != row.quota.targets[row.region.index] {
		return
	}
	if len(m.served) < maxServed {
		m.served = append(m.served, now.Sub(a.since))
	}
	a.since = time.Time{}
}

// Served returns how long regions have waited for what they asked for between
// rebalances, of those that were served since it was last called.
func (m *Machine) Served() []time.Duration {
	out := m.served
	m.served = nil
	return out
}

// gained returns by what part of the limit a share has grown.
func gained(from, to quota.Share, q *splitQuota) float64 {
	part := func(from, to, limit quota.Tokens) float64 {
		if limit <= 0 {
			return math.Inf(-1)
		}
		return float64(to-from) / float64(limit)
	}
	if q.algorithm == quota.TokenBucket && q.limit.Refill > 0 {
		return part(from.Refill, to.Refill, q.limit.Refill)
	}
	return part(from.Capacity, to.Capacity, q.limit.Capacity)
}

// Borrows counts what came of regions that asked for more between two rebalances.
type Borrows struct {
	// Asked were listened to, Rested were not, because asking had brought nothing
	// lately. Moved is how many splits have changed.
	Asked, Rested, Moved int64
}

// Borrows returns the counts since the machine began.
func (m *Machine) Borrows() Borrows { return m.borrows }
