package policystore

import (
	"maps"
	"slices"

	"github.com/weirhq/weir/quota"
)

// ClonePolicy returns a deep copy.
func ClonePolicy(p *quota.Policy) *quota.Policy {
	c := *p
	c.Match = slices.Clone(p.Match)
	c.Key = slices.Clone(p.Key)
	c.Split.Weights = maps.Clone(p.Split.Weights)
	if p.Split.FloorPercent != nil {
		c.Split.FloorPercent = new(*p.Split.FloorPercent)
	}
	return &c
}

// ClonePolicies returns a deep copy of a set.
func ClonePolicies(set []*quota.Policy) []*quota.Policy {
	if set == nil {
		return nil
	}
	out := make([]*quota.Policy, len(set))
	for i, p := range set {
		out[i] = ClonePolicy(p)
	}
	return out
}

// CloneOverride returns a deep copy.
func CloneOverride(o quota.Override) quota.Override {
	o.Key = slices.Clone(o.Key)
	return o
}
