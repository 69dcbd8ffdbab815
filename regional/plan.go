package regional

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// Bounds of one request, so that no caller can make a check expensive. Those of
// attributes are quota's.
const (
	MaxRequestID = 256
	MaxFilter    = 64
)

// validate checks what does not depend on policies. Errors name the field.
func validate(req *quota.Request) error {
	switch {
	case req.Cost < 0:
		return fmt.Errorf("%w: cost: %v is negative; give tokens back with Refund", quota.ErrInvalid, req.Cost)
	case req.Cost > quota.MaxTokens:
		return fmt.Errorf("%w: cost: %v is above the largest cost, %v", quota.ErrInvalid, req.Cost, quota.MaxTokens)
	case len(req.RequestID) > MaxRequestID:
		return fmt.Errorf("%w: request_id: has %d bytes; send at most %d", quota.ErrInvalid, len(req.RequestID), MaxRequestID)
	case len(req.Policies) > MaxFilter:
		return fmt.Errorf("%w: policies: %d ids; send at most %d", quota.ErrInvalid, len(req.Policies), MaxFilter)
	case len(req.Attributes) > quota.MaxAttributes:
		return fmt.Errorf("%w: attributes: %d given; send at most %d", quota.ErrInvalid, len(req.Attributes), quota.MaxAttributes)
	}
	return nil
}

// plan is one check taken apart: a step per policy, a group per stripe. Plans
// are reused; nothing of one may be kept after release. What a late store call
// still needs (entries, keys) is never part of the reusable memory.
type plan struct {
	view   *view
	req    quota.Request
	peek   bool
	steps  []step
	groups []group
	calls  []*call

	attrs   quota.AttributeBuilder
	matches []quota.Match
	keys    []byte

	// doomed: a policy denies whatever the store says, so nothing is charged and
	// the rest is asked only to be reported.
	doomed   bool
	allowed  bool
	replayed bool
}

// step is one policy's part of a check.
type step struct {
	match    quota.Match
	state    *policyState
	decision quota.Decision
	// bucket and share are store keys; share is empty for regional numbers.
	bucket, share string
	// keyFrom, keyTo and shareTo are where they lie in plan.keys.
	keyFrom, keyTo, shareTo int
	stripe                  int
	// partition is the hash that the stripe stems from; with it a key has its name in
	// all regions.
	partition uint64
	// asks: the store has a say. placed: the step is in a group.
	asks    bool
	placed  bool
	verdict quota.Verdict
	// local: a bucket in memory decides. localCharged: it gave the cost, from localEntry.
	local        bool
	localCharged bool
	localEntry   quota.Entry
}

// group is what one stripe decides at once.
type group struct {
	stripe   int
	steps    []int
	entries  []quota.Entry
	deadline time.Duration
	call     *call
	failure  error
}

// plan resolves a request against the live revision.
func (e *Engine) plan(req quota.Request, peek bool) (*plan, error) {
	if err := validate(&req); err != nil {
		return nil, err
	}
	v := e.view.Load()
	if v == nil {
		return nil, fmt.Errorf("no policy revision is live yet: %w", quota.ErrUnavailable)
	}
	p, _ := e.plans.Get().(*plan) // the pool holds nothing else
	p.view, p.req, p.peek = v, req, peek
	if err := p.resolve(e); err != nil {
		e.release(p)
		return nil, err
	}
	p.group(e.cfg.StoreDeadline)
	return p, nil
}

// resolve makes a step of each policy that takes part.
func (p *plan) resolve(e *Engine) error {
	for _, id := range p.req.Policies {
		if p.view.policies[id] == nil {
			return fmt.Errorf("policies: there is no policy %q: %w", id, quota.ErrNotFound)
		}
	}
	p.attrs.AddMap(p.req.Attributes)
	attrs, err := p.attrs.Attributes()
	if err != nil {
		return err
	}
	p.matches = p.view.index.Resolve(attrs, p.matches[:0])
	for i := range p.matches {
		m := &p.matches[i]
		if len(p.req.Policies) == 0 || slices.Contains(p.req.Policies, m.Policy.ID) {
			p.add(m)
		}
	}
	p.render(e, attrs)
	return p.wholeTokens()
}

// render makes the store keys of all steps, as parts of one string.
func (p *plan) render(e *Engine, attrs quota.Attributes) {
	p.keys = p.keys[:0]
	for i := range p.steps {
		s := &p.steps[i]
		if !s.counts() {
			continue
		}
		s.keyFrom = len(p.keys)
		s.partition = quota.Partition(s.match.Policy, attrs)
		p.keys, s.stripe = quota.AppendPartitionKey(p.keys, e.cfg.KeyPrefix, e.cfg.Stripes, s.partition, s.match.Policy, attrs)
		s.keyTo = len(p.keys)
		if e.split(s.match.Policy) {
			p.keys = quota.AppendShareKey(p.keys, e.cfg.KeyPrefix, s.stripe, s.match.Policy.ID)
		}
		s.shareTo = len(p.keys)
	}
	if len(p.keys) == 0 {
		return
	}
	all := string(p.keys)
	for i := range p.steps {
		if s := &p.steps[i]; s.counts() {
			s.bucket, s.share = all[s.keyFrom:s.keyTo], all[s.keyTo:s.shareTo]
		}
	}
}

