package regional

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirhq/weir/quota"
)

// decide runs a plan: ask all groups at once, wait, let failure modes speak for
// those that did not answer, and settle so that either every policy is charged
// or none. It fails only when the caller has gone.
func (e *Engine) decide(ctx context.Context, p *plan, start time.Time) error {
	longest := time.Duration(0)
	for i := range p.groups {
		longest = max(longest, p.groups[i].deadline)
	}
	for i := range p.groups {
		g := &p.groups[i]
		g.call = e.ask(ctx, p.attempt(g), longest)
	}
	timer, _ := e.timers.Get().(*time.Timer) // the pool holds nothing else
	defer func() {
		timer.Stop()
		e.timers.Put(timer)
	}()
	for i := range p.groups {
		g := &p.groups[i]
		timer.Reset(time.Until(start.Add(g.deadline)))
		g.failure = g.call.wait(ctx, timer)
		if g.failure != nil {
			e.failed(g)
		}
	}
	gone := ctx.Err() != nil && p.anyFailed()
	if !gone {
		e.conclude(p)
	}
	e.settleAll(ctx, p, timer, start.Add(longest))
	if gone {
		return fmt.Errorf("check given up: %w", context.Cause(ctx))
	}
	return nil
}

func (p *plan) anyFailed() bool {
	for i := range p.groups {
		if p.groups[i].failure != nil {
			return true
		}
	}
	return false
}

// failed notes that a group's call is of no use to its check.
func (e *Engine) failed(g *group) {
	kind := failureKind(g.failure)
	e.metrics.storeFailures.WithLabelValues(kind).Inc()
	switch kind {
	case kindCanceled: // the caller left; the store is not to blame
	case kindUninitialised:
		select {
		case e.uninitialised <- struct{}{}:
		default: // the agent has been told
		}
		fallthrough
	default:
		e.log.warn("store did not decide; failure modes do", "kind", kind, "stripe", g.stripe, "error", g.failure)
	}
}

// conclude turns answers and failures into decisions and the overall verdict.
func (e *Engine) conclude(p *plan) {
	p.allowed = !p.doomed
	answered, replays := 0, 0
	for i := range p.groups {
		g := &p.groups[i]
		if g.failure != nil {
			continue
		}
		answered++
		if g.call.outcome.Replayed {
			replays++
		}
		for k, at := range g.steps {
			s := &p.steps[at]
			s.verdict = g.call.outcome.Verdicts[k]
			s.decided()
			if s.state.demand != nil {
				e.own.note(s.bucket, s.verdict.Tracked)
			}
			// What a tracked key was decided under says nothing of its policy's share.
			if s.state.demand != nil && !s.verdict.Tracked && s.state.seen.Load() != s.verdict.Version {
				s.state.seen.Store(s.verdict.Version)
			}
		}
	}
	p.replayed = answered > 0 && replays == len(p.groups)
	p.tally()
	for i := range p.groups {
		if g := &p.groups[i]; g.failure != nil {
			for _, at := range g.steps {
				fallback(&p.steps[at])
			}
		}
	}
	p.tally()
	e.localFallback(p)
}

// tally lowers the overall verdict to what the decisions made so far allow.
func (p *plan) tally() {
	for i := range p.steps {
		d := &p.steps[i].decision
		if d.Reason != quota.ReasonNone && !d.Shadow {
			p.allowed = false
		}
	}
}

// decided fills the decision from the store's verdict.
func (s *step) decided() {
	d, v := &s.decision, &s.verdict
	d.Source = quota.SourceStore
	d.Remaining = min(max(v.Level.Whole(), 0), d.Limit)
	d.ResetAfter = v.ResetAfter
	if d.Reason != quota.ReasonNone {
		return // denied before the store was asked
	}
	switch {
	case v.Allowed:
		d.Allowed = true
	case v.NeverFits:
		d.Reason = quota.ReasonNeverFits
	default:
		d.Reason, d.RetryAfter = quota.ReasonLimit, v.RetryAfter
	}
}

// settleAll makes the outcome true: what was taken for a check that is denied
// goes back, now or when a late answer comes.
func (e *Engine) settleAll(ctx context.Context, p *plan, timer *time.Timer, deadline time.Time) {
	p.calls = p.calls[:0]
	for i := range p.groups {
		g := &p.groups[i]
		if g.failure != nil {
			if g.call.abandoned {
				e.settle(g.call, p.allowed) //nolint:contextcheck // a give-back outlives the check
			}
			continue
		}
		if p.allowed || !g.call.charged() {
			continue
		}
		p.calls = append(p.calls, g.call)
		for _, at := range g.steps {
			s := &p.steps[at]
			if s.verdict.Allowed {
				s.decision.Remaining = min((s.verdict.Level + p.req.Cost).Whole(), s.decision.Limit)
			}
		}
	}
	if len(p.calls) > 0 {
		timer.Reset(time.Until(deadline))
		e.giveBackAll(ctx, p.calls, timer)
	}
}

// record counts and logs the decisions of a check that was meant to charge.
func (e *Engine) record(ctx context.Context, p *plan) {
	debug := e.log.Enabled(ctx, slog.LevelDebug)
	for i := range p.steps {
		s := &p.steps[i]
		d := &s.decision
		e.metrics.count(s.state.counters, d)
		var hash uint64
		if s.bucket != "" {
			hash = hashKey(s.bucket)
		}
		if d.Reason == quota.ReasonLimit && e.returning.slot(hash).Load() > 0 {
			e.metrics.falseDenials.Inc()
		}
		if debug && !d.Allowed {
			e.log.LogAttrs(ctx, slog.LevelDebug, "denied", slog.String("policy", d.PolicyID),
				slog.String("reason", d.Reason.String()), slog.String("source", d.Source.String()),
				slog.String("bucket", s.bucket), slog.Bool("shadow", d.Shadow))
		}
		// A cost that can never fit is no demand that a larger share could serve,
		// and a repeat was counted the first time.
		if s.state.demand != nil && s.asks && p.req.Cost > 0 && d.Reason != quota.ReasonNeverFits && !p.replayed {
			o := s.offer(hash, p.req.Cost, p.allowed && d.Allowed)
			if o.short = o.kind != quota.DemandShared && e.isShort(s); o.short {
				select {
				case e.short <- struct{}{}:
				default:
				}
			}
			s.state.demand.add(o)
		}
	}
}
