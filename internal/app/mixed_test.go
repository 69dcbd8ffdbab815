package app_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/quota"
)

// reportAsBefore is the exchange of a region whose nodes know nothing of keys with a
// share of their own, of urgent lines, of permanent parts or of leases: it says nothing
// of them, and does not understand them.
func (l link) reportAsBefore(ctx context.Context, r quota.Report) (quota.Instructions, error) {
	r.Quotas = slices.DeleteFunc(slices.Clone(r.Quotas), func(q quota.QuotaReport) bool { return q.ID.Key != "" })
	for i := range r.Quotas {
		q := &r.Quotas[i]
		q.Permanent, q.Urgent, q.Admitted = q.Share, false, 0
	}
	in, err := l.w.gate.Report(ctx, r)
	in.Grants = slices.DeleteFunc(slices.Clone(in.Grants), func(g quota.Grant) bool { return g.ID.Key != "" })
	in.Lease = quota.Lease{}
	return in, err
}

// While regions are upgraded one after another, those of both kinds share a limit for
// ten minutes: no error, nothing charged twice, nothing beyond the limit. Shares hardly
// follow demand before all regions know of keys with a share of their own, since what
// one of them may use for such a key is never certain; so much of the limit may be left
// over until then, and nothing afterwards.
func TestOldAndNewRegionsTogether(t *testing.T) {
	for name, old := range map[string][]quota.Region{"one is new": threeRegions[1:], "one is old": threeRegions[2:]} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := globalBucket(100, 1000)
				w := newWorld(t, p, time.Second)
				defer w.stop()
				w.mu.Lock()
				for _, region := range old {
					w.old[region] = true
				}
				w.mu.Unlock()
				var mixes [][]float64
				for i := range 10 {
					mix := []float64{0.2, 0.2, 0.2}
					mix[i%3] = 1 // together 1.4 times the limit
					mixes = append(mixes, mix)
				}
				w.overload(p, 1, mixes, 0.2) // the floors, which all keep
				// The last of them is upgraded.
				w.mu.Lock()
				clear(w.old)
				w.mu.Unlock()
				tenant := map[string]string{"tenant": "acme"}
				w.offerAll(tenant, 0.9*p.Limit.PerSecond(), []float64{0.8, 0.1, 0.1}, 2*time.Minute)
				if _, denied := w.offerAll(tenant, 0.9*p.Limit.PerSecond(), []float64{0.8, 0.1, 0.1}, time.Minute); denied > 0 {
					t.Errorf("%d checks denied after the upgrade", denied)
				}
			})
		})
	}
}
