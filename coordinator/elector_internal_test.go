package coordinator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

const simStep = 10 * time.Millisecond

// electionMutant is one way to break the election. The schedules must notice each.
type electionMutant struct {
	name string
	// claimAlways: the database does not compare what a claim has seen.
	claimAlways bool
	// beatAlways: the database does not compare the tenure of a beat.
	beatAlways bool
	// fromReceipt counts the right from the answer to a beat.
	fromReceipt bool
	// wildClocks run by a fifth fast or slow.
	wildClocks bool
	// sleepyResign gives the lead back before the right has ended.
	sleepyResign bool
}

// simElection is a row in a database, candidates and a network, in virtual time.
// Everything in it follows from the seed.
type simElection struct {
	rng        *rand.Rand
	mutant     electionMutant
	faults     bool
	now        time.Duration // true time
	row        Leader
	candidates []*simCandidate
	calls      []*simCall
	tenures    int
	outage     time.Duration // the database does nothing until then
	takeovers  int
}

type simCandidate struct {
	elector *elector
	rate    float64
	offset  time.Duration
	paused  time.Duration
	pending *simCall
	yielded time.Duration // by a mutant, not yet known to the elector
}

// simCall is under way until executed, and its answer until answered. Negative is never.
type simCall struct {
	do                do
	mine, seen        Leader
	sent              time.Time // by the caller's clock
	execute, answered time.Duration
	executed          bool
	row               Leader
	err               error
}

func newSimElection(seed uint64, n int, mu electionMutant) *simElection {
	w := &simElection{rng: rand.New(rand.NewPCG(seed, 11)), mutant: mu, faults: true}
	drift := clockDrift / 1e6
	if mu.wildClocks {
		drift = 0.2
	}
	for i := range n {
		c := &simCandidate{rate: 1 + drift*(2*w.rng.Float64()-1), offset: time.Duration(w.rng.Int64N(int64(time.Hour)))}
		c.elector = newElector(c.clock(0), fmt.Sprint("c", i), "", func() string {
			w.tenures++
			return fmt.Sprint("t", w.tenures)
		})
		w.candidates = append(w.candidates, c)
	}
	return w
}

// clock is what the candidate's own clock shows.
func (c *simCandidate) clock(now time.Duration) time.Time {
	return time.Unix(0, 0).Add(c.offset + time.Duration(float64(now)*c.rate))
}

// delay is how long a message takes; negative when it is lost.
func (w *simElection) delay() time.Duration {
	switch p := w.rng.Float64(); {
	case w.faults && p < 0.08:
		return -1
	case w.faults && p < 0.16:
		return time.Duration(w.rng.Int64N(int64(12 * time.Second)))
	}
	return time.Millisecond + time.Duration(w.rng.Int64N(int64(100*time.Millisecond)))
}

func (w *simElection) send(c *simCall) {
	if d := w.delay(); d >= 0 {
		c.execute = max(w.now+d, w.outage)
		w.calls = append(w.calls, c)
	}
	c.answered = -1
}

func (w *simElection) step() {
	w.now += simStep
	if w.faults && w.rng.Float64() < 0.0002 {
		w.outage = w.now + time.Duration(w.rng.Int64N(int64(20*time.Second)))
	}
	open := w.calls[:0]
	for _, c := range w.calls {
		if c.execute > w.now {
			open = append(open, c)
			continue
		}
		w.execute(c)
	}
	w.calls = open
	for _, c := range w.candidates {
		if w.faults && w.rng.Float64() < 0.0005 {
			c.paused = w.now + time.Duration(w.rng.Int64N(int64(20*time.Second)))
		}
		if w.now >= c.paused {
			w.run(c)
		}
	}
}

// execute does what the statements of the database do.
func (w *simElection) execute(c *simCall) {
	c.executed = true
	if d := w.delay(); d >= 0 {
		c.answered = w.now + d
	}
	switch {
	case c.do == doLook:
		c.row = w.row
	case c.do == doClaim && (w.mutant.claimAlways || w.row.Tenure == c.mine.Tenure || w.row.Tenure == c.seen.Tenure && w.row.Beat == c.seen.Beat):
		if w.row.Tenure != c.mine.Tenure {
			w.takeovers++
		}
		w.row = Leader{Tenure: c.mine.Tenure, Holder: c.mine.Holder, Beat: w.row.Beat + 1}
	case c.do == doBeat && (w.mutant.beatAlways || w.row.Tenure == c.mine.Tenure):
		w.row.Beat++
	case c.do == doNothing: // resign
		if w.row.Tenure == c.mine.Tenure {
			w.row = Leader{Beat: w.row.Beat + 1}
		}
	default:
		c.err = quota.ErrFenced
	}
}

var errNoAnswer = errors.New("no answer")

// run is the driver of a candidate.
func (w *simElection) run(c *simCandidate) {
	now := c.clock(w.now)
	if p := c.pending; p != nil {
		answered := p.executed && p.answered >= 0 && p.answered <= w.now
		if !answered && now.Sub(p.sent) < callTimeout {
			return
		}
		c.pending = nil
		w.answer(c, p, now, answered)
	}
	if c.yielded > 0 && w.now > c.yielded {
		c.yielded = 0
		c.elector.yield(now)
	}
	if w.faults && c.elector.leading && w.rng.Float64() < 0.0003 {
		w.resign(c)
	}
	if call, _ := c.elector.next(now); call != doNothing {
		c.pending = &simCall{do: call, mine: c.elector.claim(), seen: c.elector.seen, sent: now}
		w.send(c.pending)
	}
}

