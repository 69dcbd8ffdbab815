package faulttest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// region is a store of one or two stripes, and what its nodes know.
type region struct {
	name    quota.Region
	clock   clock
	stripes []*stripe
	// gen is empty while there is no dataset, newborn the id of one to be made.
	gen, newborn string
	askedAt      int64

	// What its nodes know of the configuration and of the policies, by account.
	names            []quota.Region
	view             []*quota.Policy
	config, revision int64

	next                 int64
	wantFull             bool
	cutTo, cutFrom       int64 // until
	agentAway, nodesAway int64 // until
	appetite             []appetite
	// lost is true once any data was lost, joined in regions that came later, left
	// in those that are not in the configuration; had tells of which quotas a
	// granted record was there once.
	lost, joined, left bool
	had                []bool
	// gifted is when the quota began with which a key was given its first tokens.
	gifted []int64
	late   []quota.Instructions // acknowledged and not yet followed, by a mutant
}

// stripe is a part of a region's store.
type stripe struct {
	model *quota.Model
	ready bool // it has a region record
	epoch quota.Epoch
	// entries are what it admitted of the logs since it was empty, by account and
	// key; admitted is what it ever did.
	entries, admitted [][]entry
	// doubt is until when a log of an account may hold entries that it forgot.
	doubt []int64
	// applied and versions are of the mutant that checks no version.
	applied  int64
	versions []int64
}

// entry is something admitted: when in true time, when on the region's clock.
type entry struct {
	at, local int64
	n         quota.Tokens
}

// appetite is what a region's callers want of one quota.
type appetite struct {
	demand   float64 // as reported, in tokens per second
	takes    int
	demandAt int64 // when it changes
	takesAt  int64
}

func (w *world) newStripe() *stripe {
	n := len(w.accounts)
	return &stripe{model: quota.NewModel(), entries: make([][]entry, 2*n), admitted: make([][]entry, 2*n), doubt: make([]int64, n), versions: make([]int64, n)}
}

// stripe is where a key of an account lives.
func (r *region) stripe(key int) *stripe { return r.stripes[key%len(r.stripes)] }

// epoch is the newest that every stripe has seen.
func (r *region) epoch() quota.Epoch {
	e := r.stripes[0].epoch
	for _, s := range r.stripes {
		e = min(e, s.epoch)
	}
	return e
}

// local is the clock of a region's store.
func (w *world) local(r *region) int64 {
	t := r.clock.micros(w.now)
	if w.mutant.notDerated {
		t += w.now / 2000 // as if the store counted with no drift at all
	}
	return t
}

// agent does what is due in a region: it learns of changes, looks after its dataset,
// and reports.
func (w *world) agent(r *region) {
	if w.chance(8) {
		w.learn(r)
	}
	if w.now < r.next || w.now < r.agentAway {
		return
	}
	if w.chance(5) {
		w.followLate(r)
	}
	r.next = w.now + w.between(900*time.Millisecond, 1100*time.Millisecond)
	if r.gen == "" {
		w.firstDataset(r)
		return
	}
	if slices.ContainsFunc(r.stripes, func(s *stripe) bool { return !s.ready }) {
		// What is left of a dataset goes on as another one.
		w.generations++
		r.newborn = fmt.Sprint("gen", w.generations)
		w.begin(r, false)
	}
	rep := w.report(r)
	w.send(message{report: &rep, region: r})
}

func (w *world) learn(r *region) {
	if r.revision == w.revision && r.config == w.config {
		return
	}
	r.revision, r.config = w.revision, w.config
	r.names = slices.Clone(w.names)
	for i, a := range w.accounts {
		r.view[i] = a.policy
	}
}

// firstDataset asks whether a region without data is new, or makes up its own mind.
func (w *world) firstDataset(r *region) {
	if r.newborn == "" {
		w.generations++
		r.newborn, r.askedAt = fmt.Sprint("gen", w.generations), w.now
	}
	if w.now-r.askedAt > 20*time.Second.Microseconds() && w.chance(2) {
		w.begin(r, false)
		return
	}
	rep := quota.Report{Region: r.name, Gen: r.newborn, SentAt: w.local(r), Revision: r.revision, Full: true}
	w.send(message{report: &rep, region: r})
}

