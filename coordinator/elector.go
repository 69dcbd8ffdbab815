package coordinator

import (
	"errors"
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	// SendRight is how long a leader may send after it sent a beat that succeeded,
	// on its own clock.
	SendRight = 5 * time.Second
	// beatEvery is the time between beats, each counted from when it was sent.
	beatEvery = 1500 * time.Millisecond
	// clockDrift is by how much the rate of a clock may be off, either way, in
	// millionths.
	clockDrift = 500
	// takeoverMargin is what a candidate waits beyond what the clocks demand.
	takeoverMargin = 500 * time.Millisecond
	// lookEvery is how often a candidate looks at the leader's beat, and retryEvery
	// how soon a call is repeated that had no answer.
	lookEvery  = 500 * time.Millisecond
	retryEvery = 500 * time.Millisecond
	// yieldFor is how long somebody who gave up the lead leaves it to others.
	yieldFor = time.Second
)

// takeoverAfter is how long a candidate must have seen a beat unchanged, on its own
// clock: 5 s * (1+rho)/(1-rho) + 0.5 s. The holder's right ends at the latest
// SendRight/(1-rho) of true time after its beat was sent, so after it was seen, and
// the candidate's clock shows at most 1+rho times the true time.
const takeoverAfter = SendRight*(1e6+clockDrift)/(1e6-clockDrift) + takeoverMargin

// Leader is who leads, as everybody can read it.
type Leader struct {
	// Tenure is an id of one term of one holder; nobody ever uses it again. It is
	// empty when nobody leads.
	Tenure string
	// Holder names the coordinator, URL is where it can be reached.
	Holder, URL string
	// Beat is another one after each change.
	Beat int64
	// Epoch is the ledger's.
	Epoch quota.Epoch
}

// do is a call that an elector wants made.
type do int

const (
	doNothing do = iota
	doLook
	doClaim
	doBeat
)

func (d do) String() string { return [...]string{"nothing", "look", "claim", "beat"}[d] }

// elector decides when a candidate looks, claims and beats, and whether it may
// send. It has no clock and does no I/O: its driver makes one call at a time and
// tells when it was sent and what came of it. All times are the candidate's own.
//
//	following --claim granted--> leading --beat refused, yield--> following
//	    ^-------claim refused-------|
//
// Why no two may send at once: a claim replaces one beat that the claimant has
// seen, for at least takeoverAfter unchanged, or none, after its holder resigned.
// Every beat of the holder that succeeded is that beat or an earlier one, since the
// claim would have failed otherwise, and was sent before the claimant saw it; so
// its right has ended (takeoverAfter). A beat that reaches the database after the
// claim fails and gives no right. The right counts from before the sending of a
// beat, so that a late answer, or a pause of the process, only shortens it. The
// sum does not use when a statement was executed, nor any clock twice.
//
// The right to send lapses and comes back while the tenure lasts: as long as
// nobody else has claimed, a beat that succeeds shows that nobody else led.
type elector struct {
	self      Leader
	newTenure func() string

	leading bool
	// mine is the tenure held or asked for; empty when following.
	mine string
	// seen is the row last read, since when it was first read as it is.
	seen  Leader
	since time.Time
	ever  bool // seen holds something
	// until is when the right to send ends. beaten is when the last beat that
	// succeeded was sent.
	until, beaten time.Time
	// due is when the next call is.
	due time.Time
}

func newElector(now time.Time, holder, url string, newTenure func() string) *elector {
	return &elector{self: Leader{Holder: holder, URL: url}, newTenure: newTenure, due: now}
}

// next returns the call to make, or how long to wait for it.
func (e *elector) next(now time.Time) (call do, wait time.Duration) {
	if wait := e.due.Sub(now); wait > 0 {
		return doNothing, wait
	}
	switch {
	case e.leading:
		return doBeat, 0
	case e.mine != "":
		return doClaim, 0
	}
	return doLook, 0
}

// claim returns what a claim writes.
func (e *elector) claim() Leader {
	l := e.self
	l.Tenure = e.mine
	return l
}

// looked takes in what a look returned.
func (e *elector) looked(now time.Time, l Leader, err error) {
	if err != nil {
		e.due = now.Add(retryEvery)
		return
	}
	if !e.ever || l.Tenure != e.seen.Tenure || l.Beat != e.seen.Beat {
		e.since = now
	}
	e.seen, e.ever, e.due = l, true, now.Add(lookEvery)
	if l.Tenure == "" || now.Sub(e.since) >= takeoverAfter {
		e.mine, e.due = e.newTenure(), now
	} else if left := takeoverAfter - now.Sub(e.since); left < lookEvery {
		e.due = now.Add(left)
	}
}

// claimed takes in what became of a claim. One without an answer is asked again in
// the same words, which succeed if the first have.
func (e *elector) claimed(sent, now time.Time, err error) {
	switch {
	case err == nil:
		e.leading = true
		e.renew(sent)
	case errors.Is(err, quota.ErrFenced):
		e.follow(now)
	default:
		e.due = now.Add(retryEvery)
	}
}

// beat takes in what became of a beat.
func (e *elector) beat(sent, now time.Time, err error) {
	switch {
	case !e.leading:
	case err == nil:
		e.renew(sent)
	case errors.Is(err, quota.ErrFenced):
		e.follow(now)
	default:
		e.due = now.Add(retryEvery)
	}
}

func (e *elector) renew(sent time.Time) {
	e.beaten, e.until, e.due = sent, sent.Add(SendRight), sent.Add(beatEvery)
}

// follow ends every right and begins to watch anew.
func (e *elector) follow(now time.Time) {
	e.leading, e.mine, e.ever, e.until, e.due = false, "", false, time.Time{}, now
}

// yield gives up and returns the tenure to give back, which is empty when there is
// none. Nothing may be sent from then on.
func (e *elector) yield(now time.Time) string {
	tenure := e.mine
	e.follow(now)
	e.due = now.Add(yieldFor)
	return tenure
}

// maySend reports whether this candidate is the one that may send.
func (e *elector) maySend(now time.Time) bool { return e.leading && now.Before(e.until) }