func (w *simElection) answer(c *simCandidate, p *simCall, now time.Time, answered bool) {
	err := p.err
	if !answered {
		err = errNoAnswer
	}
	sent := p.sent
	if w.mutant.fromReceipt {
		sent = now
	}
	switch p.do {
	case doLook:
		c.elector.looked(now, p.row, err)
	case doClaim:
		c.elector.claimed(sent, now, err)
	case doBeat:
		c.elector.beat(sent, now, err)
	case doNothing:
	}
}

func (w *simElection) resign(c *simCandidate) {
	tenure := c.elector.mine
	if w.mutant.sleepyResign {
		c.yielded = w.now + time.Second
	} else {
		c.elector.yield(c.clock(w.now))
	}
	w.send(&simCall{mine: Leader{Tenure: tenure}})
}

// senders counts those that may send. A paused one counts too: it may be about to.
func (w *simElection) senders() (n int, who *simCandidate) {
	for _, c := range w.candidates {
		if c.elector.maySend(c.clock(w.now)) {
			n, who = n+1, c
		}
	}
	return n, who
}

func runElection(seed uint64, mu electionMutant) (*simElection, error) {
	w := newSimElection(seed, 2+int(seed%2), mu)
	for range int(2 * time.Minute / simStep) {
		w.step()
		if n, _ := w.senders(); n > 1 {
			return w, fmt.Errorf("%d may send after %v", n, w.now)
		}
	}
	return w, nil
}

const electionSchedules = 300

func TestNeverTwoMaySend(t *testing.T) {
	takeovers := 0
	for seed := range uint64(electionSchedules) {
		w, err := runElection(seed, electionMutant{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		takeovers += w.takeovers
	}
	if takeovers < 3*electionSchedules {
		t.Errorf("%d takeovers in %d schedules: too quiet to see anything", takeovers, electionSchedules)
	}
}

func TestTheSchedulesNoticeBrokenElections(t *testing.T) {
	for _, mu := range []electionMutant{
		{name: "claim without comparing", claimAlways: true},
		{name: "beat without comparing", beatAlways: true},
		{name: "right counted from the answer", fromReceipt: true},
		{name: "clocks off by a fifth", wildClocks: true},
		{name: "resigned before the right ended", sleepyResign: true},
	} {
		t.Run(mu.name, func(t *testing.T) {
			for seed := range uint64(electionSchedules) {
				if _, err := runElection(seed, mu); err != nil {
					t.Logf("noticed by schedule %d: %v", seed, err)
					return
				}
			}
			t.Error("no schedule notices it")
		})
	}
}

// settle runs without faults until somebody may send, and returns who.
func (w *simElection) settle(t *testing.T, limit time.Duration) *simCandidate {
	t.Helper()
	for end := w.now + limit; w.now < end; {
		w.step()
		if n, c := w.senders(); n == 1 {
			return c
		}
	}
	t.Fatalf("nobody leads after %v", limit)
	return nil
}

// Whatever came before, a leader is found when the faults end, and its death costs
// less than 8 s.
func TestTheDeadAreSucceeded(t *testing.T) {
	const limit = 8 * time.Second
	var longest time.Duration
	for seed := range uint64(100) {
		w := newSimElection(seed, 3, electionMutant{})
		for range int(w.rng.Int64N(int64(time.Minute / simStep))) {
			w.step()
		}
		w.faults, w.outage = false, 0
		for _, c := range w.candidates {
			c.paused = 0
		}
		w.settle(t, 20*time.Second)
		for range 2000 + w.rng.IntN(200) { // every late message has arrived
			w.step()
		}
		leader := w.settle(t, simStep)
		leader.paused = 1 << 62
		died := w.now
		for leader.elector.maySend(leader.clock(w.now)) {
			w.step()
		}
		next := w.settle(t, limit-(w.now-died))
		if next == leader {
			t.Fatal("the dead lead")
		}
		longest = max(longest, w.now-died)
	}
	t.Logf("longest takeover %v", longest)
}

// A leader that resigns is succeeded within a look.
func TestTheResignedAreSucceededAtOnce(t *testing.T) {
	for seed := range uint64(20) {
		w := newSimElection(seed, 3, electionMutant{})
		w.faults = false
		leader := w.settle(t, time.Second)
		for range w.rng.IntN(1000) {
			w.step()
		}
		w.resign(leader)
		if next := w.settle(t, lookEvery+time.Second); next == leader {
			t.Fatal("it does not leave the lead to others")
		}
	}
}

// One without rivals keeps its tenure through an outage, and may send again after it.
func TestRightComesBack(t *testing.T) {
	w := newSimElection(1, 1, electionMutant{})
	w.faults = false
	leader := w.settle(t, time.Second)
	tenure := leader.elector.mine
	w.outage = w.now + 30*time.Second
	for w.now < w.outage-time.Second {
		w.step()
	}
	if n, _ := w.senders(); n != 0 {
		t.Fatal("it may send without a database")
	}
	if w.settle(t, 5*time.Second); leader.elector.mine != tenure {
		t.Fatal("it lost its tenure to nobody")
	}
}
