package coordinator

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	// pendingReport is when to hear again from a region that has yet to acknowledge
	// something, movingReport from one that frees or waits for a part of a limit.
	pendingReport = 100 * time.Millisecond
	movingReport  = 250 * time.Millisecond
	// firstStart is how long a deployment that has never run may take to start in
	// every region and still begin with full buckets.
	firstStart = 15 * time.Second
	// maxGrants bounds one answer; the rest comes with the next.
	maxGrants = 2000
	// driftParts is the part of a window by which a region's clock may be slow, twice.
	driftParts = 500
	// lossMargin is added to the window of a log whose region has lost its data.
	lossMargin = 1100 * time.Millisecond
)

// Report takes in what a region says. Its effects must be committed before the
// region is answered with Instructions. It fails with quota.ErrInvalid for a
// region or numbers that cannot be, and with quota.ErrFenced when the region
// follows a later leader.
func (m *Machine) Report(now time.Time, rep quota.Report) error {
	r := m.byName[rep.Region]
	if r == nil || r.gone {
		return fmt.Errorf("region %q is not one of %s; regions are set where the coordinator is started: %w",
			rep.Region, m.regionNames(), quota.ErrInvalid)
	}
	if err := check(rep); err != nil {
		return err
	}
	if rep.Epoch > 0 && rep.Epoch != m.epoch {
		// Whatever an older report said that came late, this region has a past.
		r.virgin, r.met = false, cmp.Or(r.met, rep.Gen)
	}
	if rep.Epoch > m.epoch {
		return fmt.Errorf("region %s follows epoch %d, this is %d: %w", rep.Region, rep.Epoch, m.epoch, quota.ErrFenced)
	}
	newer := rep.SentAt > r.sentAt || rep.Gen != r.gen
	r.last, r.epoch, r.revision = now, rep.Epoch, rep.Revision
	if r.met == "" {
		r.met, r.virgin = rep.Gen, rep.Epoch == 0 && !holdsAny(rep.Quotas)
	}
	m.latest = now
	if rep.Epoch != m.epoch {
		// Grants of an earlier leader may still reach this region: what it says it
		// holds is not final until it has accepted this epoch.
		return nil
	}
	if newer {
		r.sentAt = rep.SentAt
	}
	m.follow(now, r, rep.Gen)
	m.reports++
	for i := range rep.Quotas {
		m.takeQuota(now, r, &rep.Quotas[i], newer)
	}
	if rep.Full {
		m.takeFull(now, r)
	}
	return nil
}

// follow notes which dataset of a region follows this leader. A new one has lost
// what the old one held: the bounds stay, and everything is sent again.
func (m *Machine) follow(now time.Time, r *region, gen string) {
	if r.gen == gen {
		return
	}
	if r.gen != "" {
		for _, q := range m.order {
			if row := &q.rows[r.index]; row.exists() {
				m.resend(row)
			}
		}
		r.heard = false
	}
	// A dataset that this ledger did not let begin as the first one may have another
	// before it, which no leader has ever met.
	if gen != r.met || (r.gen == "" && !m.fresh(r)) {
		r.lostAt = now
	}
	r.gen, r.met = gen, gen
	if r.known && !m.recovering {
		m.touchRegion(r)
	}
}

// resend queues the last version of a row again. A gift is not repeated to a
// dataset that may be a second one.
func (m *Machine) resend(row *row) {
	row.confirmed = false
	row.gift = 0
	m.enqueue(row)
}

func (m *Machine) enqueue(row *row) {
	if !row.inOutbox {
		row.inOutbox = true
		row.region.outbox = append(row.region.outbox, row)
	}
}

// takeFull concludes a report of everything: what it did not name is not there.
func (m *Machine) takeFull(now time.Time, r *region) {
	for _, q := range m.order {
		if row := &q.rows[r.index]; row.exists() && row.listed != m.reports {
			row.heldGen = ""
			if row.confirmed {
				m.resend(row)
			}
			m.enqueue(row)
		}
	}
	r.heard = true
	if !r.known {
		r.known = true
		m.updateRecovering(now)
	}
}

