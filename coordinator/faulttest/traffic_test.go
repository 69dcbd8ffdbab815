package faulttest

import (
	"fmt"
	"time"

	"github.com/weirhq/weir/quota"
)

// What the callers of a region do with one quota.
const (
	takesNothing = iota
	takesOne
	takesSome
	takesAll
)

// at is the place of a key in lists of all keys.
func (a *account) at(key int) int { return 2*a.index + key }

// live lets every region decide, and checks what is in use and what was admitted.
func (w *world) live() {
	if w.chance(400) {
		w.storm = w.now + w.between(2*time.Second, 20*time.Second)
	}
	all := w.bounds()
	for _, a := range w.accounts {
		a.settle(w.now)
		for i := range a.keys {
			a.keys[i].expire(w.now, a.window)
		}
		var levels [2]float64
		var capacity, rate float64
		for _, n := range w.rng.Perm(len(w.regions)) {
			r := w.regions[n]
			w.crave(r, a)
			var most use
			for i := range a.keys {
				u := w.use(r, a, i)
				levels[i] += u.level
				most.capacity, most.rate = max(most.capacity, u.capacity), max(most.rate, u.rate)
			}
			if bound, known := all[line{r.name, a.id}]; known {
				if over := most.capacity - float64(bound.Capacity); over > 1e-3 {
					w.foundInvariant(a, over, "a share in use that is taken for over")
				}
			}
			capacity, rate = capacity+most.capacity, rate+most.rate
		}
		if over := capacity - a.capacity; over > 1e-3 {
			w.foundInvariant(a, over, "shares in use")
		}
		if over := rate - a.rate*(1+1e-9); over > 1e-12 {
			w.foundInvariant(a, over/a.rate*a.capacity, "refill in use")
		}
		if a.algorithm == quota.TokenBucket {
			for i := range a.keys {
				w.checkLevels(a, i, levels[i])
			}
		}
	}
}

// bounds are what the leader takes for the most that each region may be using (U). It is
// looked at where that is what the setting is about.
func (w *world) bounds() map[line]quota.Share {
	if !w.atTheEdge() || w.leader == nil {
		return nil
	}
	out := map[line]quota.Share{}
	for _, q := range w.leader.brain.Status(w.leader.clock.time(w.now)).Quotas {
		for _, s := range q.Regions {
			if s.Version > 0 {
				out[line{s.Region, q.ID}] = s.Bound
			}
		}
	}
	return out
}

// crave changes what the callers of a region want.
func (w *world) crave(r *region, a *account) {
	c := &r.appetite[a.index]
	if w.now >= c.takesAt {
		c.takes = []int{takesNothing, takesOne, takesSome, takesAll, takesAll}[w.rng.IntN(5)]
		c.takesAt = w.now + w.between(500*time.Millisecond, 8*time.Second)
	}
}

// use is what a region acts on: its share, or what is still inside the window of a log
// if that is more, the rate of its refill, and the level that is left of a key.
type use struct{ capacity, rate, level float64 }

// use lets the callers of a region have what they want of a key.
func (w *world) use(r *region, a *account, i int) (u use) {
	s := r.stripe(i)
	known, mine := &s.entries[a.at(i)], &s.admitted[a.at(i)]
	if a.algorithm == quota.SlidingLog {
		u.capacity = inside(mine, w.now, a.window)
		_ = inside(known, w.now, a.window)
	}
	if !s.ready {
		return u
	}
	now := w.local(r)
	q, held := s.model.Report(now, shareKey(a))
	usable := w.usable(r, a, q, held)
	if !held && !usable {
		return u
	}
	level := w.acquire(r, a, i, 0, true).Level
	if !held { // the first use of a floor leaves a record of it
		w.minted(r, s, a, false, 0)
		q, _ = s.model.Report(now, shareKey(a))
	}
	n := w.wanted(r, a, level)
	if usable && n > 0 && w.now >= r.nodesAway && !w.acquire(r, a, i, n, false).NeverFits {
		level -= n
		w.admit(a, i, n)
		if a.algorithm == quota.SlidingLog {
			*mine, *known = append(*mine, entry{w.now, now, n}), append(*known, entry{w.now, now, n})
			u.capacity += float64(n)
		}
	}
	u.level = float64(level)
	if end, err := s.model.LeaseEnd(0); err != nil {
		w.fail(err)
	} else if end < now {
		q.Share = q.Share.Min(q.Permanent)
	}
	if usable || q.Version > 0 {
		u.capacity = max(u.capacity, float64(q.Share.Capacity))
		u.rate = rateOf(quota.Limit{Refill: q.Share.Refill, Period: q.Period})
	}
	return u
}

