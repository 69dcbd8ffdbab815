package faulttest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// account is one quota: its policy, and what was admitted of its keys.
type account struct {
	id        quota.ID
	index     int
	algorithm quota.Algorithm
	// policy is nil while there is none; last is what it was then.
	policy, last *quota.Policy
	added        int64
	granted      bool          // since it was added
	first        *quota.Policy // the last before that
	born         int64         // counts how often it was added
	// effective is true when the leader says that the limit is in force.
	effective bool
	// strict: the policy is of that partition mode.
	strict bool
	// exact: regions report how many entries a log holds, as for one key.
	exact bool
	// What may be in use: the limit, or a larger earlier one until the lower one is
	// effective. The rate is in milli-tokens per microsecond of true time.
	capacity, rate float64
	// window is that of a log, in microseconds.
	window int64
	// keys are the buckets or logs under the policy, one a stripe.
	keys []key
}

// key is what all regions together admitted of one bucket or log, in true time.
type key struct {
	// level is that of a bucket of the whole envelope from which the same is taken.
	level float64
	at    int64
	// balance is what was admitted less what such a bucket without bound was
	// refilled by; spare the lowest sum of all levels and balance so far. A sum
	// above that is a refill beyond the rate.
	balance, spare float64
	// entries are those inside the window of a log, count their sum.
	entries []entry
	count   quota.Tokens
}

// changed puts another policy in the place of the last one.
func (a *account) changed(now int64, p *quota.Policy) {
	back := a.policy == nil
	a.settle(now)
	a.policy, a.last, a.effective = p, p, false
	a.window = max(a.window, p.Limit.Period.Microseconds())
	raised := max(0, float64(p.Limit.Capacity)-a.capacity)
	a.capacity += raised
	a.rate = max(a.rate, rateOf(p.Limit))
	if back {
		a.added = now
		a.born++
		for i := range a.keys {
			a.keys[i].level = a.capacity // a new policy, and full
		}
		a.granted = false
	}
	if !a.granted {
		a.first = p
	}
	if !a.granted { // what is given first is the whole of the limit
		for i := range a.keys {
			a.keys[i].level = min(a.capacity, a.keys[i].level+raised)
		}
	}
}

func rateOf(l quota.Limit) float64 { return float64(l.Refill) / float64(l.Period.Microseconds()) }

// inForce lowers the envelope to the limit.
func (a *account) inForce(now int64) {
	l := a.policy.Limit
	if now-a.added <= 2*l.Period.Microseconds() || (a.capacity == float64(l.Capacity) && a.rate == rateOf(l)) {
		return // logs may hold entries of a former self
	}
	a.settle(now)
	a.capacity, a.rate = float64(l.Capacity), rateOf(l)
	for i := range a.keys {
		a.keys[i].level = min(a.keys[i].level, a.capacity)
	}
}

// settle brings the reference of every key up to date.
func (a *account) settle(now int64) {
	for i := range a.keys {
		k := &a.keys[i]
		gain := float64(now-k.at) * a.rate
		k.level, k.balance, k.at = min(a.capacity, k.level+gain), k.balance-gain, now
	}
}

// admit takes what a region admitted of a key from the envelope.
func (w *world) admit(a *account, i int, n quota.Tokens) {
	k := &a.keys[i]
	if a.algorithm == quota.SlidingLog {
		k.entries = append(k.entries, entry{at: w.now, n: n})
		k.count += n
		if over := float64(k.count) - a.capacity; over > 0 {
			w.foundEnvelope(a, over, fmt.Sprintf("%s in one window", k.count))
		}
		return
	}
	k.level -= float64(n)
	k.balance += float64(n)
	if k.level < -1e-3 {
		w.foundEnvelope(a, -k.level, "admitted beyond capacity and refill")
	}
}

// expire drops the entries that have left their window.
func (k *key) expire(now, window int64) {
	n := 0
	for n < len(k.entries) && now-k.entries[n].at >= window {
		k.count -= k.entries[n].n
		n++
	}
	k.entries = k.entries[n:]
}

// findings are the violations of one kind of check: how bad the worst is, in percent
// of the capacity, and what the first was.
type findings struct{ envelope, invariant finding }

type finding struct {
	what  string
	id    quota.ID
	worst float64
}

func (f *finding) note(w *world, a *account, over float64, what string) {
	if f.what == "" {
		f.id = a.id
		f.what = fmt.Sprintf("%v into it: %s %s: %s; %.3f tokens too many", time.Duration(w.now)*time.Microsecond,
			a.algorithm, a.id.Policy, what, over/1000)
	}
	f.worst = max(f.worst, 100*over/a.capacity)
}

func (w *world) foundEnvelope(a *account, over float64, what string) {
	w.found.envelope.note(w, a, over, what)
}

func (w *world) foundInvariant(a *account, over float64, what string) {
	w.found.invariant.note(w, a, over, what)
}

// checkLevels looks at the sum of all levels of a key: with the tokens that are under
// way it is within the capacity, and it rises no faster than the rate.
func (w *world) checkLevels(a *account, i int, levels float64) {
	k := &a.keys[i]
	sum := levels + k.balance
	// Every region's level may be a part of a milli-token off.
	slack := 2*float64(len(w.regions)) + 1e-9*math.Abs(k.balance)
	if over := sum - k.spare - slack; over > 0 {
		w.foundInvariant(a, over, "levels rise faster than the rate")
		k.spare = sum
	}
	k.spare = min(k.spare, sum)
	if over := levels + w.underWay(a, i) - a.capacity; over > 1e-3 {
		w.foundInvariant(a, over, "levels and tokens under way")
	}
}

// underWay sums the gifts to a key that may still arrive.
func (w *world) underWay(a *account, i int) (sum float64) {
	type gift struct {
		r       *region
		version int64
	}
	var seen []gift
	for _, m := range w.flight {
		if m.answer == nil || (m.answer.Gen != m.region.gen && m.answer.Gen != m.region.newborn) {
			continue
		}
		s := m.region.stripe(i)
		for _, g := range m.answer.Grants {
			if g.Gift == 0 || g.ID != a.id || m.answer.Epoch < s.epoch || slices.Contains(seen, gift{m.region, g.Version}) {
				continue
			}
			if q, held := s.model.Report(0, shareKey(a)); held && q.Version >= g.Version && s.epoch == m.answer.Epoch {
				continue
			}
			seen = append(seen, gift{m.region, g.Version})
			if end, err := s.model.LeaseEnd(0); err == nil && end < w.local(m.region) {
				sum += float64(min(g.Gift, g.Permanent.Capacity)) // all that is left of it without a lease
				continue
			}
			sum += float64(g.Gift)
		}
	}
	return sum
}
