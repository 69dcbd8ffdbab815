package regional

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// A million random keys lose none of the busy ones and take no more memory than is stated.
func TestAttackLosesNoBusyKey(t *testing.T) {
	const busy, weight, random = 100, 625, 1_000_000
	r := rand.New(rand.NewPCG(1, 2))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	cell := newDemandCell()
	o := offer{cost: quota.Token, relative: quota.Token, kind: quota.DemandFlagged}
	for i := range random {
		o.bucket, o.partition = fmt.Sprintf("rl:{7}:api-free:k:%016x", r.Uint64()), uint64(i)
		cell.own.flagged.add(&o)
		if i%(random/(busy*weight)) == 0 {
			n := i / (random / (busy * weight)) % busy
			o.bucket, o.partition = fmt.Sprintf("rl:{7}:api-free:k:%016d", n), uint64(n)
			cell.own.flagged.add(&o)
		}
	}
	s := &cell.own.flagged
	if len(s.heap) != ownKeys || len(s.byKey) != ownKeys {
		t.Fatalf("%d counters, %d names, want %d", len(s.heap), len(s.byKey), ownKeys)
	}
	for i, c := range s.heap {
		if c.at != i || i > 0 && c.offered < s.heap[(i-1)/2].offered || s.byKey[c.key] != c {
			t.Fatalf("counter %d is out of place", i)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > ownKeys*300 {
		t.Errorf("%d bytes for %d keys, more than 300 each", used, ownKeys)
	}
	var taken []quota.Demand
	cell.takeOwn(func(d quota.Demand) { taken = append(taken, d) })
	if len(taken) != flushOwnKeys || len(s.heap) != ownKeys-flushOwnKeys || len(s.byKey) != len(s.heap) {
		t.Fatalf("%d taken, %d left", len(taken), len(s.heap))
	}
	for i, d := range taken[:busy] {
		var n int
		if _, err := fmt.Sscanf(d.Key[len("0000000000000000:api-free:k:"):], "%d", &n); err != nil || n >= busy || d.Kind != quota.DemandFlagged {
			t.Errorf("the %d-th busiest is %+v", i, d)
		}
		// What may stem from others is left out, at most a part in ownKeys of it all.
		if least := (weight - (random+busy*weight)/ownKeys) * quota.Token; d.Offered > weight*quota.Token || d.Offered < least {
			t.Errorf("%s is told as %s of %d, want at least %s", d.Key, d.Offered, weight, least)
		}
	}
}

// What is left after a flush goes with the next, also when nothing new comes.
func TestFlaggedKeysOfManyFlushes(t *testing.T) {
	cell, b := newDemandCell(), newDemandBacklog()
	for i := range 3*flushOwnKeys - 1 {
		cell.add(offer{bucket: fmt.Sprintf("rl:{1}:p:k:%016x", i), cost: quota.Token, relative: 2 * quota.Token, kind: quota.DemandFlagged})
	}
	cell.add(offer{bucket: "rl:{1}:p:k:ffffffffffffffff", cost: quota.Token, relative: quota.Token, admitted: true, kind: quota.DemandTracked})
	want := []int{flushOwnKeys + flushKeys + 2, flushOwnKeys, flushOwnKeys - 1, 0}
	for i, n := range want {
		if dropped := b.collect("p", cell); dropped != 0 {
			t.Errorf("%s dropped", dropped)
		}
		if got := len(b.pending()); got != n {
			t.Errorf("flush %d: %d sums, want %d", i, got, n)
		}
		b.clear()
	}
}

// A key is flagged when it was denied or less than half of its own share is left.
func TestKeysAreFlaggedBelowHalfOfTheirShare(t *testing.T) {
	p := &quota.Policy{ID: "p", Algorithm: quota.TokenBucket, Limit: quota.Limit{Capacity: 100 * quota.Token, Refill: 60 * quota.Token, Period: time.Minute}}
	state := &policyState{policy: p, share: new(atomic.Pointer[heldShare]), floor: quota.Share{Capacity: 40 * quota.Token}}
	for _, c := range []struct {
		level    quota.Tokens
		own      quota.Limit
		reason   quota.Reason
		source   quota.Source
		tracked  bool
		kind     quota.DemandKind
		relative quota.Tokens
	}{
		{level: 20, own: p.Limit, source: quota.SourceStore, kind: quota.DemandShared, relative: 6},
		{level: 19, own: p.Limit, source: quota.SourceStore, kind: quota.DemandFlagged, relative: 6},
		{level: 30, own: p.Limit, reason: quota.ReasonLimit, source: quota.SourceStore, kind: quota.DemandFlagged, relative: 6},
		{level: 0, own: p.Limit, source: quota.SourceFallback, kind: quota.DemandShared, relative: 6},
		{level: 90, own: p.Limit, source: quota.SourceStore, tracked: true, kind: quota.DemandTracked, relative: 6},
		{level: 39, own: quota.Limit{Capacity: 200 * quota.Token, Refill: 120 * quota.Token, Period: time.Minute}, source: quota.SourceStore, kind: quota.DemandFlagged, relative: 3},
		{level: 41, own: quota.Limit{Capacity: 200 * quota.Token, Refill: 120 * quota.Token, Period: time.Minute}, source: quota.SourceStore, kind: quota.DemandShared, relative: 3},
		{level: 11, own: quota.Limit{Capacity: 50 * quota.Token, Refill: 60 * quota.Token, Period: 2 * time.Minute}, source: quota.SourceStore, kind: quota.DemandShared, relative: 12},
	} {
		s := step{match: quota.Match{Policy: p, Limit: c.own}, state: state, bucket: "rl:{1}:p", partition: 1}
		s.verdict.Level, s.verdict.Tracked = c.level*quota.Token, c.tracked
		s.decision.Reason, s.decision.Source = c.reason, c.source
		got := s.offer(7, 6*quota.Token, true)
		if got.kind != c.kind || got.relative != c.relative*quota.Token || got.cost != 6*quota.Token {
			t.Errorf("%+v: offer %+v", c, got)
		}
	}
}

// An urgent line tells of an instant. The demand that follows is reported although it is
// the same: the coordinator would else go on with what it knew before.
func TestDemandIsReportedAfterAnUrgentLine(t *testing.T) {
	id := quota.ID{Policy: "p", Key: "k"}
	b := newKeyBook()
	b.held = map[quota.ID]quota.QuotaReport{id: {ID: id, Version: 1, Drained: true}}
	report := func(demand float64, short bool) []quota.QuotaReport {
		lines, _ := b.lines(loads{keys: map[quota.ID]load{id: {total: demand, admitted: demand}}, short: map[quota.ID]bool{id: short}}, false)
		for _, q := range lines {
			b.heard(q)
		}
		return lines
	}
	for i, step := range []struct {
		demand       float64
		short        bool
		told, urgent bool
	}{
		{4, false, true, false},
		{4.1, false, false, false},
		{5, true, true, true},
		{5, false, true, false},
		{5, false, false, false},
	} {
		lines := report(step.demand, step.short)
		if told := len(lines) == 1; told != step.told || told && (lines[0].Urgent != step.urgent || lines[0].Demand != step.demand) {
			t.Errorf("step %d: %+v, want a line: %t, urgent: %t", i, lines, step.told, step.urgent)
		}
	}
}