// begin gives a region its dataset.
func (w *world) begin(r *region, fresh bool) {
	r.gen, r.newborn = r.newborn, ""
	for _, s := range r.stripes {
		w.initialise(r, s, fresh)
	}
	r.wantFull, r.next = true, w.now
}

func (w *world) initialise(r *region, s *stripe, fresh bool) {
	fresh = fresh || w.mutant.lossRestoresShare
	s.model.Initialise(w.local(r), 0, r.gen, fresh)
	if s.ready {
		return
	}
	s.ready, s.epoch = true, 0
	if !fresh {
		for i, a := range w.accounts {
			s.doubt[i] = w.now + 2*time.Second.Microseconds() + a.window + a.window/500
		}
	}
}

// shareKey names the share record of an account on a stripe.
func shareKey(a *account) string { return a.id.Policy }

// report builds a report. Lines that would say nothing new may be left out.
func (w *world) report(r *region) quota.Report {
	rep := quota.Report{
		Region: r.name, Gen: r.gen, Epoch: r.epoch(), SentAt: w.local(r), Revision: r.revision,
		Full: r.wantFull || w.chance(10),
	}
	if rep.Full {
		// Whether it arrives is not known: it is asked for again if it does not.
		r.wantFull = false
	}
	for i, a := range w.accounts {
		q, held := w.held(r, a)
		if !held && r.view[i] == nil && !r.had[i] {
			continue
		}
		q.Demand = w.demand(r, a)
		q.Total, q.Admitted, q.Urgent = q.Demand, q.Demand, w.chance(10)
		if rep.Full || !q.Drained || w.chance(2) {
			rep.Quotas = append(rep.Quotas, q)
		}
	}
	return rep
}

// held is what a region reports of its share records: where stripes differ, the
// lowest version and the largest share.
func (w *world) held(r *region, a *account) (q quota.QuotaReport, held bool) {
	now := w.local(r)
	missing, doubt := false, false
	for _, s := range r.stripes {
		doubt = doubt || w.now < s.doubt[a.index]
		one, ok := s.model.Report(now, shareKey(a))
		if !ok {
			missing = true
			continue
		}
		if w.mutant.ownVersions() && one.Version > 0 {
			one.Version = s.versions[a.index]
		}
		if !held || one.Version < q.Version {
			q.Version = one.Version
		}
		held = true
		longer := max(q.Period, one.Period)
		q.Share = q.Share.Per(q.Period, longer).Max(one.Share.Per(one.Period, longer))
		q.Permanent = q.Permanent.Per(q.Period, longer).Max(one.Permanent.Per(one.Period, longer))
		q.Period, q.Hold = longer, max(q.Hold, one.Hold)
	}
	q.ID, q.Permanent = a.id, q.Permanent.Min(q.Share)
	if missing {
		q.Version = 0
	}
	if a.exact && a.algorithm == quota.SlidingLog && held {
		q.Hold = max(q.Share.Capacity, r.inside(a, now))
		if doubt {
			q.Hold = 0
		}
		q.Drained = !doubt && q.Hold <= q.Share.Capacity
	} else {
		q.Drained = q.Hold <= q.Share.Capacity
	}
	w.mutant.onReport(r, &q)
	return q, held
}

// inside counts the entries of the fullest log of an account that are inside their
// window by the region's clock.
func (r *region) inside(a *account, now int64) (most quota.Tokens) {
	for i := range a.keys {
		n := quota.Tokens(0)
		for _, e := range r.stripe(i).entries[a.at(i)] {
			if now-e.local <= a.window+a.window/2000 {
				n += e.n
			}
		}
		most = max(most, n)
	}
	return most
}

// demand is what a region says it is offered, which jumps.
func (w *world) demand(r *region, a *account) float64 {
	d := &r.appetite[a.index]
	if w.now >= d.demandAt {
		d.demandAt = w.now + w.between(700*time.Millisecond, 3700*time.Millisecond)
		if a.policy != nil {
			d.demand = a.policy.Limit.PerSecond() * []float64{0, 0.02, w.rng.Float64(), 2}[w.rng.IntN(4)]
		}
	}
	return d.demand
}

