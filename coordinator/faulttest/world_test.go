package faulttest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
)

// tick is what true time is counted in, in microseconds. Clocks that are off by a
// multiple of 1/20000 count whole microseconds in it.
const (
	tick     = 20_000
	clockDiv = 20_000
)

// rho is by how much clocks may be off: quota.Drift, in parts of clockDiv.
const rho = 10

// clock runs evenly, and a little fast or slow.
type clock struct{ offset, off int64 }

func (c clock) micros(now int64) int64   { return c.offset + now + now/clockDiv*c.off }
func (c clock) time(now int64) time.Time { return time.UnixMicro(c.micros(now)) }

// options says what kind of world it is.
type options struct {
	mutant mutant
	// only leaves one algorithm of the two; zero keeps both.
	only quota.Algorithm
	setting
	// strict lets all policies be of that partition mode, hold none; else some are.
	strict, hold bool
	// ttl is the length of leases, if not a random one.
	ttl time.Duration
}

// setting is what goes wrong in a world.
type setting int

const (
	faulty setting = iota
	// calm networks delay messages, and that is all.
	calm
	// edge is a calm one in which regions are cut off for longer than a long lease, with
	// clocks that are as slow as may be, and the leader's as fast: what is left to a
	// region then of its lease is a matter of the margin for drift.
	edge
)

// edgeLease is so long that drift is some ticks of it.
const edgeLease = 2 * time.Minute

// length is the virtual time of one schedule.
func (s setting) length() time.Duration {
	if s == edge {
		return 5 * edgeLease
	}
	return length
}

// world is a coordinator, its ledger, regions and a network in virtual time.
// Everything in it follows from the seed.
type world struct {
	options
	rng *rand.Rand
	now int64 // true time, microseconds
	// names are the configured regions; regions are all that ever were.
	names   []quota.Region
	regions []*region
	// config counts the changes of names, revision those of policies.
	config, revision int64
	accounts         []*account
	flight           []message
	ledger           *memory.Ledger
	lossy            bool
	leader           *leader // nil while there is none
	zombies          []*leader
	electAt          int64
	recovering       bool // of the last leader
	ledgersLost      int
	generations      int
	loss, duplicates float64
	fastClocks       bool
	keys             int   // of each policy
	leases           bool  // some policies need one
	cutAll           int64 // until
	longest          int64 // step, in ticks
	alone            int64 // until: a region is cut off, at the edge
	storm            int64 // until: everybody takes what there is
	commits, grants  int
	revocations      revocations
	found            findings
	trace            *trace // nil: nobody reads it
	err              error
}

func newWorld(seed uint64, o options) *world {
	w := &world{
		options: o, rng: rand.New(rand.NewPCG(seed, 12)), lossy: seed%3 == 2 && o.setting == faulty,
	}
	w.longest, w.leases = 9, !o.hold && (o.strict || w.chance(2))
	if o.setting == edge {
		w.ttl, w.longest = edgeLease, 25
	}
	if w.ttl == 0 {
		w.ttl = 2500*time.Millisecond + time.Duration(w.rng.IntN(4000))*time.Millisecond
	}
	w.fastClocks, w.keys = w.chance(4), 1+w.rng.IntN(2)
	if o.setting == faulty {
		w.loss, w.duplicates = w.rng.Float64()*0.2, w.rng.Float64()*0.1
	}
	w.ledger, w.revocations = memory.NewComplete(), revocations{}
	if w.lossy {
		w.ledger = memory.NewAfter(1_000_000)
	}
	for i := range 3 + w.rng.IntN(4) {
		w.addAccount(i)
	}
	for range 2 + w.rng.IntN(3) {
		w.addRegion()
	}
	w.elect()
	return w
}

func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

// between returns a whole number of ticks between two times.
func (w *world) between(from, to time.Duration) int64 {
	d := from.Microseconds() + w.rng.Int64N((to-from).Microseconds()+1)
	return max(tick, d/tick*tick)
}

// newClock is off by chance, or by as much as is said at the edge.
func (w *world) newClock(extreme int64) clock {
	c := clock{offset: 1_700_000_000_000_000 + w.rng.Int64N(1_000_000_000), off: w.rng.Int64N(2*rho+1) - rho}
	if w.fastClocks {
		c.off = rho
	}
	if w.setting == edge {
		c.off = extreme
	}
	return c
}

func (w *world) addAccount(i int) {
	a := &account{id: quota.ID{Policy: fmt.Sprint("quota", i)}, index: i, algorithm: quota.TokenBucket}
	if w.only == quota.SlidingLog || (w.only == 0 && w.chance(2)) {
		a.algorithm = quota.SlidingLog
	}
	a.exact = w.chance(3)
	a.strict = w.leases && (w.strict || w.chance(2))
	a.keys = make([]key, w.keys)
	w.accounts = append(w.accounts, a)
	w.setPolicy(a)
}

func (w *world) addRegion() {
	r := &region{name: quota.Region(fmt.Sprint("r", len(w.regions))), clock: w.newClock(-rho), joined: w.now > 0}
	r.had, r.gifted = make([]bool, len(w.accounts)), make([]int64, 2*len(w.accounts))
	r.view = make([]*quota.Policy, len(w.accounts))
	r.appetite = make([]appetite, len(w.accounts))
	for range 1 + w.rng.IntN(w.keys) {
		r.stripes = append(r.stripes, w.newStripe())
	}
	w.regions = append(w.regions, r)
	w.names = append(w.names, r.name)
	w.config++
}

