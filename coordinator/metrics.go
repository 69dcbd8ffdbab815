package coordinator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weirhq/weir/quota"
)

// metrics are those of one coordinator. None has a label of policy or key.
type metrics struct {
	rebalances prometheus.Counter
	changes    prometheus.Counter
	duration   prometheus.Histogram
	commits    struct{ ok, failed prometheus.Counter }
	refused    struct{ invalid, fenced prometheus.Counter }
}

func newMetrics(reg prometheus.Registerer, regions []quota.Region, c *Coordinator) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		rebalances: f.NewCounter(prometheus.CounterOpts{
			Name: "weir_coordinator_rebalances_total", Help: "Runs of the split over all quotas.",
		}),
		changes: f.NewCounter(prometheus.CounterOpts{
			Name: "weir_coordinator_split_changes_total", Help: "Splits that a rebalance changed.",
		}),
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "weir_coordinator_rebalance_duration_seconds", Help: "Time to split all quotas once.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
	}
	commits := f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_coordinator_ledger_commits_total", Help: "Ledger commits by result.",
	}, []string{"result"})
	m.commits.ok, m.commits.failed = commits.WithLabelValues("ok"), commits.WithLabelValues("failed")
	refused := f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_coordinator_refused_reports_total", Help: "Reports of regions that were refused, by reason.",
	}, []string{"reason"})
	m.refused.invalid, m.refused.fenced = refused.WithLabelValues("invalid"), refused.WithLabelValues("fenced")
	gauge := func(name, help string, value func(totals) float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(c.totals()) })
	}
	gauge("weir_coordinator_allocated_ratio_max", "Largest part of any limit that regions may be using; above 1 only while a lowered limit is not effective.",
		func(t totals) float64 { return t.fullest })
	gauge("weir_coordinator_unallocated_tokens", "Capacity that no region may use, summed over all quotas.",
		func(t totals) float64 { return float64(t.unallocated) / float64(quota.Token) })
	gauge("weir_coordinator_pending_grants", "Grants that no region has acknowledged yet.",
		func(t totals) float64 { return float64(t.pending) })
	gauge("weir_coordinator_quotas", "Quotas that are split between regions.",
		func(t totals) float64 { return float64(t.quotas) })
	for _, name := range regions {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_coordinator_region_report_age_seconds", Help: "Time since a region last reported, or since the start.",
			ConstLabels: prometheus.Labels{"region": string(name)},
		}, func() float64 { return c.age(name).Seconds() })
	}
	return m
}

func (c *Coordinator) totals() totals {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.totals()
}

func (c *Coordinator) age(name quota.Region) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.Now().Sub(c.machine.byName[name].last)
}
