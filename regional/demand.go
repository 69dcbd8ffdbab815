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

func (c *demandCell) add(hash uint64, key string, cost quota.Tokens, admitted bool) {
	// Which shard is chance, not the key's hash: one hot key must not make all
	// processors queue for one lock.
	s := &c.shards[rand.Uint32()&uint32(len(c.shards)-1)] //nolint:gosec // spreads load, guards nothing
	s.mu.Lock()
	s.offered += cost
	if admitted {
		s.admitted += cost
	}
	s.busiest.add(hash, key, cost, admitted)
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
	keys   map[quota.ID]quota.Demand
}

func newDemandBacklog() *demandBacklog {
	return &demandBacklog{totals: map[string]quota.Demand{}, keys: map[quota.ID]quota.Demand{}}
}

// collect moves a policy's demand from its cell to the backlog. It returns the
// per-key demand that found no room, in tokens; the totals still contain it.
func (b *demandBacklog) collect(policy string, cell *demandCell) (dropped quota.Tokens) {
	total := b.totals[policy]
	total.Policy = policy
	keys := map[string]quota.Demand{}
	cell.take(&total, keys)
	if total.Offered == 0 {
		return 0
	}
	b.totals[policy] = total
	for _, key := range busiest(keys, flushKeys) {
		id := quota.ID{Policy: policy, Key: key}
		d, ok := b.keys[id]
		if !ok && len(b.keys) >= maxPendingKeys {
			dropped += keys[key].Offered
			continue
		}
		d.Policy, d.Key = policy, key
		d.Offered += keys[key].Offered
		d.Admitted += keys[key].Admitted
		b.keys[id] = d
	}
	return dropped
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
