package coordinator_test

import (
	"maps"
	"slices"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// simRegion keeps share records as the stores do.
type simRegion struct {
	name       quota.Region
	gen        string
	epoch      quota.Epoch
	records    map[quota.ID]*simRecord
	view       map[string]*quota.Policy
	revision   int64
	clock      int64
	nextReport time.Time
	wantFull   bool
	late       []quota.Instructions // answers acknowledged and not applied, by the mutant
	acked      map[quota.ID]quota.Grant
	entries    map[string][]entry // of logs; what was really admitted
	lostAt     time.Time
	had        map[quota.ID]bool // a record that was granted, once
	demand     float64
	exact      bool // reports the count of logs, else waits a window
}

type simRecord struct {
	epoch    quota.Epoch
	version  int64
	share    quota.Share
	log      bool
	period   time.Duration
	hold     quota.Tokens
	shrunkAt time.Time
}

type entry struct {
	at time.Time
	n  quota.Tokens
}

// live is a moment of a region: it learns policies, admits, reports.
func (w *world) live(r *simRegion) {
	if w.rng.IntN(5) == 0 && r.revision != w.revision {
		r.revision = w.revision
		r.view = maps.Clone(w.policies)
		for id, rec := range r.records { // floors go with their policy
			if rec.version == 0 && r.view[id.Policy] == nil {
				delete(r.records, id)
			}
		}
	}
	w.admit(r)
	if w.mutant.ackOnReceipt && len(r.late) > 0 && w.rng.IntN(10) == 0 {
		for _, a := range r.late {
			r.apply(w, a, false)
		}
		r.late = nil
	}
	if w.now.Before(r.nextReport) {
		return
	}
	r.nextReport = w.now.Add(time.Duration(100+w.rng.IntN(900)) * time.Millisecond)
	rep := r.report(w)
	w.send(message{report: &rep})
}

// admit fills logs, at times to the brim.
func (w *world) admit(r *simRegion) {
	id := quota.ID{Policy: "log"}
	share, period := w.acting(r, id)
	if period == 0 {
		period = 4 * time.Second
	}
	since := w.now.Add(-period)
	r.entries["log"] = slices.DeleteFunc(r.entries["log"], func(e entry) bool { return !e.at.After(since) })
	if w.now.Sub(r.lostAt) < period+1050*time.Millisecond || w.rng.IntN(3) > 0 {
		return // blocked after a loss, or idle
	}
	if free := share.Capacity - r.count(); free >= quota.Token {
		n := quota.Tokens(1+w.rng.Int64N(free.Whole())) * quota.Token
		r.entries["log"] = append(r.entries["log"], entry{w.now, n})
	}
}

func (r *simRegion) count() (n quota.Tokens) {
	for _, e := range r.entries["log"] {
		n += e.n
	}
	return n
}

// counted is what the region's own log holds: nothing of before a loss.
func (r *simRegion) counted() (n quota.Tokens) {
	for _, e := range r.entries["log"] {
		if e.at.After(r.lostAt) {
			n += e.n
		}
	}
	return n
}

// acting is the share that a region uses now: its record's, else the floor of the policy it knows.
func (w *world) acting(r *simRegion, id quota.ID) (quota.Share, time.Duration) {
	p := r.view[id.Policy]
	again := !r.lostAt.IsZero() || r.had[id]
	if rec := r.records[id]; rec != nil && (rec.version > 0 || (p != nil && !again)) {
		return rec.share, rec.period
	}
	// The one known exception, which docs/guarantees.md states: a region without a
	// record of a policy (not yet told, data loss, or the policy was removed and is
	// back) while a change of the limit is under way may use a floor that others
	// still use.
	if current := p == w.policies[id.Policy]; (again && !current) || ((again || current) && !w.effective(id)) {
		return quota.Share{}, 0
	}
	if p == nil {
		return quota.Share{}, 0
	}
	// The first use of a floor leaves a record of it, of version zero.
	rec := &simRecord{share: coordinator.Floor(w.names, r.name, p), period: p.Limit.Period, log: p.Algorithm == quota.SlidingLog}
	r.records[id] = rec
	return rec.share, rec.period
}

func (w *world) effective(id quota.ID) bool {
	for _, q := range w.machine.Status(w.now).Quotas {
		if q.ID == id {
			return q.Effective
		}
	}
	return false
}

func (r *simRegion) report(w *world) quota.Report {
	r.clock++
	rep := quota.Report{Region: r.name, Gen: r.gen, Epoch: r.epoch, SentAt: r.clock, Revision: r.revision, Full: r.wantFull || w.rng.IntN(10) == 0}
	r.wantFull = false
	for _, policy := range []string{"bucket", "log"} {
		id := quota.ID{Policy: policy}
		q := quota.QuotaReport{ID: id, Drained: true, Demand: r.demand * (0.9 + w.rng.Float64()/5)}
		if rec := r.records[id]; rec != nil {
			q.Version, q.Share, q.Period = rec.version, rec.share, rec.period
			if rec.log {
				w.reportDrain(r, rec, &q)
			}
		}
		if g, ok := r.acked[id]; ok && w.mutant.ackOnReceipt && !g.Drop {
			q.Version, q.Share, q.Period = g.Version, g.Share, g.Limit.Period
		}
		if rep.Full || w.rng.IntN(8) > 0 {
			rep.Quotas = append(rep.Quotas, q)
		} else if rep.Full = false; q.Version > 0 {
			continue
		}
	}
	return rep
}

func (w *world) reportDrain(r *simRegion, rec *simRecord, q *quota.QuotaReport) {
	switch {
	case w.mutant.noDrain:
	case r.exact:
		q.Hold = max(rec.share.Capacity, r.counted())
		q.Drained = r.counted() <= rec.share.Capacity
	case w.now.Sub(rec.shrunkAt) < rec.period+rec.period/500:
		q.Drained, q.Hold = false, max(rec.hold, rec.share.Capacity)
	}
}

// apply follows instructions as a region must.
func (r *simRegion) apply(w *world, a quota.Instructions, later bool) {
	if a.Gen != r.gen || (a.Epoch < r.epoch && !w.mutant.noEpochCheck) {
		return
	}
	if a.Epoch > r.epoch {
		r.epoch = a.Epoch
	}
	if a.Full {
		r.wantFull = true
	}
	if len(a.Grants) > 0 || a.NextReport > 0 {
		r.nextReport = w.now.Add(50 * time.Millisecond)
	}
	if later {
		for _, g := range a.Grants {
			r.acked[g.ID] = g
		}
		r.late = append(r.late, a)
		return
	}
	for _, g := range a.Grants {
		r.applyGrant(w, a.Epoch, g)
	}
}

func (r *simRegion) applyGrant(w *world, epoch quota.Epoch, g quota.Grant) {
	old := r.records[g.ID]
	newer := old == nil || epoch > old.epoch || (epoch == old.epoch && g.Version > old.version)
	if w.mutant.noEpochCheck && old != nil {
		newer = g.Version > old.version
	}
	if !newer && !w.mutant.noVersionCheck {
		return
	}
	if g.Drop {
		delete(r.records, g.ID)
		return
	}
	rec := &simRecord{epoch: epoch, version: g.Version, share: g.Share, period: g.Limit.Period, log: g.Algorithm == quota.SlidingLog}
	if old != nil && old.log {
		rec.hold, rec.shrunkAt = old.hold, old.shrunkAt
		if w.now.Sub(rec.shrunkAt) >= old.period+old.period/500 {
			rec.hold = 0
		}
		if rec.share.Capacity < old.share.Capacity {
			rec.hold, rec.shrunkAt = max(rec.hold, old.share.Capacity), w.now
		}
	}
	r.records[g.ID], r.had[g.ID] = rec, true
}
