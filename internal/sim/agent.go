package sim

import (
	"math/rand/v2"
	"time"

	"github.com/weirhq/weir/quota"
)

// The rules of a region's agent; those without a remark are regional.Agent's.
const (
	reportInterval = time.Second
	reportTimeout  = 5 * time.Second
	drainInterval  = 250 * time.Millisecond
	minInterval    = 20 * time.Millisecond
	maxBackoff     = 2 * time.Second
	longestPause   = 15 * time.Second
	fullEvery      = time.Minute
	maxAcks        = 3
	// urgentEvery is how long a region waits before it asks for more again.
	urgentEvery = 500 * time.Millisecond
)

// agent is a region that reports to a coordinator and applies what it is granted.
type agent struct {
	region quota.Region
	store  *store
	net    *network
	rng    *rand.Rand
	// ask hands a report to the coordinator; the answer comes, if at all, to answered
	// with the number of the call.
	ask func(now int64, call int64, r quota.Report) error

	// demand since the window began, and in the second that ends now.
	window counts
	began  int64
	second recent
	load   counts // rates of the last window taken
	loaded int64

	next           int64
	call, calledAt int64 // call is zero when none is under way
	calls          int64
	asked          quota.Report
	urgentAt       int64
	denied         bool // in the last tick
	acks, failures int
	// reported are the last lines that were heard, of the policy and of the key.
	reported [2]quota.QuotaReport
	known    [2]bool
	granted  bool
	wantFull bool
	fullAt   int64
}

// counts are numbers of requests, or rates of them.
type counts struct{ offered, admitted float64 }

// recent counts the requests of one second, in ticks.
type recent struct {
	ring [int(time.Second / tick)]int
	at   int
	sum  int
}

func (r *recent) add(n int) {
	r.sum += n - r.ring[r.at]
	r.ring[r.at] = n
	r.at = (r.at + 1) % len(r.ring)
}

// note counts a tick of requests.
func (a *agent) note(offered, admitted int) {
	a.window.offered += float64(offered)
	a.window.admitted += float64(admitted)
	a.second.add(offered)
	a.denied = admitted < offered
}

// step does what is due now.
func (a *agent) step(now int64) error {
	if a.call != 0 && now-a.calledAt >= micros(reportTimeout) {
		a.call, a.wantFull = 0, true
		back := min(reportInterval<<min(a.failures, 10), maxBackoff)
		a.failures++
		a.next = now + micros(back)/2 + a.rng.Int64N(micros(back)/2+1)
	}
	if a.call != 0 {
		return nil
	}
	urgent := a.failures == 0 && a.store.gen != "" && now-a.urgentAt >= micros(urgentEvery) &&
		a.store.starves(float64(a.second.sum), a.denied)
	if now < a.next && !urgent {
		return nil
	}
	if now >= a.next {
		a.acks = 0
	}
	return a.report(now, urgent)
}

// report sends one report.
func (a *agent) report(now int64, urgent bool) error {
	r := quota.Report{
		Region: a.region, Gen: a.gen(), Epoch: a.store.epoch, SentAt: now, Revision: 1,
		Full: a.wantFull || now-a.fullAt >= micros(fullEvery),
	}
	for i, q := range a.lines(now, urgent) {
		if q.ID.Policy != "" && (r.Full || !a.known[i] || !q.Drained || a.granted || q != a.reported[i]) {
			r.Quotas = append(r.Quotas, q)
		}
	}
	a.calls++
	a.call, a.calledAt, a.asked = a.calls, now, r
	return a.ask(now, a.call, r)
}

// lines are the report's line of the policy, and that of the key if there is one: when
// it has its own record, or is near its limit.
func (a *agent) lines(now int64, urgent bool) (lines [2]quota.QuotaReport) {
	whole, load := a.store.held(now), a.takeLoad(now)
	whole.Total, whole.Admitted = load.offered, min(load.admitted, load.offered)
	key, tracked := a.store.heldKey(now)
	if !tracked {
		whole.Demand = load.offered
		if !urgent && !a.store.flagged(a.denied) {
			return [2]quota.QuotaReport{whole}
		}
		key = quota.QuotaReport{ID: key.ID, Period: key.Period, Drained: true}
	}
	key.Demand, key.Total, key.Admitted, key.Urgent = load.offered, load.offered, whole.Admitted, urgent
	if urgent {
		a.urgentAt = now
		key.Demand = float64(a.second.sum)
	}
	return [2]quota.QuotaReport{whole, key}
}

// gen is the id of the region's dataset, present or to come.
func (a *agent) gen() string { return string(a.region) + "-dataset" }

// takeLoad returns the demand of the window, which is taken once in an interval.
func (a *agent) takeLoad(now int64) counts {
	if now-a.loaded < micros(reportInterval)*3/4 || now <= a.began {
		return a.load
	}
	seconds := float64(now-a.began) / 1e6
	a.load = counts{a.window.offered / seconds, a.window.admitted / seconds}
	a.loaded, a.began, a.window = now, now, counts{}
	return a.load
}

// answered takes in what the coordinator says to a call.
func (a *agent) answered(now, call int64, in quota.Instructions) error {
	if call != a.call {
		return nil // it came after the deadline
	}
	a.call, a.failures = 0, 0
	if a.store.gen == "" {
		// The first answer only says how the dataset begins.
		if !in.Undecided {
			a.store.initialise(now, a.gen(), in.Fresh)
		}
		a.wantFull = true
		return a.report(now, false)
	}
	a.heard()
	if in.Gen != a.gen() || in.Epoch < a.store.epoch {
		a.next = now + a.jittered()
		return nil
	}
	a.wantFull = a.wantFull || in.Full
	if len(in.Grants) > 0 || in.Epoch != a.store.epoch {
		if err := a.store.apply(now, in.Epoch, in.Grants); err != nil {
			return err
		}
	}
	a.next = now + a.pause(now, in)
	if len(in.Grants) == 0 {
		return nil
	}
	a.granted = true
	if a.acks >= maxAcks {
		return nil
	}
	a.acks++
	return a.report(now, false)
}

// heard notes what the coordinator has heard.
func (a *agent) heard() {
	if a.asked.Full {
		a.wantFull, a.fullAt = false, a.calledAt
	}
	for _, q := range a.asked.Quotas {
		i := 0
		if q.ID.Key != "" {
			i = 1
		}
		a.reported[i], a.known[i], a.granted = q, true, false
	}
}

// pause is the time until the next report.
func (a *agent) pause(now int64, in quota.Instructions) int64 {
	next := a.jittered()
	if in.NextReport > 0 {
		next = micros(min(max(in.NextReport, minInterval), longestPause))
	}
	key, tracked := a.store.heldKey(now)
	if q := a.store.held(now); q.Version > 0 && !q.Drained || tracked && !key.Drained {
		next = min(next, micros(drainInterval))
	}
	return next
}

func (a *agent) jittered() int64 {
	d := micros(reportInterval)
	return d - d/20 + a.rng.Int64N(d/10+1)
}

// wake brings back a region that was away, with its data.
func (a *agent) wake(now int64) {
	a.call, a.failures, a.acks, a.wantFull, a.known = 0, 0, 0, true, [2]bool{}
	a.window, a.second, a.began, a.loaded = counts{}, recent{}, now, now
	a.load, a.next, a.denied = counts{}, now, false
}
