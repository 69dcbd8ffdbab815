package quota

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of a policy's store deadline and priority.
const (
	MinStoreDeadline = time.Millisecond
	MaxStoreDeadline = 10 * time.Second
	MaxPriority      = 1000
	maxSubBuckets    = 1024
)

// pattern returns what a pattern stands for: the text to compare, and whether
// any value that begins with the text will do. The pattern "*" has an empty
// text and is satisfied by any value that is present.
func (c Condition) pattern() (text string, prefix bool) {
	return strings.CutSuffix(c.Pattern, "*")
}

// match reads the conditions, sorted by attribute.
func (s *section) match() []Condition {
	n := s.fields["match"]
	if n == nil {
		return nil
	}
	path := s.at("match")
	if n.Kind != MappingNode {
		s.report("match", &complaint{"must be a mapping, is " + n.Kind.String(), `write match: { attribute: "value" }, or leave it out to match every request`})
		return nil
	}
	if len(n.Fields) > MaxAttributes {
		s.report("match", &complaint{"has more than " + itoa(MaxAttributes) + " conditions", "no request has more attributes; remove some"})
		return nil
	}
	m := &section{d: s.d, path: path, node: n}
	seen := make(map[string]*Node, len(n.Fields))
	var conditions []Condition
	for _, f := range n.Fields {
		name := f.Name.Text
		if first, ok := seen[name]; ok {
			s.d.report(m.at(name), f.Name, repeatedField(first))
			continue
		}
		seen[name] = f.Name
		if !ValidAttributeName(name) {
			s.d.report(m.at(name), f.Name, badAttributeName(name))
			continue
		}
		pattern, ok := s.d.text(m.at(name), f.Value)
		if !ok {
			continue
		}
		if c := checkPattern(pattern); c != nil {
			s.d.report(m.at(name), f.Value, c)
			continue
		}
		conditions = append(conditions, Condition{Attribute: name, Pattern: pattern})
	}
	slices.SortFunc(conditions, func(a, b Condition) int { return strings.Compare(a.Attribute, b.Attribute) })
	return conditions
}

func badAttributeName(name string) *complaint {
	return &complaint{"is no attribute name: " + quoteShort(name), "begin with a letter, then use up to 63 of A-Z a-z 0-9 _ . -"}
}

func checkPattern(pattern string) *complaint {
	text := strings.TrimSuffix(pattern, "*")
	switch {
	case pattern == "":
		return &complaint{"is empty, and an empty attribute counts as absent", `write the value, or "*" for any value`}
	case strings.Contains(text, "*"):
		return &complaint{`has a "*" before its end: ` + quoteShort(pattern), `a pattern is a whole value, a prefix followed by "*", or "*"`}
	case len(text) > MaxAttributeValue:
		return &complaint{"is longer than " + itoa(MaxAttributeValue) + " bytes, the most that a request may carry", `shorten it, or end it with "*"`}
	}
	return nil
}

// key reads the attributes to count by: a list, or one name.
func (s *section) key() []string {
	n := s.fields["key"]
	if n == nil {
		return nil
	}
	if n.Kind == StringNode {
		n = &Node{Kind: SequenceNode, Line: n.Line, Column: n.Column, Items: []*Node{n}}
	}
	if n.Kind != SequenceNode {
		s.report("key", &complaint{"must be a list of attribute names, is " + n.Kind.String(), "write key: [apiKey], or leave it out to count all requests together"})
		return nil
	}
	if len(n.Items) > MaxKeyParts {
		s.report("key", &complaint{"has more than " + itoa(MaxKeyParts) + " attributes", "remove some"})
		return nil
	}
	var key []string
	for i, item := range n.Items {
		path := s.at("key")
		if item != s.fields["key"] {
			path += "[" + strconv.Itoa(i) + "]"
		}
		name, ok := s.d.text(path, item)
		if !ok {
			continue
		}
		if !ValidAttributeName(name) {
			s.d.report(path, item, badAttributeName(name))
			continue
		}
		if slices.Contains(key, name) {
			s.d.report(path, item, &complaint{"names " + quoteShort(name) + " twice", "keep one of them"})
			continue
		}
		key = append(key, name)
	}
	return key
}