// found makes the quota of a line that no quota is known for; nil if there is nothing
// to know. A record of something that is no policy is taken over, to be taken back.
func (m *Machine) found(now time.Time, r *region, line *quota.QuotaReport) *splitQuota {
	if line.Version == 0 {
		if line.ID.Key != "" {
			m.flag(now, r, line)
		}
		return nil
	}
	q := m.quota(line.ID)
	switch {
	case q.parent != nil && !q.parent.removed:
		m.inherit(q)
	case m.configured:
		q.removed, q.removedIn, q.removedAt = true, m.revision, now
	default:
		q.removed = true
	}
	return q
}

// piece reports whether a line is of a region that has lost a part of its dataset, to a
// ledger that has lost its rows: without a version it may stand for some stripes without
// a record and others with one of any version. Of a policy that is not there the share
// would be forgotten, and in use again when the policy is back. So it counts as found,
// and is taken back like others.
func (m *Machine) piece(r *region, line *quota.QuotaReport) bool {
	if line.Version > 0 || line.ID.Key != "" || line.Share.Capacity == 0 || !m.recovering || !m.configured || r.revision > m.revision {
		return false
	}
	q := m.quotas[line.ID]
	return q == nil || (q.removed && !q.rows[r.index].exists())
}

// takeQuota takes in one line of a report of this epoch.
func (m *Machine) takeQuota(now time.Time, r *region, q *quota.QuotaReport, newer bool) {
	if m.piece(r, q) {
		found := *q // the report is the caller's
		found.Version = 1
		q = &found
	}
	sq := m.quotas[q.ID]
	if sq == nil {
		if sq = m.found(now, r, q); sq == nil {
			return
		}
	}
	row := &sq.rows[r.index]
	row.listed = m.reports
	if newer && q.Urgent {
		m.urge(now, row, q.Demand)
	} else if newer {
		row.load.observe(q.Demand, now)
		row.history.observe(q.Admitted, now)
	}
	switch {
	case q.Version == 0:
		row.heldGen = ""
		if newer && sq.leaving && q.Demand >= idle {
			m.urge(now, row, q.Demand) // flagged again, on its way back
		}
	case newer:
		row.heldGen = r.gen
	}
	if q.Version == 0 && q.ID.Key == "" {
		// The floor that the region uses may be that of an earlier limit.
		row.floor = row.floor.Max(convert(q.Share, q.Period, sq.limit.Period))
	}
	switch {
	case q.Version > row.Version, q.Version == row.Version && q.Version > 0 && q.Share != row.Sent:
		m.adopt(row, q)
	case q.Version == 0 && row.Drop && !row.dirty:
		m.forget(row)
	case q.Version < row.Version:
		if row.confirmed {
			m.resend(row)
		}
		m.enqueue(row)
		return
	case row.exists():
		if !m.acknowledge(now, row, q) {
			return
		}
	default:
		return
	}
	m.serve(row, now)
	m.plan(sq, now)
	if sq.parent != nil && !sq.parent.rows[r.index].heldUpAt.IsZero() {
		m.plan(sq.parent, now)
	}
}

// adopt believes a region that holds something which is not in the ledger: the
// ledger has lost it. The bound can only rise by that.
func (m *Machine) adopt(row *row, q *quota.QuotaReport) {
	if row.Limit.Period <= 0 {
		row.Limit.Period = q.Period
	}
	sent := convert(q.Share, q.Period, row.Limit.Period)
	share := sent
	share.Capacity = max(share.Capacity, q.Hold)
	before := row.Permanent()
	row.Acked = row.Bound().Max(share)
	row.MaxSent = row.Acked
	row.Sent = sent // what a log still holds above it is not granted again
	row.foundPermanent(q, before)
	row.Version, row.AckVersion = q.Version, q.Version
	row.confirmed = true
	row.gift = 0
	m.base = max(m.base, q.Version)
	if sq := row.quota; sq.algorithm == 0 {
		// No policy says what this is, but only logs have no refill.
		sq.algorithm, sq.limit.Period = quota.TokenBucket, row.Limit.Period
		if q.Share.Refill == 0 {
			sq.algorithm = quota.SlidingLog
		}
	}
	if !row.quota.removed {
		// Until demand is known, a split that was found is left as it is.
		row.quota.targets[row.region.index] = sent
	}
	m.touch(row)
}

