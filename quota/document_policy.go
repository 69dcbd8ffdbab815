package quota

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The fields of a policy, in the order in which documentation and messages list them.
var policyFields = []string{
	"id", "match", "key", "algorithm",
	"capacity", "refill", "refillPerSecond", "refillPerMinute", "refillPerHour", "refillPerDay",
	"limit", "window", "leaseTTL", "unlimited",
	"onStoreFailure", "storeDeadline", "missingKey", "scope", "split", "enforcement", "subBuckets",
	"priority", "shadow",
}

// policyHints leads from what other limiters call a thing to our name of it.
var policyHints = map[string]hint{
	"name":          {nearest: "id"},
	"burst":         {nearest: "capacity"},
	"rate":          {nearest: "refill", remedy: "write refill: 100/1m"},
	"period":        {nearest: "window", remedy: "a sliding log has a window; a token bucket names its period in refill: 100/1m"},
	"overrides":     {remedy: "remove it; overrides of single keys are kept in the policy store, not in the document"},
	"onfailure":     {nearest: "onStoreFailure"},
	"dryrun":        {nearest: "shadow"},
	"refillperweek": {nearest: "refill", remedy: "write refill: 100/1w"},
	"refillperyear": {nearest: "refill", remedy: "write refill: 100/1y"},
}

// refillFields are the other spellings of refill.
var refillFields = []struct {
	name   string
	period time.Duration
}{
	{"refillPerSecond", time.Second},
	{"refillPerMinute", time.Minute},
	{"refillPerHour", time.Hour},
	{"refillPerDay", Day},
}

// ParsePolicies validates a policy document and returns its policies in the
// order of the document. A document with any problem yields no policy at all;
// the error is then a *DocumentError that lists every problem.
func ParsePolicies(root *Node) ([]*Policy, error) {
	d := &decoder{}
	policies := d.document(root)
	if err := d.err(); err != nil {
		return nil, err
	}
	return policies, nil
}

func (d *decoder) document(root *Node) []*Policy {
	if root == nil || root.Kind == NullNode || root.Kind == 0 {
		d.report("", root, &complaint{"the document is empty", "write policies: followed by a list, or policies: [] for none"})
		return nil
	}
	s, ok := d.section("", root, []string{"policies"}, nil)
	if !ok || !s.require("policies", "write policies: followed by a list, or policies: [] for none") {
		return nil
	}
	list := s.fields["policies"]
	if list.Kind != SequenceNode {
		s.report("policies", &complaint{"must be a list, is " + list.Kind.String(), "write one policy per list entry, or [] for none"})
		return nil
	}
	policies := make([]*Policy, 0, len(list.Items))
	ids := make(map[string]*Node, len(list.Items))
	for i, n := range list.Items {
		path := fmt.Sprintf("policies[%d]", i)
		p, id := d.policy(path, n)
		if id == nil {
			continue
		}
		if first, ok := ids[p.ID]; ok {
			d.report(path+".id", id, &complaint{
				fmt.Sprintf("%s is already the id of the policy at %s", quoteShort(p.ID), place(first)),
				"give each policy an id of its own",
			})
			continue
		}
		ids[p.ID] = id
		policies = append(policies, p)
	}
	return policies
}

// policy reads one policy; id is nil when the policy has no usable id.
func (d *decoder) policy(path string, n *Node) (p *Policy, id *Node) {
	p = &Policy{}
	s, ok := d.section(path, n, policyFields, policyHints)
	if !ok {
		return p, nil
	}
	if s.require("id", "give each policy an id, such as id: api-free") {
		if text, ok := s.text("id"); ok {
			if ValidPolicyID(text) {
				p.ID, id = text, s.fields["id"]
			} else {
				s.report("id", &complaint{"is no policy id: " + quoteShort(text), "use 1 to 64 of the characters A-Z a-z 0-9 _ . : / -"})
			}
		}
	}
	p.Match = s.match()
	p.Key = s.key()
	p.Shadow = s.flag("shadow")
	p.Unlimited = s.flag("unlimited")
	s.numbers(p)
	s.behaviour(p)
	s.split(p)
	return p, id
}

// numbers reads the algorithm and what belongs to it.
func (s *section) numbers(p *Policy) {
	if p.Unlimited {
		// An unlimited policy counts nothing; the algorithm is remembered for the day the flag goes.
		p.Algorithm = TokenBucket
		if a, ok := choice(s, "algorithm", TokenBucket, SlidingLog, Concurrency); ok {
			p.Algorithm = a
		}
		s.refuse("contradicts unlimited: true", "keep either the numbers or unlimited: true",
			"capacity", "refill", "refillPerSecond", "refillPerMinute", "refillPerHour", "refillPerDay", "limit", "window", "leaseTTL")
		return
	}
	if !s.require("algorithm", "write token-bucket, sliding-log or concurrency") {
		return
	}
	algorithm, ok := choice(s, "algorithm", TokenBucket, SlidingLog, Concurrency)
	if !ok {
		return
	}
	p.Algorithm = algorithm
	switch algorithm {
	case TokenBucket:
		s.bucket(p)
	case SlidingLog:
		s.log(p)
	case Concurrency:
		s.concurrency(p)
	}
}

// refuse reports each of the fields that is present.
func (s *section) refuse(reason, remedy string, names ...string) {
	for _, name := range names {
		if s.has(name) {
			s.report(name, &complaint{reason, remedy})
		}
	}
}

