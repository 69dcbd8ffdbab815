package regional

import "sync/atomic"

// gateLanes is how many separate bounds the gate keeps. Stripes that share a
// lane share its bound, so a stalled shard fills its own lanes and not the rest.
const gateLanes = 64

// gate bounds how many calls may be inside the store at once. There is no queue
// in front of it: calls queue inside the store, which batches what has gathered,
// and a call that finds the gate full is refused at once.
type gate struct {
	limit int64
	lane  int64
	total atomic.Int64
	lanes [gateLanes]atomic.Int64
}

// newGate lets limit calls in, and one in 32 of them through one lane: with a
// third of the stripes on a stalled shard, a third of the gate stays free.
func newGate(limit int) *gate {
	return &gate{limit: int64(limit), lane: max(1, int64(limit)/32)}
}

func (g *gate) enter(stripe int) bool {
	if g.total.Add(1) > g.limit {
		g.total.Add(-1)
		return false
	}
	if l := &g.lanes[uint(stripe)%gateLanes]; l.Add(1) > g.lane {
		l.Add(-1)
		g.total.Add(-1)
		return false
	}
	return true
}

func (g *gate) leave(stripe int) {
	g.lanes[uint(stripe)%gateLanes].Add(-1)
	g.total.Add(-1)
}
