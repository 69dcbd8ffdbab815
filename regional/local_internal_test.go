package regional

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

func localBucket(key string, capacity quota.Tokens, period time.Duration) quota.Entry {
	l := quota.Limit{Capacity: capacity * quota.Token, Refill: capacity * quota.Token, Period: period}
	return quota.Entry{Bucket: key, Algorithm: quota.TokenBucket, Limit: l, Base: l}
}

func localLog(key string, n quota.Tokens, window time.Duration) quota.Entry {
	l := quota.Limit{Capacity: n * quota.Token, Period: window}
	return quota.Entry{Bucket: key, Algorithm: quota.SlidingLog, Limit: l, Base: l}
}

// Fault list 151: a flood of other keys, ten times what memory holds, does not end a
// denial: neither random keys nor keys that are themselves denied.
func TestFloodDoesNotEndADenial(t *testing.T) {
	const keys = 1600
	for name, entry := range map[string]func(string) quota.Entry{
		"bucket": func(k string) quota.Entry { return localBucket(k, 5, time.Hour) },
		"log":    func(k string) quota.Entry { return localLog(k, 5, time.Hour) },
	} {
		for _, hits := range []int{1, 6} {
			t.Run(fmt.Sprint(name, " ", hits), func(t *testing.T) {
				m := newMetrics(nil)
				l := newLocalStore(keys, m)
				now := l.now()
				for range 5 {
					l.decide(now, "p", entry("victim"), quota.Token, false)
				}
				admitted := 0
				for i := range 10 * keys {
					now += 100
					for range hits {
						if v, _ := l.decide(now, "p", entry(fmt.Sprint("random", i)), quota.Token, false); v.Allowed {
							admitted++
						}
					}
					if v, _ := l.decide(now, "p", entry("victim"), quota.Token, false); v.Allowed {
						t.Fatalf("after %d other keys the denied key is admitted", i)
					}
				}
				if n := l.size(); n > keys {
					t.Errorf("%d buckets, bound %d", n, keys)
				}
				evicted, overflow := testutil.ToFloat64(m.localEvicted), testutil.ToFloat64(m.localOverflow)
				if hits == 1 && evicted == 0 {
					t.Error("live buckets were dropped and not counted")
				}
				if hits == 6 && overflow == 0 {
					t.Error("memory full of denials, and no overflow counted")
				}
			})
		}
	}
}

// Fault list 152: with room for all keys nothing is ever evicted, and buckets that
// are full again make room without being counted.
func TestNoEvictionInNormalLoad(t *testing.T) {
	m := newMetrics(nil)
	l := newLocalStore(16_000, m)
	now := l.now()
	for i := range 100_000 {
		now += 1000
		l.decide(now, "p", localBucket(fmt.Sprint("k", i%8000), 5, time.Second), quota.Token, false)
	}
	for i := range 50_000 { // each key once, full again long before its room is needed
		now += 1000
		l.decide(now, "p", localBucket(fmt.Sprint("once", i), 5, time.Second), quota.Token, false)
	}
	if n := testutil.ToFloat64(m.localEvicted) + testutil.ToFloat64(m.localOverflow); n != 0 {
		t.Errorf("%v evictions in normal load", n)
	}
}

// Fault list 39: a clock that is set back or ahead by an hour: no panic, no more
// than one refill, no denial for longer than a window, nothing purged.
func TestLocalClockSteps(t *testing.T) {
	for name, entry := range map[string]quota.Entry{"bucket": localBucket("k", 10, time.Minute), "log": localLog("k", 10, time.Minute)} {
		for _, step := range []time.Duration{-time.Hour, time.Hour, -30 * time.Second} {
			t.Run(fmt.Sprint(name, step), func(t *testing.T) {
				l := newLocalStore(1600, newMetrics(nil))
				now := l.now()
				admit := func() (n int) {
					for {
						if v, _ := l.decide(now, "p", entry, quota.Token, false); !v.Allowed {
							return n
						}
						n++
					}
				}
				if n := admit(); n != 10 {
					t.Fatalf("admitted %d, want 10", n)
				}
				now += step.Microseconds()
				if n := admit(); n > 10 || step < 0 && n > 0 {
					t.Errorf("the step alone admitted %d", n)
				}
				if l.size() != 1 {
					t.Errorf("%d buckets", l.size())
				}
				now += (time.Minute + time.Second - min(0, max(step, -time.Minute))).Microseconds()
				if n := admit(); n == 0 || n > 10 {
					t.Errorf("a window later admitted %d", n)
				}
			})
		}
	}
}

