package quota

import (
	"fmt"
	"math"
	"time"
)

// LeaseExtension extends the lease of one stripe.
type LeaseExtension struct {
	Epoch Epoch
	Gen   string
	// Sent is the stripe's clock in microseconds when the report was sent that was
	// answered with the lease, TTL how long the lease lasts from there.
	Sent int64
	TTL  time.Duration
}

// Renew extends the lease of a stripe. If it was over, its end first enters the share
// records named, so that they do not accrue for the time of the lapse what only the
// lease would have given. lapsed is whether there had been one and it was over.
//
// The records of tracked keys are not settled, and go on as if there had been no lapse:
// see the documentation of package lua, which says why that gives nobody too much.
//
// It never shortens a lease, unless the lease ends later than any could: then the clock
// has stepped back.
func (m *Model) Renew(now int64, stripe int, ext LeaseExtension, keys []string) (lapsed bool, err error) {
	region, err := m.accepts(stripe, ext.Epoch, ext.Gen)
	if err != nil {
		return false, err
	}
	t, until := float64(now), float64(ext.Sent)+micros(ext.TTL)
	if region.leaseEnd > t+micros(ext.TTL) {
		region.leaseEnd, region.epoch = math.Min(until, t+micros(ext.TTL)), ext.Epoch
		return false, nil
	}
	if until <= region.leaseEnd || until < t {
		return false, nil
	}
	if region.leaseEnd < t {
		lapsed = region.leaseEnd > 0
		for _, key := range keys {
			if rec, ok := m.shares[key]; ok {
				m.shares[key] = rec.renewed(t, region.leaseEnd)
			}
		}
	}
	region.leaseEnd, region.epoch = until, ext.Epoch
	return lapsed, nil
}

// LeaseEnd returns until when the stripe's lease lasts, in microseconds of its clock;
// zero when it never had one.
func (m *Model) LeaseEnd(stripe int) (int64, error) {
	r := m.regions[stripe]
	if r == nil {
		return 0, fmt.Errorf("stripe %d: %w", stripe, ErrUninitialised)
	}
	return int64(r.leaseEnd), nil
}

// renewed returns the record after the lapse of its region's lease was settled: what
// the permanent part accrued from the end of the lease on, and its capacity. A log
// accrues nothing, and has nothing to settle.
func (r record) renewed(now, leaseEnd float64) record {
	if !r.lapsed(now, leaseEnd) || r.refill == 0 && r.permRefill == 0 && r.ghost == 0 {
		return r
	}
	return r.settledInto(r, 0, now, leaseEnd)
}
