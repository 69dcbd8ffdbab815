package regional

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weirhq/weir/quota"
)

// The kinds of store failure that metrics tell apart.
const (
	kindDeadline      = "deadline"
	kindOverloaded    = "overloaded"
	kindUninitialised = "uninitialised"
	kindCanceled      = "canceled"
	kindUnavailable   = "unavailable"
	kindOther         = "other"
)

var (
	failureKinds  = []string{kindDeadline, kindOverloaded, kindUninitialised, kindCanceled, kindUnavailable, kindOther}
	checkSources  = [...]quota.Source{quota.SourceNone, quota.SourceStore, quota.SourceLease, quota.SourceFallback}
	denialReasons = [...]quota.Reason{
		quota.ReasonNone, quota.ReasonLimit, quota.ReasonNeverFits, quota.ReasonStoreUnavailable, quota.ReasonMissingKey,
	}
)

// degradedFor is how long after a fallback decision a node calls itself degraded.
const degradedFor = 10 * time.Second

type metrics struct {
	decisions     *prometheus.CounterVec
	duration      prometheus.Histogram
	storeFailures *prometheus.CounterVec
	lateAnswers   prometheus.Counter
	falseDenials  prometheus.Counter
	giveBacks     struct{ done, failed, dropped prometheus.Counter }
	demandDropped prometheus.Counter
	demandErrors  prometheus.Counter

	localEvicted  prometheus.Counter
	localOverflow prometheus.Counter

	reports      struct{ ok, failed prometheus.Counter }
	refused      prometheus.Counter
	keysTracked  prometheus.Gauge
	keysLeftOut  prometheus.Counter
	reportTime   prometheus.Histogram
	grantLag     prometheus.Histogram
	isAgent      prometheus.Gauge
	lapses       prometheus.Counter
	lastFallback atomic.Int64 // nanoseconds since start, 0 never
	lastReport   atomic.Int64
	lastApplied  atomic.Int64
	start        time.Time

	// mu makes "create a policy's series" and "its policy is gone" exclude each other.
	mu sync.Mutex
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{start: time.Now()}
	m.decisions = f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_decisions_total",
		Help: "Decisions by policy, outcome (allowed, denied, shadow_denied), where they were made and why they denied.",
	}, []string{"policy", "decision", "source", "reason"})
	m.duration = f.NewHistogram(prometheus.HistogramOpts{
		Name: "weir_decision_duration_seconds",
		Help: "Time from a check's arrival at the engine to its answer.",
		Buckets: []float64{
			50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1,
		},
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  100,
		NativeHistogramMinResetDuration: time.Hour,
	})
	m.storeFailures = f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_store_failures_total", Help: "Store calls that a check could not use, by kind.",
	}, []string{"kind"})
	for _, k := range failureKinds {
		m.storeFailures.WithLabelValues(k)
	}
	m.lateAnswers = counter("weir_store_late_answers_total", "Store calls that answered after their check had given up on them.")
	m.falseDenials = counter("weir_possible_false_denials_total",
		"Denials of a quota to which another check's tokens were on their way back.")
	back := f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_give_backs_total",
		Help: "Give-backs of what a denied check had taken: done, failed (tokens stay spent), dropped (too many at once).",
	}, []string{"result"})
	m.giveBacks.done, m.giveBacks.failed, m.giveBacks.dropped =
		back.WithLabelValues("done"), back.WithLabelValues("failed"), back.WithLabelValues("dropped")
	m.demandDropped = counter("weir_demand_dropped_tokens_total", "Per-key demand not kept because too many keys waited for the store.")
	m.demandErrors = counter("weir_demand_flush_errors_total", "Flushes of demand that the store did not take; they are repeated.")
	m.localEvicted = counter("weir_local_evictions_total", "In-memory buckets dropped while they still counted something.")
	m.localOverflow = counter("weir_local_overflow_total", "Decisions on a policy's overflow bucket because memory held only live denials.")
	m.agentMetrics(f)
	m.ages(f)
	return m
}

