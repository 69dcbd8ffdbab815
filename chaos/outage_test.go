package chaos_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A limit of which the callers use half, evenly: every region's demand is within its
// share, so that nothing about the outage is a reason to deny.
const calmPolicies = `
policies:
  - id: jobs
    match: { route: "POST /jobs" }
    key: [tenant]
    algorithm: token-bucket
    capacity: 300
    refill: 300/1s
    storeDeadline: 1s
    onStoreFailure: closed
  - id: logins
    match: { route: "POST /logins" }
    key: [tenant]
    algorithm: sliding-log
    limit: 300
    window: 3s
    storeDeadline: 1s
    onStoreFailure: closed
`

// With both coordinators and Postgres gone, no check is denied or slower for it, for
// however long that lasts: CI waits seconds, `make soak` and `make chaos` a minute.
func TestCoordinatorsAndPostgresAway(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, r, worldConfig{policies: calmPolicies})
	streams := []stream{{"jobs", "acme"}, {"logins", "ada"}}
	shares := w.watchShares(streams)
	load := w.startLoad(streams)
	calm := func() {
		for i := range w.sites {
			load.set(i, 0, 50)
			load.set(i, 1, 16)
		}
	}
	calm()
	eventually(t, "every region has its shares", shares.known)
	w.undisturbed(load)

	span := outage(t)
	phase := func() (from, to int64, outcome tally) {
		before := load.tally()
		from = w.now()
		pause(t, span)
		return from, w.now(), load.tally().minus(before)
	}
	beforeFrom, beforeTo, before := phase()
	for i, c := range w.coordinators {
		w.postgres[i].refuse()
		c.kill(t)
	}
	awayFrom, awayTo, away := phase()
	for i, c := range w.coordinators {
		w.postgres[i].accept(t)
		c.launch(t)
	}
	// One region asks for more than its share: it gets it, from those that are back.
	back := w.now()
	load.set(0, 0, 180)
	moved := recovery{from: back}
	moved.ok = eventually(t, "shares move again", func() bool {
		at, changed := shares.changedAfter(back)
		moved.to = at
		return changed
	})
	load.stop()

	for _, phase := range []struct {
		name string
		tally
	}{{"before the outage", before}, {"during the outage", away}} {
		if phase.calls == 0 || phase.admitted != phase.calls {
			t.Errorf("%s: %+v: not every check was admitted", phase.name, phase.tally)
		}
	}
	for k, list := range load.endings() {
		if excess, _ := worst(list, 0, w.now()); excess > 0 {
			t.Errorf("%s: %.2f tokens over the limit", streams[k].policy, excess)
		}
	}
	judgeShares(t, w, shares)
	var text strings.Builder
	fmt.Fprintf(&text, "Coordinators and Postgres away for %s: %d checks, %d denied, %d failed; the same time before: %d checks, %d denied.\n\n",
		span, away.calls, away.denied, away.failed+away.undecided, before.calls, before.denied)
	for _, q := range []struct {
		name string
		at   float64
		// floor is what a busy machine may add to either side: ratios of less say nothing.
		floor time.Duration
	}{{"p50", 0.5, 5 * time.Millisecond}, {"p99", 0.99, 100 * time.Millisecond}} {
		was, is := load.quantile(q.at, beforeFrom, beforeTo), load.quantile(q.at, awayFrom, awayTo)
		fmt.Fprintf(&text, "%s %s before, %s during (x %.2f). ", q.name, was, is, float64(is)/float64(max(was, 1)))
		// What waits for a coordinator waits for a refused connection, or for seconds.
		if is > 3*max(was, q.floor) {
			t.Errorf("%s: %s during the outage, %s before", q.name, is, was)
		}
	}
	fmt.Fprintf(&text, "Shares moved again %.1f s after the return.\n", moved.took().Seconds())
	publish(t, text.String())
}

// undisturbed waits until two seconds have gone by without a denial.
func (w *world) undisturbed(l *load) {
	last, since := l.tally(), time.Now()
	eventually(w.tb, "two seconds without a denial", func() bool {
		now := l.tally()
		if bad := now.minus(last); bad.denied+bad.failed+bad.undecided > 0 {
			last, since = now, time.Now()
		}
		return time.Since(since) > 2*time.Second && now.calls > last.calls
	})
}
