package regional

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
)

// renewEvery is the part of its length after which a lease is extended. Reports come
// far more often, and each extension is a write on every stripe.
const renewEvery = 5

// leaseClock is until when this node knows the region's lease to last, by the node's
// own clock. The stores are what counts; this is for what is decided without them, and
// never later than they say.
type leaseClock struct{ until atomic.Pointer[time.Time] }

func (l *leaseClock) set(until time.Time) { l.until.Store(&until) }

// left is zero when the lease is over, or there is none.
func (l *leaseClock) left() time.Duration {
	until := l.until.Load()
	if until == nil {
		return 0
	}
	return max(0, time.Until(*until))
}

// leases reports whether the region holds, or is about to, what needs a lease.
func (a *Agent) leases() bool {
	if v := a.engine.view.Load(); v != nil {
		for _, s := range v.policies {
			if s.leased() {
				return true
			}
		}
	}
	for _, q := range a.held {
		if q.Version > 0 && q.Permanent != q.Share {
			return true
		}
	}
	return false
}

// leased reports whether the policy's share depends on the region's lease.
func (s *policyState) leased() bool {
	return s.demand != nil && s.policy.Split.OnPartition == quota.Strict
}

// leaseRequest is what has to be known from before a report is sent, to extend the
// lease by its answer: every stripe counts its lease from there, by its own clock.
type leaseRequest struct {
	at     time.Time
	clocks []int64
}

// askLease prepares a report whose answer may extend the lease. It returns nil when
// nothing needs a lease, or the one there is was extended just now.
func (a *Agent) askLease(ctx context.Context) (*leaseRequest, error) {
	if !a.leases() || a.engine.lease.left() > a.leaseTTL-a.leaseTTL/renewEvery {
		return nil, nil //nolint:nilnil // nothing to ask is no error
	}
	req := &leaseRequest{at: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var err error
	if req.clocks, err = a.cfg.Dataset.Clocks(ctx); err != nil {
		return nil, fmt.Errorf("clocks for the lease: %w", err)
	}
	return req, nil
}

// renew extends the lease as the answer to a report says. It comes before the grants of
// the answer, which may bring tokens that only a lease lets the region keep.
func (a *Agent) renew(ctx context.Context, req *leaseRequest, report *quota.Report, instr *quota.Instructions) error {
	lease := instr.Lease
	if req == nil || lease.TTL <= 0 || lease.SentAt != report.SentAt {
		return nil
	}
	var policies []string
	for id, q := range a.held {
		if q.Version > 0 && q.Permanent != q.Share {
			policies = append(policies, id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	lapsed, err := a.cfg.Dataset.Renew(ctx, instr.Epoch, report.Gen, req.clocks, lease.TTL, policies)
	if fenced(err) {
		a.metrics.refused.Inc()
		a.forgetDataset()
	}
	if err != nil {
		return fmt.Errorf("extend the lease: %w", err)
	}
	if lapsed {
		a.metrics.lapses.Inc()
		a.log.Info("the region's lease was over and is back; meanwhile strict policies had their floors", "ttl", lease.TTL)
	}
	a.leaseTTL = lease.TTL
	a.engine.lease.set(req.at.Add(lease.TTL))
	return nil
}

// refreshLease reads how long the lease lasts. Every node does: when its store is away
// it must know by itself when the share it decides by is over.
func (a *Agent) refreshLease(ctx context.Context) error {
	if !a.leases() {
		a.engine.lease.until.Store(nil)
		return nil
	}
	before := time.Now()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	left, err := a.cfg.Dataset.LeaseLeft(ctx)
	switch {
	case errors.Is(err, quota.ErrUninitialised):
		left = 0
	case err != nil:
		return fmt.Errorf("read the lease: %w", err)
	}
	a.engine.lease.set(before.Add(left))
	return nil
}