func (m *metrics) agentMetrics(f promauto.Factory) {
	reports := f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_agent_reports_total", Help: "Reports to the coordinator by result.",
	}, []string{"result"})
	m.reports.ok, m.reports.failed = reports.WithLabelValues("ok"), reports.WithLabelValues("failed")
	m.refused = f.NewCounter(prometheus.CounterOpts{
		Name: "weir_agent_instructions_refused_total",
		Help: "Instructions not followed: from an older epoch, for another dataset, or grants of keys that lead nowhere.",
	})
	m.reportTime = f.NewHistogram(prometheus.HistogramOpts{
		Name: "weir_agent_report_duration_seconds", Help: "Time for the coordinator to answer a report.",
		Buckets: prometheus.ExponentialBuckets(1e-3, 2, 13),
	})
	m.grantLag = f.NewHistogram(prometheus.HistogramOpts{
		Name: "weir_agent_apply_duration_seconds", Help: "Time to apply grants on every stripe.",
		Buckets: prometheus.ExponentialBuckets(1e-3, 2, 13),
	})
	m.lapses = f.NewCounter(prometheus.CounterOpts{
		Name: "weir_lease_lapses_total", Help: "Times that this node extended the region's lease after it had been over.",
	})
	m.keysTracked = f.NewGauge(prometheus.GaugeOpts{
		Name: "weir_agent_tracked_keys",
		Help: "Keys of this node's region that have a share of their own; 0 on nodes that are not its agent.",
	})
	m.keysLeftOut = f.NewCounter(prometheus.CounterOpts{
		Name: "weir_agent_flagged_keys_dropped_total",
		Help: "Keys that wanted a split of their own and found no room in a report, which takes the busiest.",
	})
	m.isAgent = f.NewGauge(prometheus.GaugeOpts{Name: "weir_agent_active", Help: "1 on the node that is its region's agent."})
}

// ages registers gauges that are computed when they are read.
func (m *metrics) ages(f promauto.Factory) {
	age := func(at *atomic.Int64) func() float64 {
		return func() float64 {
			t := at.Load()
			if t == 0 {
				return -1
			}
			return (time.Since(m.start) - time.Duration(t)).Seconds()
		}
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_agent_last_report_age_seconds",
		Help: "Time since this node last reported to the coordinator; -1 if it never has.",
	}, age(&m.lastReport))
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_agent_last_apply_age_seconds",
		Help: "Time since this node last applied shares; -1 if it never has.",
	}, age(&m.lastApplied))
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_degraded", Help: "1 when a failure mode decided a check in the last 10 seconds.",
	}, func() float64 {
		if m.degraded() {
			return 1
		}
		return 0
	})
}

// stamp notes that something happened now.
func (m *metrics) stamp(at *atomic.Int64) { at.Store(max(1, int64(time.Since(m.start)))) }

func (m *metrics) degraded() bool {
	t := m.lastFallback.Load()
	return t != 0 && time.Since(m.start)-time.Duration(t) < degradedFor
}

// policyCounters holds a policy's series, made when first needed: most policies
// see two or three of the combinations.
type policyCounters struct {
	gone     bool // under metrics.mu
	counters [3][len(checkSources)][len(denialReasons)]atomic.Pointer[prometheus.Counter]
}

// The values of the label "decision".
var outcomes = [3]string{"allowed", "denied", "shadow_denied"}

func (m *metrics) count(p *policyCounters, d *quota.Decision) {
	outcome := 0
	if !d.Allowed {
		outcome = 1
		if d.Shadow {
			outcome = 2
		}
	}
	slot := &p.counters[outcome][d.Source][d.Reason]
	c := slot.Load()
	if c == nil {
		if c = m.create(p, d, outcomes[outcome]); c == nil {
			return
		}
		slot.Store(c)
	}
	(*c).Inc()
	if d.Source == quota.SourceFallback {
		m.stamp(&m.lastFallback)
	}
}

func (m *metrics) create(p *policyCounters, d *quota.Decision, outcome string) *prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.gone {
		return nil
	}
	c := m.decisions.WithLabelValues(d.PolicyID, outcome, d.Source.String(), d.Reason.String())
	return &c
}

// forget deletes the series of a policy that no longer exists.
func (m *metrics) forget(policy string, p *policyCounters) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.gone = true
	m.decisions.DeletePartialMatch(prometheus.Labels{"policy": policy})
}

// localKeys registers the size of the local store, computed when it is read.
func (m *metrics) localKeys(reg prometheus.Registerer, l *localStore) {
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_local_buckets", Help: "In-memory buckets that stand in for the store.",
	}, func() float64 { return float64(l.size()) })
}

// leaseLeft registers how long the region's lease lasts, computed when it is read.
func (m *metrics) leaseLeft(reg prometheus.Registerer, l *leaseClock) {
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_lease_left_seconds",
		Help: "How long the region's lease lasts, as this node knows; 0 when strict policies have their floors, -1 when no policy needs a lease.",
	}, func() float64 {
		if l.until.Load() == nil {
			return -1
		}
		return l.left().Seconds()
	})
}