// answered is the arrival of an answer.
func (w *world) answered(m message) {
	r, in := m.region, *m.answer
	if w.now < r.agentAway {
		m.at = r.agentAway
		w.flight = append(w.flight, m)
		return
	}
	if r.gen == "" {
		if in.Gen == r.newborn && !in.Undecided {
			w.begin(r, in.Fresh)
		}
		return
	}
	if in.Gen != r.gen || (in.Epoch < r.epoch() && !w.mutant.noEpochCheck) {
		return
	}
	if w.mutant.ackOnReceipt && len(in.Grants) > 0 {
		r.late = append(r.late, in)
		r.next = w.now + tick
		return
	}
	w.follow(r, in)
}

// follow does what an answer says.
func (w *world) follow(r *region, in quota.Instructions) {
	r.wantFull = r.wantFull || in.Full
	if in.NextReport > 0 {
		r.next = min(r.next, w.now+in.NextReport.Microseconds()/tick*tick)
	}
	if in.Lease.TTL > 0 && w.chance(2) { // agents extend a lease when a part of it is over
		w.renew(r, in)
	}
	if len(in.Grants) == 0 && in.Epoch == r.epoch() {
		return
	}
	if len(in.Grants) > 0 {
		r.next = w.now + tick
	}
	for i, s := range r.stripes {
		if i > 0 && w.setting == faulty && w.chance(20) {
			break // the store failed half way
		}
		if s.ready {
			w.apply(r, s, in)
		}
	}
}

// renew extends the lease of every stripe, from when the report was sent.
func (w *world) renew(r *region, in quota.Instructions) {
	var keys []string
	for _, a := range w.accounts {
		keys = append(keys, shareKey(a))
	}
	ext := quota.LeaseExtension{Epoch: in.Epoch, Gen: r.gen, Sent: in.Lease.SentAt, TTL: in.Lease.TTL}
	if w.mutant.leaseFromReceipt {
		ext.Sent = w.local(r)
	}
	for i, s := range r.stripes {
		if i > 0 && w.setting == faulty && w.chance(20) {
			break // the store failed half way
		}
		if s.ready {
			if _, err := s.model.Renew(w.local(r), 0, ext, keys); err != nil && !errors.Is(err, quota.ErrFenced) {
				w.fail(err)
			}
		}
	}
}

// apply applies grants to one stripe.
func (w *world) apply(r *region, s *stripe, in quota.Instructions) {
	grants := slices.Clone(in.Grants)
	grants = slices.DeleteFunc(grants, func(g quota.Grant) bool { return w.mutant.refuses(s, w.account(g.ID), g) })
	sent := slices.Clone(grants)
	keys := make([]string, len(grants))
	had := make([]bool, len(grants))
	now := w.local(r)
	accounts := make([]*account, len(grants))
	for i := range grants {
		accounts[i] = w.account(grants[i].ID)
		keys[i] = shareKey(accounts[i])
		_, had[i] = s.model.Report(now, keys[i])
		w.mutant.onGrant(s, &grants[i])
	}
	epoch := in.Epoch
	if w.mutant.ownVersions() {
		epoch = max(epoch, s.epoch)
	}
	versions, err := s.model.Apply(now, 0, epoch, r.gen, keys, grants)
	if errors.Is(err, quota.ErrFenced) {
		return
	}
	w.fail(err)
	s.epoch = max(s.epoch, in.Epoch)
	for i, g := range sent {
		if versions[i] != grants[i].Version {
			continue
		}
		s.versions[accounts[i].index] = g.Version
		w.note(g.ID, r.name, "applies epoch", in.Epoch, "version", g.Version, g.Share, "gift", g.Gift, "of", g.Limit, "drop", g.Drop)
		if !g.Drop {
			r.had[accounts[i].index] = true
		}
		w.minted(r, s, accounts[i], had[i], g.Gift)
	}
}

func (w *world) account(id quota.ID) *account {
	return w.accounts[slices.IndexFunc(w.accounts, func(a *account) bool { return a.id == id })]
}

// floor is what a region may use of an account before it is granted anything.
func (r *region) floor(a *account) quota.Share {
	p := r.view[a.index]
	if p == nil || r.left {
		return quota.Share{}
	}
	return coordinator.Floor(r.names, r.name, p)
}
