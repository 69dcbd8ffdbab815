package regional

import (
	"time"

	"github.com/weirhq/weir/quota"
)

const (
	// shortBucket is the part of its share under which the level of a token bucket makes
	// its region ask for more at once, shortLog the demand for which a log must have
	// free slots (B1). A log's share stands for its demand: in its window it can admit
	// no more.
	shortBucket = 0.35
	shortLog    = 300 * time.Millisecond
)

// isShort reports whether the key has to have more before the next rebalance: it was
// denied by its limit, or soon will be.
func (e *Engine) isShort(s *step) bool {
	if s.decision.Source != quota.SourceStore {
		return false
	}
	if s.decision.Reason == quota.ReasonLimit {
		return true
	}
	policy, capacity := s.match.Policy, s.state.currentShare().Capacity
	if s.verdict.Tracked {
		own, known := e.own.share(s.bucket)
		if !known {
			return false // only the agent's node knows what share the key has
		}
		capacity = own.Capacity
	}
	part := shortBucket
	if policy.Algorithm == quota.SlidingLog {
		part = min(shortBucket, shortLog.Seconds()/max(policy.Limit.Period.Seconds(), 1e-3))
	}
	return float64(s.verdict.Level) < part*s.scaled(capacity)
}

// hurry is the agent's ear for keys that are short: a wake-up, no more often than twice
// in a report interval, on the node that reports for its region.
func (a *Agent) hurry() <-chan struct{} {
	if a.hurried || !a.wasHolder || a.cfg.Coordinator == nil || a.failures > 0 {
		return nil
	}
	return a.engine.short
}

// untilHurry is how long the next urgent report has to wait.
func (a *Agent) untilHurry() time.Duration {
	return max(0, a.cfg.Interval/2-time.Since(a.taken))
}
