package chaos_test

import (
	"math/rand/v2"
	"syscall"
	"time"
)

// A fault breaks something, waits, mends it, and returns the instant from which the
// recovery counts and the one at which it was reached.
type fault struct {
	name string
	// few is how often it happens when nobody says.
	few int
	// within bounds the recovery, if it is promised.
	within time.Duration
	strike func(w *world, s *shares, r *rand.Rand) recovery
}

// recovery is from when to when, and whether it was reached at all.
type recovery struct {
	from, to int64
	ok       bool
}

func (r recovery) took() time.Duration { return time.Duration(r.to-r.from) * time.Microsecond }

// failover bounds the time from the loss of a leader to the first share that moves under
// the next one.
const failover = 12 * time.Second

var faults = []fault{
	{"leader killed in the middle of a rebalance", 2, failover, killLeader},
	{"leader stopped until another leads, then continued", 1, failover, stopLeader},
	{"leader cut from Postgres", 1, failover, cutLeaderFromPostgres},
	{"region cut from both coordinators", 2, 0, cutRegion},
	{"region's reports lost, answers not", 1, 0, loseReports},
	{"region's answers lost, reports not", 1, 0, loseAnswers},
	{"region stopped and continued", 2, 0, stopRegion},
	{"region cut from its Redis", 1, 0, cutRedis},
}

// killLeader waits until a grant is on its way, which at a random moment thereafter may
// be anywhere between the ledger and the stripes, and kills the leader.
func killLeader(w *world, s *shares, r *rand.Rand) recovery {
	leader, before := w.leader()
	eventually(w.tb, "the leader moves shares", func() bool {
		before = w.status(leader)
		return before.Leadership.Serving && before.moving()
	})
	pause(w.tb, between(r, 0, 150*time.Millisecond))
	killed := w.now()
	w.coordinators[leader].kill(w.tb)
	out := w.takenOver(s, leader, before.Leadership.Epoch, killed)
	pause(w.tb, between(r, 0, time.Second))
	w.coordinators[leader].launch(w.tb)
	return out
}

// stopLeader makes a leader that does not know that it was replaced.
func stopLeader(w *world, s *shares, _ *rand.Rand) recovery {
	leader, before := w.leader()
	stopped := w.now()
	w.coordinators[leader].signal(w.tb, syscall.SIGSTOP)
	out := w.takenOver(s, leader, before.Leadership.Epoch, stopped)
	w.coordinators[leader].signal(w.tb, syscall.SIGCONT)
	return out
}

// cutLeaderFromPostgres leaves a leader that regions still reach, and that cannot write.
func cutLeaderFromPostgres(w *world, s *shares, r *rand.Rand) recovery {
	leader, before := w.leader()
	cut := w.now()
	l := w.postgres[leader]
	mend := func() { l.find(w.tb, requests) }
	if r.IntN(2) == 0 {
		l.refuse()
		mend = func() { l.accept(w.tb) }
	} else {
		l.lose(w.tb, requests)
	}
	out := w.takenOver(s, leader, before.Leadership.Epoch, cut)
	mend()
	return out
}

// takenOver waits until the other coordinator leads under a later epoch and some region
// has applied a version after that.
func (w *world) takenOver(s *shares, lost int, epoch, from int64) recovery {
	out := recovery{from: from}
	since := func() float64 { return float64(w.now()-from) / 1e6 }
	var leads int64
	if !eventually(w.tb, "the other coordinator leads", func() bool {
		st := w.status(1 - lost)
		leads = w.now()
		return st.Leadership.Serving && st.Leadership.Epoch > epoch
	}) {
		return out
	}
	w.load.keepMoving(true)
	defer w.load.keepMoving(false)
	heard := make([]float64, 0, len(w.sites))
	out.ok = eventually(w.tb, "shares move under the new leader", func() bool {
		for n := w.hears(w.status(1 - lost)); len(heard) < n; {
			heard = append(heard, since())
		}
		at, changed := s.changedAfter(leads)
		out.to = at
		return changed
	})
	w.tb.Logf("%.1f s after the fault the other coordinator led, after %.1f s it had heard each region that it has, after %.1f s shares moved",
		float64(leads-from)/1e6, heard, out.took().Seconds())
	return out
}

// cutRegion loses everything both ways, or refuses connections.
func cutRegion(w *world, _ *shares, r *rand.Rand) recovery {
	at := w.sites[r.IntN(len(w.sites))]
	refused := r.IntN(2) == 0
	for _, l := range at.coordinators {
		if refused {
			l.refuse()
			continue
		}
		l.lose(w.tb, requests)
		l.lose(w.tb, answers)
	}
	pause(w.tb, between(r, 500*time.Millisecond, 4*time.Second))
	for _, l := range at.coordinators {
		if refused {
			l.accept(w.tb)
			continue
		}
		l.find(w.tb, requests)
		l.find(w.tb, answers)
	}
	return w.heardAgain(at)
}

func loseReports(w *world, _ *shares, r *rand.Rand) recovery { return w.loseOneWay(requests, r) }

// loseAnswers is the harder of the two: the coordinator goes on granting to a region that
// hears nothing, and the region's reports acknowledge nothing.
func loseAnswers(w *world, _ *shares, r *rand.Rand) recovery { return w.loseOneWay(answers, r) }

func (w *world) loseOneWay(way direction, r *rand.Rand) recovery {
	at := w.sites[r.IntN(len(w.sites))]
	for _, l := range at.coordinators {
		l.lose(w.tb, way)
	}
	pause(w.tb, between(r, 500*time.Millisecond, 4*time.Second))
	for _, l := range at.coordinators {
		l.find(w.tb, way)
	}
	return w.heardAgain(at)
}

// stopRegion stops a region's process between any two of its instructions.
func stopRegion(w *world, _ *shares, r *rand.Rand) recovery {
	at := w.sites[r.IntN(len(w.sites))]
	at.node.signal(w.tb, syscall.SIGSTOP)
	pause(w.tb, between(r, 300*time.Millisecond, 4*time.Second))
	at.node.signal(w.tb, syscall.SIGCONT)
	return w.heardAgain(at)
}

func cutRedis(w *world, _ *shares, r *rand.Rand) recovery {
	at := w.sites[r.IntN(len(w.sites))]
	for _, l := range at.redis {
		l.refuse()
	}
	pause(w.tb, between(r, 500*time.Millisecond, 3*time.Second))
	for _, l := range at.redis {
		l.accept(w.tb)
	}
	return w.heardAgain(at)
}

// heardAgain waits until a region that was out of reach has reported after now.
func (w *world) heardAgain(at *site) recovery {
	mended := time.Now()
	out := recovery{from: w.now()}
	out.ok = eventually(w.tb, at.name+" reports again", func() bool {
		for i := range w.coordinators {
			if st := w.status(i); st.Leadership.Serving && st.heard(at.name).After(mended) {
				out.to = w.now()
				return true
			}
		}
		return false
	})
	return out
}
