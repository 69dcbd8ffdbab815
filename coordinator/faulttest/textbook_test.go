package faulttest

import (
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

// textbook is a coordinator as books have it: it computes a split each second and
// tells everybody, and that is all.
type textbook struct {
	names    []quota.Region
	epoch    quota.Epoch
	next     time.Time
	version  int64
	policies []*quota.Policy
	demand   map[line]float64
	shares   map[quota.ID][]quota.Share
	begun    map[line]bool
}

func newTextbook(names []quota.Region, epoch quota.Epoch) *textbook {
	return &textbook{names: names, epoch: epoch, demand: map[line]float64{}, shares: map[quota.ID][]quota.Share{}, begun: map[line]bool{}}
}

func (b *textbook) Report(_ time.Time, rep quota.Report) error {
	for i := range rep.Quotas {
		q := &rep.Quotas[i]
		b.demand[line{rep.Region, q.ID}] = q.Demand
		b.begun[line{rep.Region, q.ID}] = q.Version > 0
	}
	return nil
}

func (b *textbook) SetPolicies(_ time.Time, _ int64, policies []*quota.Policy) error {
	b.policies = policies
	b.split()
	return nil
}

func (b *textbook) Tick(now time.Time) (coordinator.Rebalance, bool) {
	if now.Before(b.next) {
		return coordinator.Rebalance{}, false
	}
	b.next = now.Add(time.Second)
	b.split()
	return coordinator.Rebalance{}, true
}

func (b *textbook) split() {
	for _, p := range b.policies {
		id := quota.ID{Policy: p.ID}
		in := splitter.Input{Algorithm: p.Algorithm, Limit: p.Limit}
		for i, name := range b.names {
			r := splitter.Region{Name: name, Demand: b.demand[line{name, id}], Weight: 1, Floor: coordinator.Floor(b.names, name, p)}
			if present := b.shares[id]; present != nil {
				r.Present = present[i]
			}
			in.Regions = append(in.Regions, r)
		}
		b.shares[id], _ = splitter.Split(nil, in)
	}
}

func (b *textbook) Instructions(rep quota.Report) quota.Instructions {
	out := quota.Instructions{Epoch: b.epoch, Gen: rep.Gen, Fresh: true}
	for i, name := range b.names {
		if name != rep.Region {
			continue
		}
		for _, p := range b.policies {
			id := quota.ID{Policy: p.ID}
			b.version++
			g := quota.Grant{
				ID: id, Version: b.version, Share: b.shares[id][i], Permanent: b.shares[id][i], Algorithm: p.Algorithm,
				Limit: p.Limit, Floor: coordinator.Floor(b.names, name, p).Min(b.shares[id][i]),
			}
			if !b.begun[line{name, id}] {
				g.Gift = g.Share.Capacity - g.Floor.Capacity
			}
			out.Grants = append(out.Grants, g)
		}
	}
	return out
}

func (b *textbook) Status(time.Time) coordinator.Status {
	var s coordinator.Status
	for _, p := range b.policies {
		s.Quotas = append(s.Quotas, coordinator.QuotaStatus{ID: quota.ID{Policy: p.ID}, Effective: true})
	}
	return s
}

func (b *textbook) Begin(_ time.Time, epoch quota.Epoch) { b.epoch = epoch }
func (b *textbook) Pending() coordinator.Batch           { return coordinator.Batch{} }
func (b *textbook) Committed(coordinator.Batch)          {}
func (b *textbook) Failed(coordinator.Batch)             {}
func (b *textbook) Recovering() bool                     { return false }
