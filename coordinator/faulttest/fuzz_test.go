package faulttest

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// schedules is how many random fault schedules a run of the suite tries.
func schedules(n int) int {
	if s, err := strconv.Atoi(os.Getenv("WEIR_FUZZ_SCHEDULES")); err == nil {
		return s
	}
	return n
}

// length is the virtual time of one schedule, shards how many run at once at most.
const (
	length = 120 * time.Second
	shards = 8
)

// play lets time pass, to the end or to the first finding.
func (w *world) play(d time.Duration) {
	for end := w.now + d.Microseconds(); w.now < end && !w.done(); {
		w.step()
	}
}

func (w *world) done() bool {
	return w.err != nil || w.found.envelope.what != "" || w.found.invariant.what != ""
}

func TestNoScheduleBreaksTheLimit(t *testing.T) {
	t.Parallel()
	for shard := range uint64(shards) {
		t.Run(fmt.Sprint("shard", shard), func(t *testing.T) {
			t.Parallel()
			for seed := shard; seed < uint64(schedules(500)); seed += shards {
				playOne(t, seed, options{})
			}
		})
	}
}

func playOne(t *testing.T, seed uint64, o options) {
	t.Helper()
	w := newWorld(seed, o)
	w.play(length)
	if w.err != nil {
		t.Errorf("schedule %d: %v", seed, w.err)
	}
	for _, f := range []finding{w.found.envelope, w.found.invariant} {
		if f.what != "" {
			t.Errorf("schedule %d, %s\n%s", seed, f.what, explain(seed, o, f.id))
		}
	}
}
