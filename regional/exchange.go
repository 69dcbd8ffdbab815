package regional

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// exchange reports once and follows the answer. applied says that grants were
// applied, so that the next report, their acknowledgement, should not wait.
func (a *Agent) exchange(ctx context.Context, state quota.DatasetState) (next time.Duration, applied bool, err error) {
	lease, err := a.askLease(ctx)
	if err != nil {
		return 0, false, err
	}
	report, err := a.buildReport(ctx, state)
	if err != nil {
		return 0, false, err
	}
	instr, err := a.send(ctx, report)
	if err != nil {
		a.wantFull = true // the coordinator that answers next may know nothing
		return 0, false, err
	}
	a.heard(report)
	if instr.Gen != report.Gen || instr.Epoch < a.epoch {
		a.metrics.refused.Inc()
		a.log.warn("instructions refused", "gen", instr.Gen, "want_gen", report.Gen,
			"epoch", instr.Epoch, "seen_epoch", a.epoch)
		return a.cfg.Interval, false, nil
	}
	if instr.Full {
		a.wantFull = true
	}
	if err := a.renew(ctx, lease, &report, &instr); err != nil {
		return 0, false, err
	}
	if err := a.apply(ctx, instr); err != nil {
		return 0, false, err
	}
	if len(instr.Grants) == 0 && !instr.Full && report.Epoch == instr.Epoch {
		a.settled = true
	}
	return a.nextReport(instr), len(instr.Grants) > 0, nil
}

func (a *Agent) send(ctx context.Context, report quota.Report) (quota.Instructions, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	start := time.Now()
	instr, err := a.cfg.Coordinator.Report(ctx, report)
	a.metrics.reportTime.Observe(time.Since(start).Seconds())
	if err != nil {
		a.metrics.reports.failed.Inc()
		return instr, fmt.Errorf("report to the coordinator: %w", err)
	}
	a.metrics.reports.ok.Inc()
	a.metrics.stamp(&a.metrics.lastReport)
	return instr, nil
}

