package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
)

// mutant is one way to break the protocol. The suite must notice each.
type mutant struct {
	name string
	// growBeforeShrink hands out targets as soon as they are computed.
	growBeforeShrink bool
	// noVersionCheck: regions apply whatever arrives last.
	noVersionCheck bool
	// noEpochCheck: regions go on listening to earlier leaders.
	noEpochCheck bool
	// volatileIsEmpty takes a lost ledger for a new one.
	volatileIsEmpty bool
	// noDrain: regions report a log as drained when its share has shrunk.
	noDrain bool
	// ackOnReceipt: regions acknowledge grants that they apply later.
	ackOnReceipt bool
	// lossRestoresShare: a region that lost its data goes on with the whole limit's even part.
	lossRestoresShare bool
	// sendBeforePersist: a commit's result is not waited for, and the ledger keeps nothing of some.
	sendBeforePersist bool
}

// world is a coordinator, its ledger, K regions and a network, in virtual time.
// Everything in it follows from the seed.
type world struct {
	rng     *rand.Rand
	mutant  mutant
	faults  bool
	now     time.Time
	names   []quota.Region
	regions map[quota.Region]*simRegion
	flight  []message

	ledger   *memory.Ledger
	rows     map[coordinator.RowKey]coordinator.Row // as committed
	epoch    quota.Epoch
	machine  *coordinator.Machine
	policies map[string]*quota.Policy
	revision int64
	// envelope is what may be in use of a policy: the limit, or a larger earlier
	// one until the lower one is effective.
	envelope map[string]envelope
	// added is when a policy came (back): logs may hold entries of its former self.
	added map[string]time.Time
	// overtaken is true when a limit changed while a commit had failed.
	failed, overtaken bool
	commits, grants   int
	nextGen           int
	lost              int // ledgers
	err               error
}

type envelope struct{ capacity, rate float64 }

// message is under way until at. Either report or answer is set.
type message struct {
	at     time.Time
	report *quota.Report
	answer *quota.Instructions
	to     quota.Region
}

func newWorld(seed uint64, regions int, lossy bool, mu mutant) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 7)), mutant: mu, faults: true, now: time.Unix(1_700_000_000, 0),
		regions: map[quota.Region]*simRegion{}, rows: map[coordinator.RowKey]coordinator.Row{},
		policies: map[string]*quota.Policy{}, envelope: map[string]envelope{}, added: map[string]time.Time{},
	}
	for i := range regions {
		name := quota.Region(fmt.Sprint("r", i))
		w.names = append(w.names, name)
		w.regions[name] = &simRegion{
			name: name, records: map[quota.ID]*simRecord{}, view: map[string]*quota.Policy{},
			acked: map[quota.ID]quota.Grant{}, had: map[quota.ID]bool{}, entries: map[string][]entry{}, exact: w.rng.IntN(2) == 0,
			demand: w.rng.Float64() * 200,
		}
		w.newGen(w.regions[name])
	}
	w.ledger = memory.NewComplete()
	if lossy {
		w.ledger = memory.NewAfter(1_000_000)
	}
	w.start()
	w.setPolicy("bucket", quota.TokenBucket)
	w.setPolicy("log", quota.SlidingLog)
	w.publish()
	return w
}

func (w *world) newGen(r *simRegion) {
	w.nextGen++
	r.gen, r.epoch, r.wantFull = fmt.Sprint("gen", w.nextGen), 0, true
}

// start begins an epoch on the present ledger.
func (w *world) start() {
	s, err := w.ledger.Load(context.Background(), 0)
	if err != nil {
		w.err = err
		return
	}
	if w.mutant.volatileIsEmpty && s.Lossy {
		s.Lossy = false
		for _, r := range w.regions {
			s.Epoch = max(s.Epoch, r.epoch+1)
		}
		if s, err = w.ledger.Load(context.Background(), s.Epoch); err != nil {
			w.err = err
		}
		s.Lossy = false
	}
	w.epoch = s.Epoch
	w.machine = coordinator.NewMachine(w.now, time.Second, w.names, s)
	w.publish()
}

func (w *world) publish() {
	var list []*quota.Policy
	for _, id := range []string{"bucket", "log"} {
		if p := w.policies[id]; p != nil {
			list = append(list, p)
		}
	}
	if err := w.machine.SetPolicies(w.now, w.revision, list); err != nil {
		w.err = err
	}
	w.commit()
}

// setPolicy adds a policy or changes its limit.
func (w *world) setPolicy(id string, a quota.Algorithm) {
	w.overtaken = w.overtaken || w.failed
	p := &quota.Policy{ID: id, Algorithm: a}
	if w.policies[id] == nil {
		w.added[id] = w.now
	}
	p.Limit.Capacity = quota.Tokens(1+w.rng.IntN(150)) * quota.Token
	if w.rng.IntN(4) == 0 {
		p.Limit.Capacity = quota.Tokens(1+w.rng.IntN(9)) * quota.Token
	}
	p.Limit.Period = 4 * time.Second
	if a == quota.TokenBucket {
		p.Limit.Refill = quota.Tokens(1 + w.rng.IntN(400_000))
		p.Limit.Period = time.Duration(1+w.rng.IntN(3)) * time.Second
	}
	w.policies[id] = p
	w.revision++
	e := w.envelope[id]
	e.capacity = max(e.capacity, float64(p.Limit.Capacity))
	e.rate = max(e.rate, float64(p.Limit.Refill)/p.Limit.Period.Seconds())
	w.envelope[id] = e
}

