package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	// callTimeout bounds one call of an election: two that time out still leave
	// room for a third within SendRight.
	callTimeout = 2 * time.Second
	// Giving the lead back when stopping is tried this often; if it fails the others wait.
	resignTries   = 3
	resignTimeout = time.Second
	// maxEpoch is above every epoch that a region can have been told.
	maxEpoch = 1 << 62
)

// Election is where candidates agree on who leads. A call that ends with another
// error than quota.ErrFenced may have been executed, or be executed later.
type Election interface {
	// Look returns who leads.
	Look(ctx context.Context) (Leader, error)
	// Claim makes mine the leader if the leader is still seen, with the same beat,
	// or is mine already, and fails with quota.ErrFenced if not. It counts as a beat.
	Claim(ctx context.Context, mine, seen Leader) error
	// Beat shows that the holder of the tenure lives. It fails with
	// quota.ErrFenced when the tenure has ended.
	Beat(ctx context.Context, tenure string) error
	// Resign ends the tenure, if it has not ended, so that nobody leads.
	Resign(ctx context.Context, tenure string) error
	// Ledger returns the ledger for the holder of the tenure. Its Load fails with
	// quota.ErrFenced when the tenure has ended.
	Ledger(tenure string) Ledger
}

// CandidateConfig is what a candidate is made of. The Ledger of Config is not used.
type CandidateConfig struct {
	Config
	// Election is mandatory.
	Election Election
	// Name is what others call this coordinator, URL where regions reach it.
	Name, URL string
}

// NotLeaderError says that another coordinator is to be asked. It wraps quota.ErrUnavailable.
type NotLeaderError struct {
	// URL is that of the leader; empty when none is known, or when this one is about
	// to take over or has lost touch with the database.
	URL string
}

func (e *NotLeaderError) Error() string {
	if e.URL == "" {
		return "this coordinator cannot answer for the leader now and knows of no other that can; try again, also elsewhere"
	}
	return "this coordinator does not lead; the leader is " + e.URL
}

func (e *NotLeaderError) Unwrap() error { return quota.ErrUnavailable }

// Candidate is a coordinator while it leads, and waits for the lead while another
// does. All methods may be called concurrently.
//
// It answers a report only while it has the right to send (see elector) when the
// answer is ready. An answer that is held up behind that, in this process or on the
// way, is one that was decided in time and arrives late. What it grants is in the
// ledger, and a region that follows a later epoch refuses it.
type Candidate struct {
	cfg     CandidateConfig
	log     *slog.Logger
	metrics candidateMetrics

	mu      sync.Mutex
	elector *elector
	// serving is the coordinator of the present term, once it has loaded the ledger.
	serving *Coordinator
	// policies are those of the newest revision handed in, if configured.
	policies   []*quota.Policy
	revision   int64
	configured bool

	// doubts are terms that a report or a commit has shown to be overtaken.
	doubts chan doubt
}

// doubt says that a coordinator was refused by its ledger, or that a region follows
// the epoch above it.
type doubt struct {
	serving *Coordinator
	above   quota.Epoch
}

// NewCandidate returns a candidate. It does no I/O.
func NewCandidate(cfg CandidateConfig) (*Candidate, error) {
	if cfg.Election == nil {
		return nil, fmt.Errorf("coordinator: Election is missing: %w", quota.ErrInvalid)
	}
	cfg.Ledger = cfg.Election.Ledger("")
	var err error
	if cfg.Config, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	c := &Candidate{
		cfg: cfg, log: cfg.Logger.With("candidate", cfg.Name), doubts: make(chan doubt, 1),
		elector: newElector(cfg.Now(), cfg.Name, cfg.URL, rand.Text),
	}
	c.metrics = newCandidateMetrics(cfg.Registerer, c)
	return c, nil
}

// SetPolicies makes the policies of a revision those to split, now and whenever this
// candidate takes the lead. The policies must not be changed afterwards. It fails
// with quota.ErrConflict when a later revision is in force.
func (c *Candidate) SetPolicies(revision int64, policies []*quota.Policy) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.configured && revision < c.revision {
		return fmt.Errorf("revision %d comes after revision %d: %w", revision, c.revision, quota.ErrConflict)
	}
	c.policies, c.revision, c.configured = policies, revision, true
	if c.serving == nil {
		return nil
	}
	return c.serving.SetPolicies(revision, policies)
}

// Report is Coordinator.Report while this candidate leads, and else fails with a
// NotLeaderError.
func (c *Candidate) Report(ctx context.Context, rep quota.Report) (quota.Instructions, error) {
	serving, err := c.right(nil)
	if err != nil {
		return quota.Instructions{}, err
	}
	in, err := serving.Report(ctx, rep)
	// The commit may have taken long, or the process a pause.
	if _, err := c.right(serving); err != nil {
		return quota.Instructions{}, err
	}
	if errors.Is(err, quota.ErrFenced) && rep.Epoch < maxEpoch {
		c.doubt(serving, rep.Epoch)
	}
	return in, err
}