// apply writes grants to every stripe. A newer epoch is written even when
// nothing comes with it: from then on an older leader is refused.
func (a *Agent) apply(ctx context.Context, instr quota.Instructions) error {
	if len(instr.Grants) == 0 && instr.Epoch == a.epoch {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	start := time.Now()
	grants := a.placeable(instr.Grants)
	err := a.cfg.Dataset.Apply(ctx, instr.Epoch, a.gen, grants)
	// Some stripes may have what others lack; what is held must be read again.
	for i := range grants {
		id := grants[i].ID
		if id.Key != "" {
			a.keys.grant(id)
			continue
		}
		delete(a.held, id.Policy)
		a.granted[id.Policy] = true
	}
	if fenced(err) {
		a.metrics.refused.Inc()
		a.forgetDataset()
	}
	if err != nil {
		return fmt.Errorf("apply %d grants: %w", len(instr.Grants), err)
	}
	a.epoch = instr.Epoch
	if len(instr.Grants) > 0 {
		a.metrics.grantLag.Observe(time.Since(start).Seconds())
		a.metrics.stamp(&a.metrics.lastApplied)
		a.log.Debug("shares applied", "grants", len(instr.Grants), "epoch", instr.Epoch)
	}
	return nil
}

// nextReport is when to report again: when the coordinator asks for it, sooner
// while a log drains, else after the interval.
func (a *Agent) nextReport(instr quota.Instructions) time.Duration {
	next := a.jittered(a.cfg.Interval)
	if instr.NextReport > 0 {
		next = min(max(instr.NextReport, minInterval), max(longestPause, a.cfg.Interval))
	}
	for _, q := range a.held {
		if q.Version > 0 && !q.Drained {
			return min(next, drainInterval)
		}
	}
	if a.keys.drains() {
		return min(next, drainInterval)
	}
	return next
}

// buildReport takes the demand window and joins it with what is held. Between
// full reports it leaves out what the coordinator knows already.
func (a *Agent) buildReport(ctx context.Context, state quota.DatasetState) (quota.Report, error) {
	ids := a.reportable()
	a.forgetOthers(ids)
	if err := a.readHeld(ctx, ids); err != nil {
		return quota.Report{}, err
	}
	full := a.wantFull || time.Since(a.lastFull) >= fullEvery
	if err := a.readKeys(ctx, full); err != nil {
		return quota.Report{}, err
	}
	loads, err := a.takeLoads(ctx)
	if err != nil {
		return quota.Report{}, err
	}
	r := quota.Report{
		Region: a.cfg.Region, Gen: state.Gen, Epoch: a.epoch, SentAt: state.Now, Revision: a.revision(), Full: full,
	}
	for _, id := range ids {
		q := a.held[id]
		load := loads.policies[id]
		q.Demand, q.Total, q.Admitted = load.busiest, load.total, load.admitted
		last, known := a.reported[id]
		if r.Full || !known || !q.Drained || a.granted[id] || q != last {
			r.Quotas = append(r.Quotas, q)
		}
	}
	lines, left := a.keys.lines(loads, full)
	r.Quotas = append(r.Quotas, lines...)
	a.metrics.keysLeftOut.Add(float64(left))
	a.metrics.keysTracked.Set(float64(len(a.keys.held)))
	return r, nil
}

// reportable lists the policies a report may speak of: those whose limits are
// split, and those that grants have named since, such as one that was dropped.
func (a *Agent) reportable() []string {
	var ids []string
	if v := a.engine.view.Load(); v != nil {
		for id, s := range v.policies {
			if s.demand != nil {
				ids = append(ids, id)
			}
		}
	}
	for id := range a.granted {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// forgetOthers drops what is remembered of policies that are gone.
func (a *Agent) forgetOthers(ids []string) {
	gone := func(id string, _ quota.QuotaReport) bool {
		_, here := slices.BinarySearch(ids, id)
		return !here
	}
	maps.DeleteFunc(a.held, gone)
	maps.DeleteFunc(a.reported, gone)
}

// readHeld fills a.held for ids. Only this agent changes what is held, so most
// of it need not be read each time: what is not known, was just granted, or
// still drains is; everything is before a full report.
func (a *Agent) readHeld(ctx context.Context, ids []string) error {
	if a.held == nil || a.wantFull || time.Since(a.lastFull) >= fullEvery {
		a.held = map[string]quota.QuotaReport{}
	}
	var ask []string
	for _, id := range ids {
		if q, ok := a.held[id]; !ok || !q.Drained {
			ask = append(ask, id)
		}
	}
	if len(ask) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	got, err := a.cfg.Dataset.Held(ctx, ask)
	if err != nil {
		return fmt.Errorf("read share records: %w", err)
	}
	for _, id := range ask {
		a.held[id] = quota.QuotaReport{ID: quota.ID{Policy: id}, Drained: true}
	}
	for i := range got {
		q := got[i]
		a.held[q.ID.Policy] = q
		a.showShare(q)
	}
	return nil
}

// refreshShares reads the shares that checks on this node were decided under
// and that the node does not know yet. Local fallback and explanations use them.
func (a *Agent) refreshShares(ctx context.Context) error {
	v := a.engine.view.Load()
	if v == nil {
		return nil
	}
	var ask []string
	for id, s := range v.policies {
		if s.demand != nil && s.behind() {
			ask = append(ask, id)
		}
	}
	if len(ask) == 0 {
		return nil
	}
	slices.Sort(ask)
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	got, err := a.cfg.Dataset.Held(ctx, ask)
	if err != nil {
		return fmt.Errorf("read new shares: %w", err)
	}
	for i := range got {
		a.showShare(got[i])
	}
	return nil
}

func (a *Agent) showShare(q quota.QuotaReport) {
	v := a.engine.view.Load()
	if v == nil || q.Version == 0 {
		return
	}
	if s := v.policies[q.ID.Policy]; s != nil && s.demand != nil {
		s.sawShare(q.Share, q.Permanent, q.Version)
	}
}

// load is a policy's demand in tokens per second.
type load struct{ busiest, total, admitted float64 }

// loads is the demand of one window: of policies, and of the keys that have a split of
// their own or want one.
type loads struct {
	policies map[string]load
	keys     map[quota.ID]load
	// short are keys that must have more at once; a report tells of it once.
	short map[quota.ID]bool
}

// takeLoads returns the region's demand. A window is taken once in an interval:
// reports that follow at once, to acknowledge, repeat the last one instead of
// telling of an instant in which nothing was offered. When the report that
// carries a window fails, the window is lost: by the next its load is history.
func (a *Agent) takeLoads(ctx context.Context) (loads, error) {
	least := a.cfg.Interval * 3 / 4
	if a.hurried {
		least = a.cfg.Interval * 2 / 5
	}
	if a.loads.policies != nil && time.Since(a.taken) < least {
		return a.loads, nil
	}
	a.flush(ctx) // this node's part, up to now
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	w, err := a.cfg.Dataset.TakeDemand(ctx)
	if err != nil {
		return loads{}, fmt.Errorf("take demand: %w", err)
	}
	a.loads, a.taken = loadsOf(w), time.Now()
	return a.loads, nil
}

// loadsOf turns a window into rates. Of the keys the busiest counts, by what all
// nodes together were offered for it.
func loadsOf(w quota.DemandWindow) loads {
	out := loads{make(map[string]load), make(map[quota.ID]load), make(map[quota.ID]bool)}
	if w.Elapsed <= 0 {
		return out
	}
	rate := func(t quota.Tokens) float64 { return float64(t) / float64(quota.Token) / w.Elapsed.Seconds() }
	for i := range w.Demands {
		d := &w.Demands[i]
		if d.Kind == quota.DemandShort {
			out.short[quota.ID{Policy: d.Policy, Key: d.Key}] = true
			continue
		}
		if d.Kind != quota.DemandShared {
			id := quota.ID{Policy: d.Policy, Key: d.Key}
			l := out.keys[id]
			l.total, l.admitted = l.total+rate(d.Offered), l.admitted+rate(d.Admitted)
			out.keys[id] = l
			continue
		}
		l := out.policies[d.Policy]
		if d.Key == "" {
			l.total, l.admitted = l.total+rate(d.Offered), l.admitted+rate(d.Admitted)
		} else {
			l.busiest = max(l.busiest, rate(d.Offered))
		}
		out.policies[d.Policy] = l
	}
	return out
}

// heard notes what the coordinator has heard.
func (a *Agent) heard(r quota.Report) {
	if r.Full {
		a.wantFull, a.lastFull = false, time.Now()
	}
	a.loads.short = nil
	for i := range r.Quotas {
		q := r.Quotas[i]
		if q.ID.Key != "" {
			a.keys.heard(q)
			continue
		}
		a.reported[q.ID.Policy] = q
		delete(a.granted, q.ID.Policy)
	}
}
