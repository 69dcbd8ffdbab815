package regional

import (
	"cmp"
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"github.com/weirhq/weir/quota"
)

// Bounds of what one flush sends to the store.
const (
	// flushKeys is how many of a policy's busiest keys a node tells the region.
	// More than one, because the region's busiest key need not be each node's.
	flushKeys = 16
	// maxPendingKeys bounds the per-key demand that waits for a store that is
	// away. Totals always wait; there are no more of them than policies.
	maxPendingKeys = 1 << 14
)

// hashSeed makes the hashes of bucket keys different in each process, so that
// nobody outside can choose keys that collide.
var hashSeed = maphash.MakeSeed()

func hashKey(key string) uint64 { return maphash.String(hashSeed, key) }

// demandCell adds up the load of one policy on this node. Checks on different
// processors mostly touch different shards.
type demandCell struct {
	shards []demandShard

	// own holds the keys that have a split of their own or want one. Few checks touch
	// it: those of keys that are tracked, denied, or below half of their share.
	own struct {
		mu      sync.Mutex
		tracked keySketch
		flagged keySketch
		short   keySketch
	}
}

// offer is what one check says of a policy's demand.
type offer struct {
	hash      uint64 // of the bucket, in this process
	bucket    string
	partition uint64
	cost      quota.Tokens
	// relative is the cost of a key that is overridden as it would be under the
	// policy's own limit, so that it can be held against shares of that.
	relative quota.Tokens
	admitted bool
	kind     quota.DemandKind
	// short: the key is also one that must have more at once.
	short bool
}

type demandShard struct {
	mu       sync.Mutex
	offered  quota.Tokens
	admitted quota.Tokens
	busiest  sketch
	_        [64]byte // keeps two shards off one cache line
}

func newDemandCell() *demandCell {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < 16 {
		n *= 2
	}
	return &demandCell{shards: make([]demandShard, n)}
}

func (c *demandCell) add(o offer) {
	c.addShared(&o)
	if o.kind == quota.DemandShared {
		return
	}
	c.own.mu.Lock()
	defer c.own.mu.Unlock()
	if o.kind == quota.DemandTracked {
		c.own.tracked.add(&o)
	} else {
		c.own.flagged.add(&o)
	}
	if o.short {
		c.own.short.add(&o)
	}
}

// addShared counts what belongs to the policy as a whole. A tracked key is not one of
// the busiest that follow the default split.
func (c *demandCell) addShared(o *offer) {
	// Which shard is chance, not the key's hash: one hot key must not make all
	// processors queue for one lock.
	s := &c.shards[rand.Uint32()&uint32(len(c.shards)-1)] //nolint:gosec // spreads load, guards nothing
	s.mu.Lock()
	s.offered += o.cost
	if o.admitted {
		s.admitted += o.cost
	}
	if o.kind != quota.DemandTracked {
		s.busiest.add(o.hash, o.bucket, o.relative, o.admitted)
	}
	s.mu.Unlock()
}

// take empties the cell into total and keys.
func (c *demandCell) take(total *quota.Demand, keys map[string]quota.Demand) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		total.Offered += s.offered
		total.Admitted += s.admitted
		s.offered, s.admitted = 0, 0
		s.busiest.drain(func(key string, offered, admitted quota.Tokens) {
			d := keys[key]
			d.Offered += offered
			d.Admitted += admitted
			keys[key] = d
		})
		s.mu.Unlock()
	}
}

// demandBacklog holds demand that the store has not taken yet. When the store is
// away it grows by key and not by check, up to maxPendingKeys. It has one user,
// the flush loop.
type demandBacklog struct {
	totals map[string]quota.Demand
	keys   map[backlogKey]quota.Demand
}

type backlogKey struct {
	id   quota.ID
	kind quota.DemandKind
}

func newDemandBacklog() *demandBacklog {
	return &demandBacklog{totals: map[string]quota.Demand{}, keys: map[backlogKey]quota.Demand{}}
}

// collect moves a policy's demand from its cell to the backlog. It returns the
// per-key demand that found no room, in tokens; the totals still contain it.
func (b *demandBacklog) collect(policy string, cell *demandCell) (dropped quota.Tokens) {
	total := b.totals[policy]
	total.Policy = policy
	keys := map[string]quota.Demand{}
	cell.take(&total, keys)
	if total.Offered > 0 {
		b.totals[policy] = total
	}
	for _, key := range busiest(keys, flushKeys) {
		d := keys[key]
		d.Policy, d.Key = policy, key
		dropped += b.put(d)
	}
	cell.takeOwn(func(d quota.Demand) {
		d.Policy = policy
		dropped += b.put(d)
	})
	return dropped
}

// put adds demand of a key, or returns what found no room.
func (b *demandBacklog) put(d quota.Demand) (dropped quota.Tokens) {
	at := backlogKey{quota.ID{Policy: d.Policy, Key: d.Key}, d.Kind}
	sum, ok := b.keys[at]
	if !ok && len(b.keys) >= maxPendingKeys {
		return d.Offered
	}
	d.Offered += sum.Offered
	d.Admitted += sum.Admitted
	b.keys[at] = d
	return 0
}

// pending lists what waits, totals first.
func (b *demandBacklog) pending() []quota.Demand {
	out := make([]quota.Demand, 0, len(b.totals)+len(b.keys))
	for _, d := range b.totals {
		out = append(out, d)
	}
	for _, d := range b.keys {
		out = append(out, d)
	}
	return out
}

// clear forgets everything: the store has it.
func (b *demandBacklog) clear() {
	clear(b.totals)
	clear(b.keys)
}

// busiest returns the n keys with the largest offered load.
func busiest(keys map[string]quota.Demand, n int) []string {
	out := make([]string, 0, len(keys))
	for k := range keys {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(keys[b].Offered, keys[a].Offered), cmp.Compare(a, b))
	})
	return out[:min(n, len(out))]
}
