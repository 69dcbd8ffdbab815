package faulttest

import (
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// disturb lets things go wrong, and change.
func (w *world) disturb() {
	r := w.regions[w.rng.IntN(len(w.regions))]
	a := w.accounts[w.rng.IntN(len(w.accounts))]
	switch x := w.rng.IntN(1000); {
	case x < 14:
		w.changePolicy(a, x)
	case x < 20:
		w.cutOff(r)
	case x == 20:
		w.cutAll = w.now + w.between(5*time.Second, 40*time.Second)
	case x < 23:
		w.crash()
	case x < 25:
		w.restart()
	case x < 28:
		r.agentAway = w.now + w.between(500*time.Millisecond, 15*time.Second)
	case x < 30:
		r.nodesAway = w.now + w.between(500*time.Millisecond, 15*time.Second)
	case x < 34:
		w.loseData(r, x)
	case x < 36 && w.lossy:
		w.loseLedger()
	case x < 36:
		w.reconfigure()
	}
}

// edgeSpan is how long a region that is cut off stays so when its lease is over: until
// most windows have passed.
const edgeSpan = 15 * time.Second

// isolate cuts one region off until its lease is over and taken back.
func (w *world) isolate() {
	if r := w.regions[w.rng.IntN(len(w.regions))]; w.now > w.alone && w.chance(20) {
		w.alone = w.now + (edgeLease + edgeSpan).Microseconds()
		r.cutTo, r.cutFrom = w.alone, w.alone
	}
}

// atTheEdge reports whether a region's lease ends about now.
func (w *world) atTheEdge() bool {
	return w.setting == edge && w.now < w.alone && w.now > w.alone-(edgeSpan+2*time.Second).Microseconds()
}

func (w *world) changePolicy(a *account, x int) {
	switch {
	case a.policy == nil:
		w.replacePolicy(a, a.last)
	case x == 0:
		w.removePolicy(a)
	case x == 1:
		w.setFloor(a)
	default:
		w.setPolicy(a)
	}
	w.note(a.id, "policy", a.last.Limit, "removed", a.policy == nil)
	if w.leader != nil && w.chance(2) {
		w.publish(w.leader)
	}
}

// cutOff cuts a region off the coordinator, in one direction or both.
func (w *world) cutOff(r *region) {
	until := w.now + w.between(200*time.Millisecond, 20*time.Second)
	which := w.rng.IntN(3)
	if which != 0 {
		r.cutTo = until
	}
	if which != 1 {
		r.cutFrom = until
	}
}

// loseData empties the store of a region, or one stripe of it.
func (w *world) loseData(r *region, x int) {
	// What is lost while a ledger that has lost its rows is being made up again is a
	// second fault of the same kind; and so is a dataset that would follow a leader
	// whose ledger is lost to all others.
	if w.recovering || w.leader == nil || slices.ContainsFunc(w.zombies, func(l *leader) bool { return l.orphan }) {
		return
	}
	w.note(quota.ID{}, r.name, "loses data")
	r.lost = true
	if x%2 == 1 && len(r.stripes) > 1 {
		i := w.rng.IntN(2)
		r.stripes[i] = w.emptied(r.stripes[i])
		return
	}
	for i, s := range r.stripes {
		r.stripes[i] = w.emptied(s)
	}
	r.gen, r.newborn, r.wantFull = "", "", true
}

// emptied is a stripe after it has lost its data. What it admitted stays inside its
// windows, whether it knows of it or not.
func (w *world) emptied(old *stripe) *stripe {
	s := w.newStripe()
	s.admitted = old.admitted
	return s
}

// reconfigure lets the coordinator start again with another list of regions.
func (w *world) reconfigure() {
	switch x := w.rng.IntN(3); {
	case x == 0 && len(w.names) > 2:
		r := w.region(w.names[w.rng.IntN(len(w.names))])
		w.names = slices.DeleteFunc(slices.Clone(w.names), func(n quota.Region) bool { return n == r.name })
		r.left = true
		w.config++
	case x == 1 && len(w.regions) > len(w.names) && len(w.names) < 5:
		i := slices.IndexFunc(w.regions, func(r *region) bool { return r.left })
		r := w.regions[i]
		r.left, r.joined = false, true
		w.names = append(slices.Clone(w.names), r.name)
		w.config++
	case len(w.regions) < 6 && len(w.names) < 5:
		w.addRegion()
	default:
		return
	}
	w.note(quota.ID{}, "regions are now", w.names)
	for _, a := range w.accounts {
		a.effective = false
	}
	w.restart()
}
