package regional

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/weirhq/weir/quota"
)

const (
	// flaggedPerPolicy bounds the flagged keys of one policy in a report: the coordinator
	// tracks no more.
	flaggedPerPolicy = 4096
	// maxKeyLines bounds the lines of keys in a report. One takes at most 350 bytes, so
	// they fit the 16 MiB that a coordinator accepts.
	maxKeyLines = 40_000
	// steady is by how much the demand of a tracked key may differ from what was last
	// reported without a line of its own.
	steady = 0.05
)

// keyBook is what an agent knows of the keys that have a share of their own.
type keyBook struct {
	// held is what the dataset holds, nil before it was listed; reported is what the
	// coordinator has last heard.
	held     map[quota.ID]quota.QuotaReport
	reported map[quota.ID]quota.QuotaReport
	granted  map[quota.ID]bool // applied since the last report was taken
}

func newKeyBook() keyBook {
	return keyBook{reported: map[quota.ID]quota.QuotaReport{}, granted: map[quota.ID]bool{}}
}

// grant notes that a key's share has changed, and must be read again.
func (b *keyBook) grant(id quota.ID) { b.granted[id] = true }

// drains reports whether a log has more entries than its share.
func (b *keyBook) drains() bool {
	for _, q := range b.held {
		if !q.Drained {
			return true
		}
	}
	return false
}

// heard notes what the coordinator has heard of a key. It takes the rate of an urgent
// line for that of an instant and not for the key's demand, so the next line, however
// steady the demand is, has yet to tell that.
func (b *keyBook) heard(q quota.QuotaReport) {
	delete(b.granted, q.ID)
	if q.Version > 0 && !q.Urgent {
		b.reported[q.ID] = q
	} else {
		delete(b.reported, q.ID)
	}
}

// placeable leaves out grants of keys that lead nowhere: one of them must not keep the
// others from being applied.
func (a *Agent) placeable(grants []quota.Grant) []quota.Grant {
	bad := func(g quota.Grant) bool {
		if g.ID.Key == "" {
			return false
		}
		_, _, err := quota.PlaceOf(g.ID, a.engine.cfg.KeyPrefix, a.engine.cfg.Stripes)
		if err != nil {
			a.metrics.refused.Inc()
			a.log.warn("grant refused", "policy", g.ID.Policy, "error", err)
		}
		return err != nil
	}
	if !slices.ContainsFunc(grants, func(g quota.Grant) bool { return g.ID.Key != "" }) {
		return grants
	}
	return slices.DeleteFunc(slices.Clone(grants), bad)
}

// readKeys brings the book up to date. Only this agent changes what is held, so between
// full reports it reads what was granted or still drains.
func (a *Agent) readKeys(ctx context.Context, full bool) error {
	b := &a.keys
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var ask []quota.ID
	if full || b.held == nil {
		listed, err := a.cfg.Dataset.TrackedKeys(ctx)
		if err != nil {
			return fmt.Errorf("list tracked keys: %w", err)
		}
		b.held = map[quota.ID]quota.QuotaReport{}
		ask = listed
	}
	for id, q := range b.held {
		if !q.Drained && !b.granted[id] {
			ask = append(ask, id)
		}
	}
	for id := range b.granted {
		ask = append(ask, id)
	}
	if len(ask) == 0 {
		return nil
	}
	slices.SortFunc(ask, compareIDs)
	ask = slices.Compact(ask)
	got, err := a.cfg.Dataset.HeldKeys(ctx, ask)
	if err != nil {
		b.held = nil
		return fmt.Errorf("read tracked keys: %w", err)
	}
	for _, id := range ask {
		delete(b.held, id)
	}
	for i := range got {
		b.held[got[i].ID] = got[i]
	}
	a.publishKeys()
	return nil
}

// lines are what a report says of keys: of those with a share of their own what has
// changed, or all of them when it is full; of those that were granted and are not held,
// that they are not; and which other keys want one. left is how many of the latter found
// no room.
func (b *keyBook) lines(of loads, full bool) (lines []quota.QuotaReport, left int) {
	demand := of.keys
	for id, q := range b.held {
		load := demand[id]
		q.Demand, q.Total, q.Admitted = load.total, load.total, load.admitted
		last, known := b.reported[id]
		if q.Urgent = of.short[id]; q.Urgent || full || !known || !q.Drained || b.granted[id] || changed(q, last) {
			lines = append(lines, q)
		}
	}
	for id := range b.granted {
		if _, ok := b.held[id]; !ok {
			load := demand[id]
			lines = append(lines, quota.QuotaReport{
				ID: id, Drained: true, Demand: load.total, Total: load.total, Admitted: load.admitted,
			})
		}
	}
	slices.SortFunc(lines, func(x, y quota.QuotaReport) int { return compareIDs(x.ID, y.ID) })
	var flagged []quota.QuotaReport
	for id, load := range demand {
		if _, ok := b.held[id]; !ok && !b.granted[id] && load.total > 0 {
			flagged = append(flagged, quota.QuotaReport{
				ID: id, Drained: true, Urgent: of.short[id], Demand: load.total, Total: load.total, Admitted: load.admitted,
			})
		}
	}
	slices.SortFunc(flagged, func(x, y quota.QuotaReport) int {
		return cmp.Or(cmp.Compare(y.Demand, x.Demand), compareIDs(x.ID, y.ID))
	})
	lined := map[string]int{}
	for i := range flagged {
		q := &flagged[i]
		if lined[q.ID.Policy] >= flaggedPerPolicy || len(lines) >= maxKeyLines {
			left++
			continue
		}
		lined[q.ID.Policy]++
		lines = append(lines, *q)
	}
	return lines, left
}

// changed reports whether a line says something that the last one did not.
func changed(q, last quota.QuotaReport) bool {
	if math.Abs(q.Demand-last.Demand) > steady*max(q.Demand, last.Demand) || math.Abs(q.Admitted-last.Admitted) > steady*max(q.Admitted, last.Admitted) {
		return true
	}
	q.Demand, q.Total, q.Admitted = last.Demand, last.Total, last.Admitted
	return q != last
}

func compareIDs(a, b quota.ID) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key))
}