// counts reports whether there is a quota behind the step.
func (s *step) counts() bool {
	return !s.decision.Unlimited && s.decision.Reason != quota.ReasonMissingKey
}

// entry is the step's part of an attempt.
func (s *step) entry() quota.Entry {
	policy := s.match.Policy
	return quota.Entry{
		Bucket: s.bucket, ShareKey: s.share, Algorithm: policy.Algorithm,
		Limit: s.match.Limit, Base: policy.Limit, Floor: s.state.floor, Shadow: policy.Shadow,
	}
}

// release returns the plan to the pool without what it points at.
func (e *Engine) release(p *plan) {
	clear(p.steps)
	clear(p.calls)
	clear(p.matches)
	for i := range p.groups {
		p.groups[i] = group{steps: p.groups[i].steps[:0]}
	}
	p.attrs.Reset()
	*p = plan{
		steps: p.steps[:0], groups: p.groups[:0], calls: p.calls[:0],
		attrs: p.attrs, matches: p.matches[:0], keys: p.keys[:0],
	}
	e.plans.Put(p)
}

// add makes a step of a matching policy and decides what needs no store.
func (p *plan) add(m *quota.Match) {
	policy := m.Policy
	d := quota.Decision{PolicyID: policy.ID, Shadow: policy.Shadow, Limit: m.Limit.Capacity.Whole(), Limits: m.Limit}
	s := step{match: *m, state: p.view.policies[policy.ID]}
	switch {
	case m.Missing != "" && policy.MissingKey == quota.MissingSkip:
		return
	case m.Unlimited:
		d.Unlimited, d.Allowed = true, true
	case m.Missing != "" && policy.MissingKey == quota.MissingDeny:
		d.Reason = quota.ReasonMissingKey
	case m.Limit.Capacity == 0:
		d.Reason = quota.ReasonNeverFits
	case p.req.Cost > m.Limit.Capacity:
		d.Reason = quota.ReasonNeverFits
		s.asks = true // for what remains
	default:
		s.asks = true
	}
	if d.Reason != quota.ReasonNone && !policy.Shadow {
		p.doomed = true
	}
	s.decision = d
	p.steps = append(p.steps, s)
}

// wholeTokens refuses fractional costs where they have no meaning.
func (p *plan) wholeTokens() error {
	if p.req.Cost%quota.Token == 0 {
		return nil
	}
	for i := range p.steps {
		if policy := p.steps[i].match.Policy; policy.Algorithm == quota.SlidingLog {
			return fmt.Errorf("%w: cost: %v is not whole, and policy %q counts whole requests",
				quota.ErrInvalid, p.req.Cost, policy.ID)
		}
	}
	return nil
}

// group sorts the steps that need the store by stripe. Policies that state no deadline
// have the given one.
func (p *plan) group(deadline time.Duration) {
	n := 0
	for i := range p.steps {
		if p.steps[i].asks {
			n++
		}
	}
	if n == 0 {
		return
	}
	entries := make([]quota.Entry, 0, n) // one block; the groups are parts of it
	for i := range p.steps {
		s := &p.steps[i]
		if !s.asks || s.placed {
			continue
		}
		g := p.nextGroup()
		g.stripe, g.deadline = s.stripe, time.Duration(1<<62)
		from := len(entries)
		for j := i; j < len(p.steps); j++ {
			t := &p.steps[j]
			if !t.asks || t.stripe != g.stripe {
				continue
			}
			t.placed = true
			g.steps = append(g.steps, j)
			g.deadline = min(g.deadline, cmp.Or(t.match.Policy.StoreDeadline, deadline))
			entries = append(entries, t.entry())
		}
		g.entries = entries[from:len(entries):len(entries)]
	}
}

// nextGroup appends a group, reusing the memory of an earlier one.
func (p *plan) nextGroup() *group {
	if len(p.groups) < cap(p.groups) {
		p.groups = p.groups[:len(p.groups)+1]
	} else {
		p.groups = append(p.groups, group{})
	}
	return &p.groups[len(p.groups)-1]
}

// attempt is what a group asks of the store.
func (p *plan) attempt(g *group) quota.Attempt {
	a := quota.Attempt{Stripe: g.stripe, Cost: p.req.Cost, Entries: g.entries, Peek: p.peek || p.doomed}
	if p.req.RequestID != "" && !a.Peek {
		a.RequestID = scopedID(&p.req, g.entries)
	}
	return a
}

// scopedID binds a request id to what it was used for. The stripe is shared: two
// callers that happen to choose the same id, or one that repeats an id with a
// smaller cost, must not get an answer that was given to another question.
func scopedID(req *quota.Request, entries []quota.Entry) string {
	h := sha256.New()
	var n [8]byte
	part := func(s string) {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	part(req.RequestID)
	binary.BigEndian.PutUint64(n[:], uint64(req.Cost))
	h.Write(n[:])
	for i := range entries {
		part(entries[i].Bucket)
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(h.Sum(sum[:0])[:16])
}

// result copies the decisions out of the plan.
func (p *plan) result() quota.Result {
	res := quota.Result{Allowed: p.allowed, Revision: p.view.index.Revision(), Replayed: p.replayed}
	if len(p.steps) > 0 {
		res.Decisions = make([]quota.Decision, len(p.steps))
		for i := range p.steps {
			res.Decisions[i] = p.steps[i].decision
		}
	}
	return res
}