// inside drops the entries that have left their window for good, and sums those inside.
func inside(entries *[]entry, now, window int64) (sum float64) {
	list := *entries
	for len(list) > 0 && now-list[0].at > window+window/500 {
		list = list[1:]
	}
	*entries = list
	for _, e := range list {
		if now-e.at < window {
			sum += float64(e.n)
		}
	}
	return sum
}

// wanted is how much of a level callers take now.
func (w *world) wanted(r *region, a *account, level quota.Tokens) quota.Tokens {
	takes := r.appetite[a.index].takes
	if w.now < w.storm {
		takes = takesAll
	}
	whole := quota.Tokens(level.Whole()) * quota.Token
	if w.setting == edge && r.cutTo == w.alone && w.now < w.alone {
		// A log whose entries are all of the last moments shows best when they end.
		if whole == 0 || w.now < w.alone-edgeSpan.Microseconds()-1_200_000 || !w.chance(3) {
			return 0
		}
		return quota.Token
	}
	switch {
	case takes == takesNothing || level <= 0:
		return 0
	case takes == takesAll && a.algorithm == quota.TokenBucket:
		return level // to the last part of a token
	case takes == takesAll:
		return whole
	case whole == 0 || !w.chance(3):
		return 0
	case takes == takesOne:
		return quota.Token
	}
	return quota.Tokens(1+w.rng.Int64N(whole.Whole())) * quota.Token
}

// acquire asks a stripe, which admits what it said there is.
func (w *world) acquire(r *region, a *account, i int, n quota.Tokens, peek bool) quota.Verdict {
	p := a.last
	if v := r.view[a.index]; v != nil {
		p = v
	}
	e := quota.Entry{
		Bucket: w.bucketKey(a, i), ShareKey: shareKey(a), Algorithm: a.algorithm, Limit: p.Limit, Base: p.Limit,
	}
	s := r.stripe(i)
	if _, held := s.model.Report(0, e.ShareKey); !held {
		e.Floor = w.mutant.floor(r, a)
	}
	now := w.local(r)
	out, err := s.model.Acquire(now, quota.Attempt{Cost: n, Entries: []quota.Entry{e}, Peek: peek})
	if err != nil {
		w.fail(err)
		return quota.Verdict{}
	}
	if !peek && !out.Allowed && !out.Verdicts[0].NeverFits { // a share may be above a new limit
		w.fail(fmt.Errorf("%s denies %s of %s that it said were there", r.name, n, a.id.Policy))
	}
	return out.Verdicts[0]
}

func (w *world) bucketKey(a *account, i int) string { return bucketKeys[a.at(i)] }

var bucketKeys = []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"}

// usable reports whether a region may decide by the share record of an account, or by
// its floor where there is none.
//
// The one known exception, which docs/guarantees.md states, is left out of the
// schedules: a region without a record of a policy (not yet told, data lost, or the
// policy was removed and is back) may use a new floor that others have not given up
// while a change of limits or floors is under way.
func (w *world) usable(r *region, a *account, q quota.QuotaReport, held bool) bool {
	p := r.view[a.index]
	if p == nil {
		return false
	}
	if held && q.Version > 0 {
		return true
	}
	again := r.lost || r.joined || r.left || r.had[a.index]
	if held && !again {
		return true
	}
	// A floor begins full, also that of a limit which was raised meanwhile.
	current := p == a.policy && r.config == w.config && a.effective && (held || again || p == a.first)
	if r.left || !current {
		return false
	}
	return !held || q.Share.Within(r.floor(a))
}

// minted notes the tokens that a stripe got without refill: what a new record begins
// with, or a gift, of which there is one in the life of a quota.
func (w *world) minted(r *region, s *stripe, a *account, had bool, gift quota.Tokens) {
	if a.algorithm != quota.TokenBucket {
		return
	}
	for i := range a.keys {
		if r.stripe(i) != s {
			continue
		}
		minted := float64(gift)
		if !had {
			if _, held := s.model.Report(0, shareKey(a)); !held {
				continue
			}
			minted = float64(w.acquire(r, a, i, 0, true).Level)
			if r.joined && gift == 0 { // and has been there before, with this dataset
				a.keys[i].level = min(a.capacity, a.keys[i].level+minted)
			}
		}
		if gift > 0 {
			if r.gifted[a.at(i)] == a.born {
				minted -= float64(gift)
			}
			r.gifted[a.at(i)] = a.born
		}
		a.keys[i].spare += max(0, minted)
	}
}