func (w *world) region(name quota.Region) *region {
	return w.regions[slices.IndexFunc(w.regions, func(r *region) bool { return r.name == name })]
}

// setPolicy adds a policy, or changes its limit.
func (w *world) setPolicy(a *account) {
	p := &quota.Policy{ID: a.id.Policy, Algorithm: a.algorithm}
	if old := a.last; old != nil {
		*p = *old
	}
	if a.strict {
		p.Split.OnPartition = quota.Strict
	}
	l := &p.Limit
	if a.last == nil || w.chance(6) {
		l.Capacity = quota.Tokens(1+w.rng.IntN(150)) * quota.Token
		if w.chance(3) {
			l.Capacity = quota.Tokens(1+w.rng.IntN(9)) * quota.Token
		}
		l.Refill = 1 + quota.Tokens(math.Exp(w.rng.Float64()*math.Log(400_000)))
	} else {
		part := 0.5 + w.rng.Float64()
		l.Capacity = max(quota.Token, quota.Tokens(float64(l.Capacity)*part)/quota.Token*quota.Token)
		l.Refill = max(1, quota.Tokens(float64(l.Refill)*part))
	}
	switch {
	case a.algorithm == quota.SlidingLog:
		l.Refill = 0
		if a.last == nil {
			l.Period = time.Duration(2+w.rng.IntN(11)) * time.Second
			if w.chance(5) { // so long that the drift of a clock is more than a tick
				l.Period = time.Minute
			}
		}
	case a.last == nil || w.chance(4):
		l.Period = time.Duration(1+w.rng.IntN(3)) * time.Second
	}
	w.replacePolicy(a, p)
}

// setFloor changes nothing of a policy but its floors.
func (w *world) setFloor(a *account) {
	p := *a.policy
	percent := float64(w.rng.IntN(60))
	p.Split.FloorPercent = &percent
	if w.leases && w.chance(3) {
		a.strict = !a.strict
		p.Split.OnPartition = quota.Hold
		if a.strict {
			p.Split.OnPartition = quota.Strict
		}
	}
	w.replacePolicy(a, &p)
}

func (w *world) replacePolicy(a *account, p *quota.Policy) {
	a.changed(w.now, p)
	w.revision++
}

func (w *world) removePolicy(a *account) {
	a.policy, a.effective = nil, false
	w.revision++
}

// policies are those of the present revision.
func (w *world) policies() (list []*quota.Policy) {
	for _, a := range w.accounts {
		if a.policy != nil {
			list = append(list, a.policy)
		}
	}
	return list
}

// step passes some time and lets something happen.
func (w *world) step() {
	longest := w.longest
	if w.atTheEdge() {
		longest = 1
	}
	w.now += tick * (1 + w.rng.Int64N(longest))
	w.deliver()
	w.lead()
	w.noteLedgers()
	w.observe()
	w.live()
	for _, r := range w.regions {
		w.agent(r)
	}
	switch w.setting {
	case faulty:
		w.disturb()
	case edge:
		w.isolate()
	}
}

// observe notes which limits are in force, as the leader says.
func (w *world) observe() {
	for _, a := range w.accounts {
		a.effective = false
	}
	l := w.leader
	if l == nil {
		return
	}
	w.recovering = l.brain.Recovering()
	if l.revision != w.revision || l.config != w.config || w.recovering {
		return
	}
	for _, q := range l.brain.Status(l.clock.time(w.now)).Quotas {
		for _, a := range w.accounts {
			if a.id == q.ID && a.policy != nil && q.Effective && !q.Removed {
				a.effective = true
				a.inForce(w.now)
			}
		}
	}
}

func (w *world) fail(err error) {
	if w.err == nil && err != nil {
		w.err = fmt.Errorf("%v into it: %w", time.Duration(w.now)*time.Microsecond, err)
	}
}

// leader is a process that leads, or thinks it does.
type leader struct {
	brain            brain
	ledger           *memory.Ledger
	epoch            quota.Epoch
	clock            clock
	revision, config int64
	// until is when a zombie ends, fenced whether it knows.
	until  int64
	fenced bool
	// orphan zombies have a ledger of their own, which others take for lost.
	orphan bool
}

// brain is what decides about shares: a coordinator.Machine, or a mutant.
type brain interface {
	Report(now time.Time, rep quota.Report) error
	Instructions(rep quota.Report) quota.Instructions
	SetPolicies(now time.Time, revision int64, policies []*quota.Policy) error
	Tick(now time.Time) (coordinator.Rebalance, bool)
	Begin(now time.Time, epoch quota.Epoch)
	Pending() coordinator.Batch
	Committed(b coordinator.Batch)
	Failed(b coordinator.Batch)
	Recovering() bool
	Status(now time.Time) coordinator.Status
}

// elect starts a leader on the present ledger.
func (w *world) elect() {
	above := quota.Epoch(0)
	if w.mutant.volatileLedger {
		for _, r := range w.regions {
			above = max(above, r.epoch())
		}
		w.ledger = memory.NewComplete()
	}
	s, err := w.ledger.Load(context.Background(), above)
	w.fail(err)
	l := &leader{ledger: w.ledger, epoch: s.Epoch, clock: w.newClock(rho), config: w.config}
	l.brain = w.mutant.brain(w, l, s)
	w.leader = l
	w.publish(l)
	w.recovering = l.brain.Recovering()
}
