package coordinator

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

// splits reports whether a policy's limit is divided between the regions.
func splits(p *quota.Policy) bool {
	return p.Scope == quota.Global && !p.Unlimited && (p.Algorithm == quota.TokenBucket || p.Algorithm == quota.SlidingLog)
}

// Floor returns the floor of one region of a policy whose limit is divided
// between regions: what the region may use before it was granted a share. The
// coordinator counts it as used from the moment it knows the policy.
//
// The half of a floor that goes by weight goes by the weights that the policy
// states, and is equal otherwise: floors that followed traffic would change all
// the time, and each change of a floor has to be acknowledged.
func Floor(regions []quota.Region, region quota.Region, p *quota.Policy) quota.Share {
	in := make([]splitter.Region, len(regions))
	at := -1
	for i, name := range regions {
		in[i] = splitter.Region{Name: name, Weight: weight(p.Split, name)}
		if name == region {
			at = i
		}
	}
	if at < 0 || !splits(p) {
		return quota.Share{}
	}
	return splitter.Floors(nil, p.Algorithm, p.Limit, p.Split.Floor(), in)[at]
}

// weight returns a region's weight as the policy states it, equal ones where it states none.
func weight(s quota.Split, name quota.Region) float64 {
	if s.Strategy == quota.SplitExplicit {
		return s.Weights[name]
	}
	return 1
}

// SetPolicies makes the policies of a revision those to split. Policies with
// regional or no limits are passed over. It fails with quota.ErrConflict when a
// later revision is in force.
func (m *Machine) SetPolicies(now time.Time, revision int64, policies []*quota.Policy) error {
	if m.configured && revision < m.revision {
		return fmt.Errorf("revision %d comes after revision %d: %w", revision, m.revision, quota.ErrConflict)
	}
	m.revision, m.configured = revision, true
	named := make(map[quota.ID]bool, len(policies))
	for _, p := range policies {
		if splits(p) {
			named[quota.ID{Policy: p.ID}] = true
			m.setPolicy(now, p)
		}
	}
	for _, q := range m.order {
		if !named[quota.ID{Policy: q.id.Policy}] && (!q.removed || q.removedAt.IsZero()) {
			q.removed, q.removedIn, q.removedAt = true, revision, now
		}
		m.plan(q, now)
	}
	m.countLeases()
	return nil
}

func (m *Machine) setPolicy(now time.Time, p *quota.Policy) {
	q := m.quota(quota.ID{Policy: p.ID})
	same := !q.removed && q.algorithm == p.Algorithm && q.limit == p.Limit && sameSplit(q.split, p.Split)
	if same {
		return
	}
	// What a lossy ledger found says nothing of the limit.
	found := q.limit.Capacity == 0 && m.hasRows(q)
	limitChanged := q.algorithm != p.Algorithm || q.limit != p.Limit
	q.removed, q.removedAt = false, time.Time{}
	for i := range q.rows {
		q.rows[i].floor = convert(q.rows[i].floor, q.limit.Period, p.Limit.Period)
	}
	q.algorithm, q.limit, q.split = p.Algorithm, p.Limit, p.Split
	m.setFloors(q)
	switch {
	case found:
		m.keep(q)
	case limitChanged || !m.hasRows(q) || !m.meetsFloors(q):
		m.retarget(q, now, false)
	}
	m.inheritAll(q, now)
}

func sameSplit(a, b quota.Split) bool {
	return a.Strategy == b.Strategy && a.Floor() == b.Floor() && a.OnPartition == b.OnPartition && maps.Equal(a.Weights, b.Weights)
}

func (m *Machine) setFloors(q *splitQuota) {
	m.fillInputs(q, time.Time{})
	for k := range m.inputs {
		m.inputs[k].Weight = weight(q.split, m.inputs[k].Name)
	}
	m.shares = splitter.Floors(m.shares, q.algorithm, q.limit, q.split.Floor(), m.inputs)
	m.scatter(q.floors)
	for i := range q.rows {
		row := &q.rows[i]
		row.floor = row.floor.Max(q.floors[i])
		// A region that loses its record uses its floor. The ledger says so, for a
		// leader that knows of smaller floors only.
		floor := convert(row.floor, q.limit.Period, row.Limit.Period)
		if row.exists() && !m.regions[i].leaving && !floor.Within(row.Bound()) {
			row.Acked, row.PermAcked = row.Acked.Max(floor), row.PermAcked.Max(floor)
			m.touch(row)
		}
	}
}

func (m *Machine) hasRows(q *splitQuota) bool {
	for i := range q.rows {
		if q.rows[i].exists() {
			return true
		}
	}
	return false
}

func (m *Machine) meetsFloors(q *splitQuota) bool {
	for i := range q.rows {
		if !q.floors[i].Within(q.targets[i]) {
			return false
		}
	}
	return true
}

// start gives a quota its targets after a recovery: what was found stays as it is
// until demand is known; what no region holds anything of gets its first split.
func (m *Machine) start(q *splitQuota, now time.Time) {
	switch {
	case q.removed:
	case m.hasRows(q):
		m.keep(q)
	default:
		m.retarget(q, now, false)
	}
}

// keep makes the targets what the regions have.
func (m *Machine) keep(q *splitQuota) {
	for i := range q.rows {
		q.targets[i] = q.follows(i).Sent.Max(q.floors[i])
	}
}

func compareIDs(a, b quota.ID) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key))
}