// behaviour reads the choices that every algorithm has.
func (s *section) behaviour(p *Policy) {
	if s.require("onStoreFailure", "choose what happens when the store does not answer: local, open or closed") {
		p.OnStoreFailure, _ = choice(s, "onStoreFailure", FailLocal, FailOpen, FailClosed)
	}
	p.StoreDeadline = s.duration("storeDeadline", MinStoreDeadline, MaxStoreDeadline)
	p.Scope, _ = choice(s, "scope", Global, Regional)
	if missing, ok := choice(s, "missingKey", MissingSkip, MissingDeny, MissingShared); ok {
		p.MissingKey = missing
		if key := s.fields["key"]; key == nil || key.Kind == SequenceNode && len(key.Items) == 0 {
			s.report("missingKey", &complaint{"has no effect without key", "add the key, or remove missingKey"})
		}
	}
	if priority, ok := s.integer("priority", -MaxPriority, MaxPriority); ok {
		p.Priority = int(priority)
	}
	if enforcement, ok := choice(s, "enforcement", Exact, Leased); ok && enforcement == Leased {
		p.Enforcement = Leased
		if p.Algorithm != TokenBucket && p.Algorithm != 0 {
			s.report("enforcement", &complaint{"leased needs algorithm: token-bucket", "use enforcement: exact"})
		}
		s.report("enforcement", &complaint{"leased is not enforced by this version", "use enforcement: exact, or leave it out"})
	}
	if n, ok := s.integer("subBuckets", 1, maxSubBuckets); ok && n > 1 {
		p.SubBuckets = int(n)
		s.report("subBuckets", &complaint{"more than one is not enforced by this version", "use subBuckets: 1, or leave it out"})
	}
}

// split reads how a global limit is divided between the regions.
func (s *section) split(p *Policy) {
	n := s.fields["split"]
	if n == nil {
		return
	}
	if p.Scope == Regional {
		s.report("split", &complaint{"has no effect with scope: regional", "remove it, or use scope: global"})
	}
	sp, ok := s.d.section(s.at("split"), n, []string{"strategy", "floor", "onPartition", "weights"}, nil)
	if !ok {
		return
	}
	p.Split.Strategy, _ = choice(sp, "strategy", SplitByDemand, SplitEqual, SplitExplicit)
	if sp.has("floor") {
		p.Split.FloorPercent = sp.floor()
	}
	p.Split.OnPartition, _ = choice(sp, "onPartition", Hold, Strict)
	switch explicit := p.Split.Strategy == SplitExplicit; {
	case explicit && sp.require("weights", "state a weight for each region, such as weights: { us-east: 3, eu-west: 2 }"):
		p.Split.Weights = sp.weights()
	case !explicit && sp.has("weights"):
		sp.report("weights", &complaint{"belongs to strategy: explicit only", "add strategy: explicit, or remove the weights"})
	}
}

// floor reads a percentage, with or without its sign.
func (s *section) floor() *float64 {
	n := s.fields["floor"]
	text := n.Text
	if n.Kind == StringNode {
		var percent bool
		if text, percent = strings.CutSuffix(n.Text, "%"); !percent {
			text = ""
		}
	}
	if n.Kind != NumberNode && text == "" {
		s.report("floor", &complaint{"must be a percentage of the limit, is " + n.Kind.String(), "write a number from 0 to 100, such as 20"})
		return nil
	}
	value, ok := parseFinite(text)
	if !ok || value > 100 {
		s.report("floor", &complaint{"must be between 0 and 100 percent of the limit, is " + quoteNumber(n.Text), "write a number from 0 to 100, such as 20"})
		return nil
	}
	return &value
}

// weights reads a positive or zero number per region, not all zero.
func (s *section) weights() map[Region]float64 {
	n := s.fields["weights"]
	if n.Kind != MappingNode {
		s.report("weights", &complaint{"must be a mapping, is " + n.Kind.String(), "write weights: { us-east: 3, eu-west: 2 }"})
		return nil
	}
	w := &section{d: s.d, path: s.at("weights"), node: n}
	weights, names, clean := make(map[Region]float64, len(n.Fields)), map[string]*Node{}, true
	var sum float64
	for _, f := range n.Fields {
		region, path := Region(f.Name.Text), w.at(f.Name.Text)
		value, ok := parseFinite(f.Value.Text)
		first, repeated := names[f.Name.Text]
		names[f.Name.Text] = f.Name
		switch {
		case repeated:
			s.d.report(path, f.Name, repeatedField(first))
		case !ValidRegion(region):
			s.d.report(path, f.Name, &complaint{"is no region name: " + quoteShort(f.Name.Text), "use 1 to 64 of the characters A-Z a-z 0-9 _ . -"})
		case f.Value.Kind != NumberNode || !ok:
			s.d.report(path, f.Value, &complaint{"must be a number of zero or more", "write a weight such as 3"})
		default:
			weights[region] = value
			sum += value
			continue
		}
		clean = false
	}
	if clean && sum == 0 {
		s.report("weights", &complaint{"must not all be zero", "give at least one region a weight above zero"})
	}
	return weights
}

// parseFinite reads a plain decimal number of zero or more.
func parseFinite(text string) (float64, bool) {
	if notPlain(text) != nil {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	// Sums of weights must stay finite as well.
	return f, err == nil && f <= math.MaxInt32
}
