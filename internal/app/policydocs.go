package app

import (
	"fmt"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

// MaxPolicyDocument bounds the size of a policy document, in bytes.
const MaxPolicyDocument = document.MaxBytes

// ParsePolicies reads and validates a policy document as the servers do. The
// error is a *quota.DocumentError that lists every problem.
func ParsePolicies(text []byte) ([]*quota.Policy, error) { return document.Policies(text) }

// MarshalPolicies writes a document that ParsePolicies reads back as equal policies.
func MarshalPolicies(policies []*quota.Policy) []byte { return document.Marshal(policies) }

// PolicyDocument is the text of a policy document and what people call it.
type PolicyDocument struct {
	Name string
	Text []byte
}

// RepeatedPolicies finds ids that an earlier document has already; each problem
// names both places. The result has the problems of each document. Ids that are
// twice in one document are for ParsePolicies to find, as is everything else
// that is wrong.
func RepeatedPolicies(docs []PolicyDocument) [][]quota.Problem {
	type place struct {
		doc  int
		node *quota.Node
	}
	seen := map[string]place{}
	problems := make([][]quota.Problem, len(docs))
	for i, doc := range docs {
		root, err := document.Parse(doc.Text)
		if err != nil {
			continue
		}
		for n, policy := range items(field(root, "policies")) {
			id := field(policy, "id")
			if id == nil || id.Kind != quota.StringNode {
				continue
			}
			first, ok := seen[id.Text]
			if !ok {
				seen[id.Text] = place{i, id}
				continue
			}
			if first.doc == i {
				continue
			}
			problems[i] = append(problems[i], quota.Problem{
				Path: fmt.Sprintf("policies[%d].id", n), Line: id.Line, Column: id.Column,
				Reason: fmt.Sprintf("%q is already the id of the policy at %s:%d:%d",
					id.Text, docs[first.doc].Name, first.node.Line, first.node.Column),
				Remedy: "give each policy an id of its own",
			})
		}
	}
	return problems
}

// SmallLimits warns of limits in a valid document that are too small to be divided
// between so many regions: see coordinator.SmallLimit.
func SmallLimits(text []byte, regions int) []quota.Problem {
	policies, err := document.Policies(text)
	if err != nil {
		return nil
	}
	root, err := document.Parse(text)
	if err != nil {
		return nil
	}
	nodes := map[string]int{}
	list := items(field(root, "policies"))
	for n, node := range list {
		if id := field(node, "id"); id != nil {
			nodes[id.Text] = n
		}
	}
	var out []quota.Problem
	for _, p := range policies {
		if !coordinator.SmallLimit(p, regions) {
			continue
		}
		n := nodes[p.ID]
		name := "capacity"
		if p.Algorithm == quota.SlidingLog {
			name = "limit"
		}
		problem := quota.Problem{
			Path: fmt.Sprintf("policies[%d].%s", n, name),
			Reason: fmt.Sprintf("%s cannot be split between %d regions: at any time it is with the regions that ask most, in whole tokens, "+
				"and the others deny until the next split", p.Limit.Capacity, regions),
			Remedy: fmt.Sprintf("use %d or more, two for each region, or scope: regional with the part of one region", 2*regions),
		}
		if at := field(list[n], name); at != nil {
			problem.Line, problem.Column = at.Line, at.Column
		}
		out = append(out, problem)
	}
	return out
}

// smallOverride warns of an override that is too small to be divided. Its key has the
// part of its own numbers that the region has of the policy's, and no whole tokens are
// made of that: with less than one the region denies the key always.
func smallOverride(p *quota.Policy, o *quota.Override, regions int) (quota.Problem, bool) {
	own := *p
	own.Limit = o.Limit
	if o.Unlimited || !coordinator.SmallLimit(&own, regions) {
		return quota.Problem{}, false
	}
	return quota.Problem{
		Path: "limit.capacity",
		Reason: fmt.Sprintf("%s are divided between %d regions as the limit of policy %s is; a region whose part is less than one token denies this key always",
			o.Limit.Capacity, regions, p.ID),
		Remedy: fmt.Sprintf("use %d or more, two for each region", 2*regions),
	}, true
}

// StrictModes says of a valid document which policies a partition leaves with their
// floors: whoever writes strict is to know that the coordinator's absence is one.
func StrictModes(text []byte) []quota.Problem {
	policies, err := document.Policies(text)
	if err != nil {
		return nil
	}
	root, err := document.Parse(text)
	if err != nil {
		return nil
	}
	strict := map[string]*quota.Policy{}
	for _, p := range policies {
		if p.Split.OnPartition == quota.Strict && !p.Unlimited {
			strict[p.ID] = p
		}
	}
	var out []quota.Problem
	for n, node := range items(field(root, "policies")) {
		id := field(node, "id")
		if id == nil || strict[id.Text] == nil {
			continue
		}
		problem := quota.Problem{
			Path: fmt.Sprintf("policies[%d].split.onPartition", n),
			Reason: fmt.Sprintf("with strict a region that has had no answer of the coordinator for %v has only its floor, "+
				"and when the coordinator is away that is every region: %g %% of the limit for all together",
				coordinator.DefaultLeaseTTL, strict[id.Text].Split.Floor()),
			Remedy: "use hold where regions must go on with their shares, or raise split.floor",
		}
		if at := field(field(node, "split"), "onPartition"); at != nil {
			problem.Line, problem.Column = at.Line, at.Column
		}
		out = append(out, problem)
	}
	return out
}

// field returns the first field of a mapping with the name, or nil.
func field(n *quota.Node, name string) *quota.Node {
	if n == nil || n.Kind != quota.MappingNode {
		return nil
	}
	for _, f := range n.Fields {
		if f.Name.Text == name {
			return f.Value
		}
	}
	return nil
}

func items(n *quota.Node) []*quota.Node {
	if n == nil || n.Kind != quota.SequenceNode {
		return nil
	}
	return n.Items
}
