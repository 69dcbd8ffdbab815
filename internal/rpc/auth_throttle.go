package rpc

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/quota"
)

const (
	// attemptBurst failed attempts are free, then attemptsPerMinute a minute.
	attemptBurst      = 10
	attemptsPerMinute = 10
	throttleRetry     = time.Minute / attemptsPerMinute
	// maxAddresses bounds the addresses with a bucket of their own; while there
	// are more, all share the overflowBuckets.
	maxAddresses    = 10_000
	overflowBuckets = 64
	sweepInterval   = time.Second
)

// errThrottled: too many failed attempts came from an address.
var errThrottled = fmt.Errorf("%w: too many failed attempts", quota.ErrUnauthenticated)

// throttle limits failed attempts per address, by the same token bucket that
// policies are made of.
type throttle struct {
	now  func() time.Time
	seed maphash.Seed

	mu    sync.Mutex
	model *quota.Model
	swept time.Time
}

func newThrottle(now func() time.Time) *throttle {
	return &throttle{now: now, seed: maphash.MakeSeed(), model: quota.NewModel()}
}

// ok reports whether an address has attempts left.
func (t *throttle) ok(addr string) bool { return t.acquire(addr, true) }

// spend takes an attempt and reports whether there was one.
func (t *throttle) spend(addr string) bool { return t.acquire(addr, false) }

func (t *throttle) acquire(addr string, peek bool) bool {
	key := addressKey(addr)
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.model.Len() >= maxAddresses {
		if now.Sub(t.swept) >= sweepInterval {
			t.swept = now
			t.model.Expire(now.UnixMicro())
		}
		if t.model.Len() >= maxAddresses {
			key = fmt.Sprintf("overflow %d", maphash.String(t.seed, key)%overflowBuckets)
		}
	}
	limit := quota.Limit{
		Capacity: attemptBurst * quota.Token, Refill: attemptsPerMinute * quota.Token, Period: time.Minute,
	}
	outcome, err := t.model.Acquire(now.UnixMicro(), quota.Attempt{
		Cost: quota.Token, Peek: peek,
		Entries: []quota.Entry{{Bucket: key, Algorithm: quota.TokenBucket, Limit: limit, Base: limit}},
	})
	return err == nil && outcome.Allowed
}

// addressKey is what attempts are counted by: an IPv4 address, or the /64 that
// one IPv6 host may have to itself.
func addressKey(addr string) string {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return "unknown"
	}
	ip := ap.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	prefix, err := ip.Prefix(64)
	if err != nil {
		return "unknown"
	}
	return prefix.String()
}

// Why an attempt failed.
const (
	failMissing     = "missing"
	failMalformed   = "malformed"
	failUnknown     = "unknown"
	failThrottled   = "throttled"
	failForbidden   = "forbidden"
	failUnavailable = "unavailable"
)

type authMetrics struct{ failures map[string]prometheus.Counter }

func newAuthMetrics(reg prometheus.Registerer) (*authMetrics, error) {
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_auth_failures_total",
		Help: "Calls refused because of who made them, by reason. Throttled ones came from an address with too many failures.",
	}, []string{"reason"})
	if err := reg.Register(failures); err != nil {
		return nil, err
	}
	m := &authMetrics{make(map[string]prometheus.Counter)}
	for _, r := range []string{failMissing, failMalformed, failUnknown, failThrottled, failForbidden, failUnavailable} {
		m.failures[r] = failures.WithLabelValues(r)
	}
	return m, nil
}

func (m *authMetrics) failure(reason string) { m.failures[reason].Inc() }