// right returns the coordinator that may answer now, which must be the one given
// unless that is nil.
func (c *Candidate) right(same *Coordinator) (*Coordinator, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving == nil || same != nil && c.serving != same || !c.elector.maySend(c.cfg.Now()) {
		return nil, &NotLeaderError{URL: c.elsewhereLocked()}
	}
	return c.serving, nil
}

// elsewhereLocked returns the URL of the leader if it is somebody else.
func (c *Candidate) elsewhereLocked() string {
	if c.elector.leading || !c.elector.ever || c.elector.seen.Tenure == "" {
		return ""
	}
	return c.elector.seen.URL
}

func (c *Candidate) doubt(serving *Coordinator, seen quota.Epoch) {
	d := doubt{serving: serving}
	if seen > serving.epoch() {
		d.above = seen
	}
	select {
	case c.doubts <- d:
	default: // one is enough
	}
}

// Run takes part in the election, and leads when elected, until the context ends,
// which is no error. It then gives the lead back. It must not run twice at once.
func (c *Candidate) Run(ctx context.Context) error {
	var t *term
	defer func() { c.stop(ctx, t) }()
	for ctx.Err() == nil {
		t = c.follow(ctx, t)
		c.mu.Lock()
		call, wait := c.elector.next(c.cfg.Now())
		c.mu.Unlock()
		if call != doNothing {
			c.call(ctx, call)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case d := <-c.doubts:
			t = c.again(ctx, t, d)
		case err := <-t.failure():
			c.yield(ctx, t, err)
			t = nil
		}
		timer.Stop()
	}
	return nil
}

// call makes one call of the election.
func (c *Candidate) call(ctx context.Context, call do) {
	c.mu.Lock()
	mine, seen := c.elector.claim(), c.elector.seen
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var (
		l    Leader
		err  error
		sent = c.cfg.Now()
	)
	switch call {
	case doLook:
		l, err = c.cfg.Election.Look(ctx)
	case doClaim:
		err = c.cfg.Election.Claim(ctx, mine, seen)
	case doBeat:
		err = c.cfg.Election.Beat(ctx, mine.Tenure)
	case doNothing:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	switch call {
	case doLook:
		c.elector.looked(now, l, err)
	case doClaim:
		c.elector.claimed(sent, now, err)
		c.metrics.claimed(err)
	case doBeat:
		c.elector.beat(sent, now, err)
	case doNothing:
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		c.log.Warn("a call of the election failed", "call", call, "error", err)
	}
}

// follow begins and ends terms as the elector leads and does not.
func (c *Candidate) follow(ctx context.Context, t *term) *term {
	c.mu.Lock()
	leading, tenure := c.elector.leading, c.elector.mine
	c.mu.Unlock()
	switch {
	case leading && t == nil:
		c.log.Info("elected; loading the ledger", "tenure", tenure)
		return c.begin(ctx, tenure, 0)
	case !leading && t != nil:
		c.log.Warn("another coordinator leads")
		t.end()
		return nil
	}
	return t
}

// again begins the ledger's next epoch in the same tenure. If the tenure has ended,
// which is why the ledger refused, loading is refused as well.
func (c *Candidate) again(ctx context.Context, t *term, d doubt) *term {
	c.mu.Lock()
	stale := t == nil || c.serving != d.serving
	c.mu.Unlock()
	if stale {
		return t
	}
	c.log.Warn("the epoch was overtaken; loading the ledger again", "above", d.above)
	t.end()
	return c.begin(ctx, t.tenure, d.above)
}

// yield gives up the lead because the term has failed.
func (c *Candidate) yield(ctx context.Context, t *term, why error) {
	c.log.Warn("gives up the lead", "error", why)
	t.end()
	c.resign(ctx, 1)
}

// stop ends everything; the given context has ended.
func (c *Candidate) stop(ctx context.Context, t *term) {
	if t != nil {
		// The right to send ends with the elector's, in resign; nothing is answered meanwhile.
		t.end()
	}
	c.resign(context.WithoutCancel(ctx), resignTries)
}

// resign gives the lead back, if there is any. The right to send ends before.
func (c *Candidate) resign(ctx context.Context, tries int) {
	c.mu.Lock()
	tenure := c.elector.yield(c.cfg.Now())
	c.mu.Unlock()
	if tenure == "" {
		return
	}
	var err error
	for range tries {
		if err = c.resignOnce(ctx, tenure); err == nil {
			return
		}
	}
	c.log.Warn("the lead could not be given back; the others will wait", "wait", takeoverAfter, "error", err)
}

func (c *Candidate) resignOnce(ctx context.Context, tenure string) error {
	ctx, cancel := context.WithTimeout(ctx, resignTimeout)
	defer cancel()
	return c.cfg.Election.Resign(ctx, tenure)
}
