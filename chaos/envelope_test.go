package chaos_test

import (
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// call is one admission of one token, as its caller knows it: the decision was made at
// or after sent and at or before answered. Both are microseconds of one monotonic
// clock, sent rounded down and answered up.
type call struct{ sent, answered int64 }

// ending is the worst that can be said for certain of the intervals that end with one
// answer: how many more admissions lie inside one of them than the envelope allows. It
// is negative when there was room in all of them.
type ending struct {
	at     int64
	excess float64 // tokens
}

// endings returns the worst of all intervals [a, b] for each b that is an answer, in
// the order of time. Intervals that begin and end elsewhere hold no more calls than the
// ones that are looked at, and are longer.
//
// An admission counts for [a, b] if it was sent at or after a and answered by b, so that
// it was decided in [a, b] for certain. Hence an excess above 0 proves that the limit
// was exceeded. The reverse holds but for the time of calls: if more than the limit
// was decided in [a, b], all that is inside [a-l, b+l] where l is the longest call, and
// the envelope of that allows only 2*l*refill more.
func endings(algorithm quota.Algorithm, limit quota.Limit, calls []call) []ending {
	calls = slices.SortedFunc(slices.Values(calls), func(a, b call) int { return int(a.answered - b.answered) })
	if algorithm == quota.SlidingLog {
		return logEndings(limit, calls)
	}
	return bucketEndings(limit, calls)
}

// bucketEndings looks for the a that makes calls in [a, b] - capacity - refill*(b-a) the
// largest. The calls are sorted by their answers; each one that is added at its answer
// is one more in all intervals that begin at or before its sending. So the candidates a,
// in the order of time, are the leaves of a tree of maxima with additions to a prefix,
// and each call costs a logarithm. Amounts are milli-tokens times the microseconds of
// the period: nothing is rounded.
func bucketEndings(limit quota.Limit, calls []call) []ending {
	period, refill := limit.Period.Microseconds(), int64(limit.Refill)
	begins := make([]int64, len(calls))
	for i, c := range calls {
		begins[i] = c.sent
	}
	slices.Sort(begins)
	begins = slices.Compact(begins)
	tree := newMaxima(len(begins))
	out := make([]ending, len(calls))
	for i, c := range calls {
		at, _ := slices.BinarySearch(begins, c.sent)
		tree.offer(at, refill*c.sent)
		tree.add(at, int64(quota.Token)*period)
		most := tree.most() - int64(limit.Capacity)*period - refill*c.answered
		out[i] = ending{c.answered, float64(most) / float64(int64(quota.Token)*period)}
	}
	return out
}

// logEndings counts the calls that were sent less than a window before each answer, and
// answered by then: those are in one window for certain. Calls that took longer than a
// whole window may be left out, never counted twice.
func logEndings(limit quota.Limit, calls []call) []ending {
	window := limit.Period.Microseconds()
	sent := make([]int64, len(calls))
	for i, c := range calls {
		sent[i] = c.sent
	}
	slices.Sort(sent)
	out := make([]ending, len(calls))
	gone := 0
	for i, c := range calls {
		for gone < len(sent) && sent[gone] <= c.answered-window {
			gone++
		}
		out[i] = ending{c.answered, float64(int64(i+1-gone) - limit.Capacity.Whole())}
	}
	return out
}

// worst is the largest excess of those that end in [from, to], and how many those are.
func worst(list []ending, from, to int64) (excess float64, n int) {
	excess = math.Inf(-1)
	for _, e := range list {
		if e.at >= from && e.at <= to {
			excess = max(excess, e.excess)
			n++
		}
	}
	return excess, n
}

// maxima is a segment tree: a value per leaf, additions to all leaves up to one, and the
// maximum of all leaves that were offered.
type maxima struct {
	size int
	best []int64 // of the subtree, without what is pending above it
	more []int64 // added to the whole subtree
}

// absent is far below every value, and far enough from the end of the integers that
// additions to it do not overflow.
const absent = math.MinInt64 / 2

func newMaxima(leaves int) *maxima {
	m := &maxima{size: 1}
	for m.size < leaves {
		m.size *= 2
	}
	m.best, m.more = make([]int64, 2*m.size), make([]int64, 2*m.size)
	for i := range m.best {
		m.best[i] = absent
	}
	return m
}

func (m *maxima) most() int64 { return m.best[1] + m.more[1] }

// offer makes a leaf count, with a value on top of what was added to it already.
func (m *maxima) offer(leaf int, value int64) {
	i := m.size + leaf
	if m.best[i] != absent {
		return
	}
	m.best[i] = value
	m.lift(i)
}

// add adds to the leaves 0 to last.
func (m *maxima) add(last int, value int64) {
	// From the leaf upwards: whole subtrees to the left of the path.
	i := m.size + last
	m.more[i] += value
	for ; i > 1; i /= 2 {
		if i%2 == 1 {
			m.more[i-1] += value
		}
		m.best[i/2] = m.join(i / 2)
	}
}

func (m *maxima) lift(i int) {
	for i /= 2; i >= 1; i /= 2 {
		m.best[i] = m.join(i)
	}
}

func (m *maxima) join(i int) int64 {
	return max(m.best[2*i]+m.more[2*i], m.best[2*i+1]+m.more[2*i+1])
}

// longest is the longest of the calls, which is how sharp the checkers are.
func longest(calls []call) time.Duration {
	var most int64
	for _, c := range calls {
		most = max(most, c.answered-c.sent)
	}
	return time.Duration(most) * time.Microsecond
}