// commit writes what is pending; at times the ledger fails, with or without effect.
func (w *world) commit() {
	b := w.machine.Pending()
	if b.Empty() {
		return
	}
	if w.mutant.sendBeforePersist && w.rng.IntN(3) == 0 {
		w.machine.Committed(b)
		return
	}
	w.commits++
	fails := w.faults && w.rng.IntN(20) == 0
	if fails && w.rng.IntN(2) == 0 {
		w.machine.Failed(b)
		w.failed = true
		return
	}
	if err := w.ledger.Commit(context.Background(), w.epoch, b); err != nil {
		w.err = err
		return
	}
	if !w.mutant.sendBeforePersist {
		w.checkCommit(b)
	}
	if fails {
		w.machine.Failed(b)
		w.failed = true
		return
	}
	w.machine.Committed(b)
	w.failed, w.overtaken = false, false
}

// step passes some time and lets something happen.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(20+w.rng.IntN(180)) * time.Millisecond)
	w.deliver()
	for _, name := range w.names {
		w.live(w.regions[name])
	}
	w.machine.Tick(w.now)
	w.commit()
	if w.faults {
		w.disturb()
	}
	w.check()
}

func (w *world) disturb() {
	r := w.regions[w.names[w.rng.IntN(len(w.names))]]
	switch w.rng.IntN(200) {
	case 0:
		if !w.machine.Recovering() {
			w.loseData(r)
		}
	case 1, 2:
		w.setPolicy("bucket", quota.TokenBucket)
		w.publish()
	case 3, 4:
		w.setPolicy("log", quota.SlidingLog)
		w.publish()
	case 5:
		id := []string{"bucket", "log"}[w.rng.IntN(2)]
		if w.policies[id] != nil {
			delete(w.policies, id)
			w.revision++
			w.publish()
		}
	case 6:
		w.start() // the coordinator restarts, its ledger is kept
	case 7, 14, 15:
		if w.allNew() {
			return // ledger and all data lost at once cannot be told from a first start
		}
		w.lost++
		w.ledger = memory.NewAfter(w.epoch)
		if w.rng.IntN(2) == 0 {
			w.ledger = memory.NewAfter(quota.Epoch(1_000_000 - 1000*w.lost)) // behind the regions
		}
		w.rows = map[coordinator.RowKey]coordinator.Row{}
		w.start() // and here it is lost
	case 8, 9, 10, 11, 12, 13:
		r.demand = w.rng.Float64() * []float64{1, 20, 300}[w.rng.IntN(3)]
	}
}

// allNew reports whether no region has a dataset that ever followed a leader.
func (w *world) allNew() bool {
	for _, r := range w.regions {
		if r.epoch > 0 {
			return false
		}
	}
	return true
}

func (w *world) loseData(r *simRegion) {
	for _, p := range r.view {
		if w.mutant.lossRestoresShare {
			even := quota.Share{Capacity: p.Limit.Capacity / quota.Tokens(len(w.names)), Refill: p.Limit.Refill / quota.Tokens(len(w.names))}
			r.records[quota.ID{Policy: p.ID}] = &simRecord{share: even, period: p.Limit.Period, log: p.Algorithm == quota.SlidingLog}
			continue
		}
		delete(r.records, quota.ID{Policy: p.ID})
	}
	if !w.mutant.lossRestoresShare {
		clear(r.records)
	}
	clear(r.acked)
	r.late = nil
	r.lostAt = w.now
	w.newGen(r)
}

// send gives a message to the network, which may lose, repeat and delay it.
func (w *world) send(m message) {
	copies := 1
	if w.faults {
		switch w.rng.IntN(20) {
		case 0, 1, 2:
			copies = 0
		case 3, 4:
			copies = 2
		}
	}
	for range copies {
		delay := time.Duration(10+w.rng.IntN(200)) * time.Millisecond
		if w.faults && w.rng.IntN(25) == 0 {
			delay += time.Duration(w.rng.IntN(12_000)) * time.Millisecond
		}
		m.at = w.now.Add(delay)
		w.flight = append(w.flight, m)
	}
}

func (w *world) deliver() {
	var due []message
	w.flight = slices.DeleteFunc(w.flight, func(m message) bool {
		if m.at.After(w.now) {
			return false
		}
		due = append(due, m)
		return true
	})
	for _, m := range due {
		if m.answer != nil {
			r := w.regions[m.to]
			r.apply(w, *m.answer, w.mutant.ackOnReceipt)
			continue
		}
		w.handle(*m.report)
	}
}

func (w *world) handle(rep quota.Report) {
	err := w.machine.Report(w.now, rep)
	if errors.Is(err, quota.ErrFenced) && w.machine.Recovering() {
		s, lerr := w.ledger.Load(context.Background(), rep.Epoch+quota.Epoch(w.rng.Int64N(1<<40)))
		if lerr != nil {
			w.err = lerr
		}
		w.epoch = s.Epoch
		w.machine.Begin(w.now, s.Epoch)
		err = w.machine.Report(w.now, rep)
	}
	if err != nil {
		if !errors.Is(err, quota.ErrFenced) {
			w.err = err
		}
		return
	}
	w.commit()
	answer := w.machine.Instructions(rep)
	w.grants += len(answer.Grants)
	if w.mutant.growBeforeShrink {
		for i := range answer.Grants {
			answer.Grants[i].Share = w.target(rep.Region, answer.Grants[i])
		}
	}
	w.send(message{answer: &answer, to: rep.Region})
}

func (w *world) target(name quota.Region, g quota.Grant) quota.Share {
	for _, q := range w.machine.Status(w.now).Quotas {
		for _, s := range q.Regions {
			if q.ID == g.ID && s.Region == name {
				return s.Share
			}
		}
	}
	return g.Share
}