// acknowledge takes in that the region holds the last version, which is the only
// thing that lowers a bound (L3), and reports whether anything changed by it.
//
// A log that is over its share keeps what is still inside its window: the bound
// follows Hold down, never up. Without a number it stays until the log is drained.
func (m *Machine) acknowledge(now time.Time, row *row, q *quota.QuotaReport) bool {
	first := row.AckVersion != row.Version || !row.confirmed
	m.surrender(row, q)
	acked := row.Sent
	forgot := row.forgot(now)
	if !q.Drained || forgot {
		acked.Capacity = max(row.Sent.Capacity, row.Bound().Capacity, row.floor.Capacity)
		if q.Hold > 0 && !forgot {
			acked.Capacity = min(acked.Capacity, max(q.Hold, row.Sent.Capacity))
		}
	}
	if row.AckVersion != row.Version {
		row.ackedAt = now
	}
	row.confirmed = true
	row.floor = row.quota.floors[row.region.index]
	if permitted := row.permitted(acked); permitted || row.AckVersion != row.Version || row.Acked != acked || row.MaxSent != row.Sent {
		row.AckVersion, row.Acked, row.MaxSent = row.Version, acked, row.Sent
		m.touch(row)
		return true
	}
	return first
}

// forgot reports whether a region may not know of entries that are still inside
// their window, because it has lost its data less than a window ago.
func (r *row) forgot(now time.Time) bool { return r.quota.within(now, r.region.lostAt) }

// within reports whether an entry of a log from before a time may still count.
func (q *splitQuota) within(now, since time.Time) bool {
	return q.algorithm == quota.SlidingLog && !since.IsZero() &&
		now.Sub(since) < q.limit.Period+q.limit.Period/driftParts+lossMargin
}

// forget removes a row whose record the region no longer has.
func (m *Machine) forget(row *row) {
	m.base = max(m.base, row.Version)
	id, name := row.ID, row.Region
	row.Row = Row{ID: id, Region: name}
	row.confirmed, row.gift = false, 0
	m.touch(row)
}

// Instructions answers a region's report. Only what is committed is granted.
func (m *Machine) Instructions(rep quota.Report) quota.Instructions {
	out := quota.Instructions{Epoch: m.epoch, Gen: rep.Gen}
	r := m.byName[rep.Region]
	if r == nil {
		return out
	}
	// Of two datasets that never followed a leader, the second has lost what the
	// first admitted by its floors.
	out.Fresh = r.met == rep.Gen && m.fresh(r)
	if out.Undecided = m.undecided(r); out.Undecided {
		out.Full, out.NextReport = true, movingReport
		return out
	}
	if rep.Epoch != m.epoch || rep.Gen != r.gen {
		// First the region refuses everything of earlier leaders, then it is told shares.
		out.Full, out.NextReport = true, pendingReport
		return out
	}
	if !r.heard {
		out.Full, out.NextReport = true, pendingReport
		return out
	}
	if r.dirty {
		// A leader that was replaced cannot commit which dataset it follows, and what
		// it granted to the last one may have been given to others since.
		out.NextReport = pendingReport
		return out
	}
	out.Grants = r.grants()
	out.Lease = m.lease(r, rep)
	switch {
	case len(r.outbox) > 0:
		out.NextReport = pendingReport
	case m.latest.Before(m.restless) || r.draining > 0 || (r.wanting > 0 && m.moving()):
		out.NextReport = movingReport
	}
	return out
}

