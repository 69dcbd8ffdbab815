package regional

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weirhq/weir/quota"
)

const (
	// theta is the part of its share that a key may have spent before it is flagged: one
	// that stays below is never wrongly denied under the default split.
	theta = 0.5
	// ownKeys bounds the keys of one policy that a node keeps apart because they have a
	// split of their own, and those that want one. Each takes about 300 bytes.
	ownKeys = 4096
	// flushOwnKeys is how many of each a flush tells the region, the busiest first. The
	// others wait for the next.
	flushOwnKeys = 512
)

// offer is what a decided step says of its policy's demand.
func (s *step) offer(hash uint64, cost quota.Tokens, admitted bool) offer {
	o := offer{
		hash: hash, bucket: s.bucket, partition: s.partition, cost: cost, relative: cost, admitted: admitted,
		kind: quota.DemandShared,
	}
	if s.match.Limit != s.match.Policy.Limit {
		o.relative = relative(cost, s.match.Limit, s.match.Policy)
	}
	switch {
	case s.verdict.Tracked:
		o.kind = quota.DemandTracked
	case s.decision.Source == quota.SourceStore && s.wantsOwn():
		o.kind = quota.DemandFlagged
	}
	return o
}

// wantsOwn reports whether a key is flagged (D1): it was denied, or less is left of its
// share than theta allows. A log's level is its free slots.
func (s *step) wantsOwn() bool {
	if s.decision.Reason == quota.ReasonLimit {
		return true
	}
	return float64(s.verdict.Level) < (1-theta)*s.scaled(s.state.currentShare().Capacity)
}

// scaled returns what a capacity of the policy's is for this key, which may be overridden.
func (s *step) scaled(capacity quota.Tokens) float64 {
	share := float64(capacity)
	if base := s.match.Policy.Limit.Capacity; s.match.Limit.Capacity != base && base > 0 {
		share *= float64(s.match.Limit.Capacity) / float64(base)
	}
	return share
}

// relative is a cost to an overridden key as it would be under the policy's own limit: a
// key that may spend twice as fast counts half.
func relative(cost quota.Tokens, own quota.Limit, p *quota.Policy) quota.Tokens {
	r := rateOf(p.Limit, p.Algorithm)
	if of := rateOf(own, p.Algorithm); of > 0 && r > 0 {
		return max(1, quota.Tokens(min(float64(cost)*r/of, float64(quota.MaxTokens))))
	}
	return cost
}

// rateOf is how fast a limit can be spent, in milli-tokens per second.
func rateOf(l quota.Limit, a quota.Algorithm) float64 {
	amount := l.Refill
	if a == quota.SlidingLog {
		amount = l.Capacity
	}
	if l.Period <= 0 {
		return 0
	}
	return float64(amount) / l.Period.Seconds()
}

// keySketch finds the busiest of some keys in bounded memory (Space-Saving, weighted by
// cost), like sketch, but of many more and by a heap. The zero value is empty. It is not
// safe for concurrent use.
type keySketch struct {
	byKey map[string]*keyCounter
	heap  []*keyCounter // the least busy first
}

// keyCounter is one key. Its true load is between offered-inherited and offered.
type keyCounter struct {
	key       string
	partition uint64
	offered   quota.Tokens
	admitted  quota.Tokens
	inherited quota.Tokens
	at        int // in the heap
}

func (c *keyCounter) certain() quota.Tokens { return c.offered - c.inherited }

func (s *keySketch) add(o *offer) {
	c := s.byKey[o.bucket]
	if c == nil {
		c = s.place(o)
	}
	c.offered += o.relative
	if o.admitted {
		c.admitted += o.relative
	}
	s.sink(c.at)
}

// place makes room for a new key: a new counter, or that of the least busy key, whose
// count the newcomer inherits because it may have been in it before.
func (s *keySketch) place(o *offer) *keyCounter {
	if s.byKey == nil {
		s.byKey = map[string]*keyCounter{}
	}
	var c *keyCounter
	if len(s.heap) < ownKeys {
		c = &keyCounter{at: len(s.heap)}
		s.heap = append(s.heap, c)
	} else {
		c = s.heap[0]
		delete(s.byKey, c.key)
		c.inherited, c.admitted = c.offered, 0
	}
	// A part of a longer string, which must not be kept for it.
	c.key, c.partition = strings.Clone(o.bucket), o.partition
	s.byKey[c.key] = c
	s.rise(c.at)
	return c
}

func (s *keySketch) swap(i, j int) {
	h := s.heap
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (s *keySketch) rise(i int) {
	for i > 0 && s.heap[i].offered < s.heap[(i-1)/2].offered {
		s.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (s *keySketch) sink(i int) {
	for {
		least := i
		for j := 2*i + 1; j <= 2*i+2 && j < len(s.heap); j++ {
			if s.heap[j].offered < s.heap[least].offered {
				least = j
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}

// take removes the n keys of which most is certain and calls yield for each. What a key
// may have inherited is left out: an attacker's random keys must not look busy.
func (s *keySketch) take(n int, yield func(c *keyCounter)) {
	if len(s.heap) == 0 {
		return
	}
	slices.SortFunc(s.heap, func(a, b *keyCounter) int {
		return cmp.Or(cmp.Compare(b.certain(), a.certain()), cmp.Compare(a.key, b.key))
	})
	n = min(n, len(s.heap))
	for _, c := range s.heap[:n] {
		yield(c)
	}
	if n == len(s.heap) {
		*s = keySketch{}
		return
	}
	rest := s.heap[n:]
	s.byKey, s.heap = make(map[string]*keyCounter, len(rest)), make([]*keyCounter, 0, len(rest))
	slices.SortFunc(rest, func(a, b *keyCounter) int { return cmp.Compare(a.offered, b.offered) })
	for i, c := range rest { // in order, so a heap
		c.at = i
		s.byKey[c.key] = c
		s.heap = append(s.heap, c)
	}
}

// takeOwn takes what there is of tracked, flagged and short keys, by their names in all
// regions.
func (c *demandCell) takeOwn(yield func(d quota.Demand)) {
	c.own.mu.Lock()
	defer c.own.mu.Unlock()
	for kind, s := range map[quota.DemandKind]*keySketch{
		quota.DemandTracked: &c.own.tracked, quota.DemandFlagged: &c.own.flagged, quota.DemandShort: &c.own.short,
	} {
		s.take(flushOwnKeys, func(k *keyCounter) {
			yield(quota.Demand{
				Key: quota.TrackedKey(k.partition, k.key), Kind: kind, Offered: k.certain(), Admitted: min(k.admitted, k.certain()),
			})
		})
	}
}