func (s *section) bucket(p *Policy) {
	s.refuse("does not belong to a token-bucket", "the burst of a token-bucket is capacity", "limit")
	s.refuse("does not belong to a token-bucket", "name the time in refill: 100/1m", "window")
	s.refuse("belongs to algorithm concurrency only", "remove it", "leaseTTL")
	okCapacity := s.require("capacity", "state the burst, such as capacity: 20")
	if okCapacity {
		p.Limit.Capacity, okCapacity = s.tokens("capacity", false)
	}
	name, okRefill := s.refill(&p.Limit)
	if okCapacity && okRefill {
		if c := checkBucket(p.Limit); c != nil {
			s.report(name, c)
		}
	}
}

// refill reads the one spelling of the refill that must be there, and returns its name.
func (s *section) refill(l *Limit) (string, bool) {
	found := ""
	for _, name := range policyFields {
		if !strings.HasPrefix(name, "refill") || !s.has(name) {
			continue
		}
		if found != "" {
			s.report(name, &complaint{
				"conflicts with " + found + " at " + place(s.fields[found]),
				"state the refill in one way only",
			})
			continue
		}
		found = name
	}
	switch found {
	case "":
		for _, f := range refillFields {
			if s.meant[f.name] {
				return "", false
			}
		}
		s.require("refill", "state the sustained rate, such as refill: 100/1m or refillPerMinute: 100")
		return "", false
	case "refill":
		return found, s.rate(l)
	}
	for _, f := range refillFields {
		if f.name == found {
			l.Period = f.period
		}
	}
	var ok bool
	l.Refill, ok = s.tokens(found, true)
	return found, ok
}

// rate reads refill: <count>/<time>.
func (s *section) rate(l *Limit) bool {
	const example = "write a count and a time, such as 100/1m"
	n := s.fields["refill"]
	if n.Kind == NumberNode {
		s.report("refill", &complaint{"names no time: " + quoteNumber(n.Text), example})
		return false
	}
	text, ok := s.text("refill")
	if !ok {
		return false
	}
	count, per, slash := strings.Cut(text, "/")
	count, per = strings.TrimSpace(count), strings.TrimSpace(per)
	if !slash {
		s.report("refill", &complaint{"names no time: " + quoteShort(text), example})
		return false
	}
	amount, c := parseTokens(count, true)
	if c != nil {
		s.report("refill", &complaint{"the count " + c.reason, c.remedy})
		return false
	}
	if per != "" && !isDigit(per[0]) {
		// 100/m means 100/1m to most people, and 100/min too.
		if _, err := ParseDuration("1" + per); err == nil || unitAliases[strings.ToLower(per)] != "" {
			unit := per
			if alias := unitAliases[strings.ToLower(per)]; alias != "" {
				unit = alias
			}
			s.report("refill", &complaint{"the time has no number: " + quoteShort(text), "write " + count + "/1" + unit})
			return false
		}
	}
	period, err := ParseDuration(per)
	if err != nil {
		s.report("refill", &complaint{"the time " + quoteShort(per) + " " + err.Error(), example})
		return false
	}
	if c := checkPeriod(period); c != nil {
		s.report("refill", &complaint{"the time " + c.reason, c.remedy})
		return false
	}
	l.Refill, l.Period = amount, period
	return true
}

func (s *section) log(p *Policy) {
	s.refuse("does not belong to a sliding-log", "a sliding-log has limit and window",
		"capacity", "refill", "refillPerSecond", "refillPerMinute", "refillPerHour", "refillPerDay")
	s.refuse("belongs to algorithm concurrency only", "remove it", "leaseTTL")
	if s.require("limit", "state how many fit in the window, such as limit: 10") {
		if t, ok := s.tokens("limit", false); ok {
			p.Limit.Capacity = t
			if t > MaxLogEntries*Token {
				s.report("limit", &complaint{
					fmt.Sprintf("is above %d, the most that a sliding-log keeps: %s", MaxLogEntries, t),
					"use algorithm: token-bucket, which costs the same at any limit",
				})
			}
		}
	}
	if s.require("window", "state the time that the limit is for, such as window: 60s") {
		p.Limit.Period = s.duration("window", MinPeriod, MaxPeriod)
	}
}

func (s *section) concurrency(p *Policy) {
	s.refuse("does not belong to algorithm concurrency", "a concurrency limit has limit and leaseTTL",
		"capacity", "refill", "refillPerSecond", "refillPerMinute", "refillPerHour", "refillPerDay", "window")
	if s.require("limit", "state how many may be in flight, such as limit: 5") {
		if n, ok := s.integer("limit", 0, maxConcurrency); ok {
			p.Limit.Capacity = Tokens(n) * Token
		}
	}
	if s.require("leaseTTL", "state how long a holder keeps its slot without renewing, such as leaseTTL: 2m") {
		p.LeaseTTL = s.duration("leaseTTL", time.Second, Day)
	}
	s.report("algorithm", &complaint{"concurrency is not enforced by this version", "use token-bucket or sliding-log, or leave the policy out"})
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// parseInteger reads a whole number that may be negative.
func parseInteger(text string) (int64, bool) {
	if !allDigits(strings.TrimPrefix(text, "-")) {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}