// grants empties the outbox of what is settled and returns what can be sent of the
// rest, keys before the default splits that they are exceptions of.
func (r *region) grants() (out []quota.Grant) {
	keep := r.outbox[:0]
	for _, row := range r.outbox {
		if row.inOutbox = !row.settled(); row.inOutbox {
			keep = append(keep, row)
		}
	}
	clear(r.outbox[len(keep):])
	r.outbox = keep
	for _, keys := range []bool{true, false} {
		for _, row := range r.outbox {
			if (row.ID.Key != "") != keys || row.dirty || len(out) >= maxGrants || row.withheld() {
				continue
			}
			out = append(out, row.grant())
			r.sent = true
		}
	}
	return out
}

func (r *row) grant() quota.Grant {
	return quota.Grant{
		ID: r.ID, Version: r.Version, Share: r.Sent, Permanent: r.Perm, Gift: r.gift,
		Algorithm: r.Algorithm, Limit: r.Limit, Floor: r.Floor, Drop: r.Drop,
	}
}

// moving reports whether any region that answers still has something to
// acknowledge or to drain.
func (m *Machine) moving() bool {
	for _, r := range m.regions {
		if (len(r.outbox) > 0 || r.draining > 0) && m.latest.Sub(r.last) <= silentAfter {
			return true
		}
	}
	return false
}

// fresh reports whether no dataset of the region can have spent anything. With a
// ledger that may have lost rows this takes the word of all regions.
func (m *Machine) fresh(r *region) bool {
	if r.sent || r.gen != "" || r.leaving {
		return false
	}
	return !m.lossy || m.allVirgin()
}

// undecided reports whether a region had better wait with its first dataset. After
// a while it is told no more: the region starts as one that may have lost its data.
func (m *Machine) undecided(r *region) bool {
	if !m.lossy || !r.virgin || r.gen != "" || m.latest.Sub(m.started) > firstStart {
		return false
	}
	return slices.ContainsFunc(m.regions, func(o *region) bool { return o.met == "" && !o.leaving })
}

// allVirgin reports whether no region had followed any leader before this one.
func (m *Machine) allVirgin() bool {
	for _, r := range m.regions {
		if !r.virgin && !r.leaving {
			return false
		}
	}
	return true
}

func holdsAny(quotas []quota.QuotaReport) bool {
	return slices.ContainsFunc(quotas, func(q quota.QuotaReport) bool { return q.Version > 0 })
}

// check refuses numbers that no region can have counted.
func check(rep quota.Report) error {
	if rep.Gen == "" {
		return fmt.Errorf("report of region %s: gen is missing: %w", rep.Region, quota.ErrInvalid)
	}
	for i := range rep.Quotas {
		q := &rep.Quotas[i]
		for _, f := range []struct {
			name string
			ok   bool
		}{
			{"demand", rate(q.Demand)}, {"total", rate(q.Total)}, {"admitted", rate(q.Admitted)},
			{"version", q.Version >= 0}, {"period", q.Period >= 0}, {"hold", amount(q.Hold)},
			{"share", amount(q.Share.Capacity) && amount(q.Share.Refill)}, {"surrendered", amount(q.Surrendered)},
			{"id", quota.ValidPolicyID(q.ID.Policy)},
		} {
			if !f.ok {
				return fmt.Errorf("report of region %s: quotas[%d].%s cannot be: %w", rep.Region, i, f.name, quota.ErrInvalid)
			}
		}
	}
	return nil
}

func rate(x float64) bool { return x >= 0 && !math.IsInf(x, 1) && x <= 1e15 }

func amount(t quota.Tokens) bool { return t >= 0 && t <= quota.MaxTokens }

func (m *Machine) regionNames() string {
	var names []string
	for _, r := range m.regions {
		if !r.leaving {
			names = append(names, string(r.name))
		}
	}
	return strings.Join(names, ", ")
}