// Local time runs by the monotonic clock, so a step of the wall clock is not seen at all.
func TestLocalTimeIsMonotonic(t *testing.T) {
	l := newLocalStore(16, newMetrics(nil))
	if l.start.String() == l.start.Round(0).String() {
		t.Fatal("the start has no monotonic reading")
	}
}

// Memory: a log weighs what it may hold.
func TestHeavyLogsCountForMore(t *testing.T) {
	l := newLocalStore(16_000, newMetrics(nil))
	now := l.now()
	for i := range 20_000 {
		l.decide(now, "p", localLog(fmt.Sprint("k", i), 1600, time.Hour), quota.Token, false)
	}
	if n := l.size(); n > 160 {
		t.Errorf("%d logs of up to 1600 entries are held, want at most 160", n)
	}
}

// The sketch never reports more than a key had, never loses a key that makes up
// more than 1/sketchKeys of the whole, and stays small.
func TestSketch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s sketch
		truth, total := map[string]quota.Tokens{}, quota.Tokens(0)
		keys := rapid.IntRange(1, 300).Draw(rt, "keys")
		for range rapid.IntRange(0, 2000).Draw(rt, "n") {
			k := fmt.Sprint("k", rapid.IntRange(0, keys-1).Draw(rt, "k")*rapid.IntRange(0, 1).Draw(rt, "hot"))
			cost := quota.Tokens(rapid.IntRange(1, 5).Draw(rt, "cost"))
			s.add(hashKey(k), k, cost, true)
			truth[k], total = truth[k]+cost, total+cost
		}
		if len(s.counters) > sketchKeys {
			rt.Fatalf("%d counters", len(s.counters))
		}
		held := map[string]bool{}
		s.drain(func(k string, offered, admitted quota.Tokens) {
			held[k] = true
			if offered > truth[k] || admitted > truth[k] || len(truth) <= sketchKeys && offered != truth[k] {
				rt.Fatalf("%s: offered %d, truth %d", k, offered, truth[k])
			}
		})
		for k, n := range truth {
			if n > total/sketchKeys && !held[k] {
				rt.Fatalf("%s has %d of %d and is missing", k, n, total)
			}
		}
	})
}

// The backlog of a store that is away is bounded, totals are exact, and what is
// left out is counted.
func TestBacklogIsBounded(t *testing.T) {
	b, cell := newDemandBacklog(), newDemandCell()
	var dropped quota.Tokens
	for i := range 3 * maxPendingKeys {
		key := fmt.Sprint("k", i)
		cell.add(offer{hash: hashKey(key), bucket: key, cost: quota.Token, relative: quota.Token, admitted: true})
		if i%8 == 7 {
			dropped += b.collect("p", cell)
		}
	}
	pending := b.pending()
	if len(pending) > maxPendingKeys+1 || dropped == 0 {
		t.Fatalf("%d wait, %v dropped", len(pending), dropped)
	}
	if pending[0].Key != "" || pending[0].Offered != 3*maxPendingKeys*quota.Token {
		t.Fatalf("total %+v", pending[0])
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	m.localKeys(reg, newLocalStore(16, m))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Fatalf("%v %v", problems, err)
	}
}

func TestMulDiv(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := rapid.Int64Range(0, 1<<20)
		a, b, c := draw.Draw(rt, "a"), draw.Draw(rt, "b"), draw.Draw(rt, "c")
		want := int64(0)
		if c > 0 {
			want = a * b / c
		}
		if got := mulDiv(quota.Tokens(a), quota.Tokens(b), quota.Tokens(c)); int64(got) != want {
			rt.Fatalf("%d*%d/%d = %d, want %d", a, b, c, got, want)
		}
	})
	if got := mulDiv(quota.MaxTokens, quota.MaxTokens, 1); got != quota.MaxTokens {
		t.Errorf("got %d", got)
	}
	if got := mulDiv(quota.MaxTokens, quota.MaxTokens, quota.MaxTokens); got != quota.MaxTokens {
		t.Errorf("got %d", got)
	}
}
