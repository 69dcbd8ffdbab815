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
	borrowTime prometheus.Histogram
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
	m.borrowTime = f.NewHistogram(prometheus.HistogramOpts{
		Name: "weir_coordinator_borrow_duration_seconds", Help: "Time from a region's asking for more to its holding all that the split then gave it.",
		Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
	})
	commits := f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_coordinator_ledger_commits_total", Help: "Ledger commits by result.",
	}, []string{"result"})
	m.commits.ok, m.commits.failed = commits.WithLabelValues("ok"), commits.WithLabelValues("failed")
	refused := f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_coordinator_refused_reports_total", Help: "Reports of regions that were refused, by reason.",
	}, []string{"reason"})
	m.refused.invalid, m.refused.fenced = refused.WithLabelValues("invalid"), refused.WithLabelValues("fenced")
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "weir_coordinator_reclaims_total", Help: "Shares that were taken back because their region was silent for longer than its lease.",
	}, func() float64 { return float64(c.reclaims()) })
	if reg != nil {
		reg.MustRegister(newTotalsCollector(c.totals))
	}
	for _, name := range regions {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_coordinator_region_report_age_seconds", Help: "Time since a region last reported, or since the start.",
			ConstLabels: prometheus.Labels{"region": string(name)},
		}, func() float64 { return c.age(name).Seconds() })
	}
	return m
}

// totalsCollector shows sums over all quotas. They are worked out once for each
// scrape, which passes over every quota; with a gauge for each it would be once for
// each gauge. What it shows has the labels of a closed set, however many quotas there are.
type totalsCollector struct {
	totals func() Totals
	gauges []totalsGauge // and counters
	all    []*prometheus.Desc
}

// totalsGauge is one series.
type totalsGauge struct {
	desc  *prometheus.Desc
	label []string
	kind  prometheus.ValueType
	value func(*Totals) float64
}

// grantAgeLabels name the parts of GrantAges.
var grantAgeLabels = [len(GrantAges{})]string{"under_1s", "under_10s", "under_1m", "older"}

func newTotalsCollector(totals func() Totals) *totalsCollector {
	c := &totalsCollector{totals: totals}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc(name, help, labels, nil)
		c.all = append(c.all, d)
		return d
	}
	add := func(name, help string, value func(*Totals) float64) {
		c.gauges = append(c.gauges, totalsGauge{desc(name, help), nil, prometheus.GaugeValue, value})
	}
	add("weir_coordinator_tracked_keys", "Keys that have a split of their own.", func(t *Totals) float64 { return float64(t.TrackedKeys) })
	add("weir_coordinator_parked_tokens", "Tokens that shrinks of tracked keys have surrendered, to be passed on.",
		func(t *Totals) float64 { return float64(t.Parked) / float64(quota.Token) })
	refused := desc("weir_coordinator_keys_refused_total", "Keys near their limit that were given no split of their own, because a policy has enough of them.")
	c.gauges = append(c.gauges, totalsGauge{refused, nil, prometheus.CounterValue, func(t *Totals) float64 { return float64(t.KeysRefused) }})
	borrows := desc("weir_coordinator_borrows_total",
		"Times that regions asked for more between rebalances: served, or ignored because asking had brought nothing lately.", "result")
	c.gauges = append(c.gauges,
		totalsGauge{borrows, []string{"served"}, prometheus.CounterValue, func(t *Totals) float64 { return float64(t.Borrows.Asked) }},
		totalsGauge{borrows, []string{"ignored"}, prometheus.CounterValue, func(t *Totals) float64 { return float64(t.Borrows.Rested) }})
	add("weir_coordinator_allocated_ratio_max", "Largest part of any limit that regions may be using; above 1 only while a lowered limit is not effective.",
		func(t *Totals) float64 { return t.Fullest })
	add("weir_coordinator_unallocated_tokens", "Capacity that no region may use, summed over all quotas.",
		func(t *Totals) float64 { return float64(t.Unallocated) / float64(quota.Token) })
	add("weir_coordinator_quotas", "Quotas that are split between regions.", func(t *Totals) float64 { return float64(t.Quotas) })
	add("weir_coordinator_not_effective_quotas", "Quotas of which regions may still use more than the limit, because it was lowered or the ledger recovers.",
		func(t *Totals) float64 { return float64(t.NotEffective) })
	add("weir_coordinator_small_quotas", "Quotas whose limit has fewer than two tokens for each region.", func(t *Totals) float64 { return float64(t.Small) })
	add("weir_coordinator_oldest_pending_grant_seconds", "Age of the oldest grant that its region has not acknowledged.",
		func(t *Totals) float64 { return t.OldestGrant.Seconds() })
	add("weir_coordinator_draining_shares", "Shares of logs that regions keep in part until their entries leave the window.",
		func(t *Totals) float64 { return float64(t.DrainingShares) })
	add("weir_coordinator_oldest_drain_seconds", "Time since a region took a smaller share of a log that it has not drained to, the longest.",
		func(t *Totals) float64 { return t.OldestDrain.Seconds() })
	add("weir_coordinator_reclaimed_shares", "Shares that were taken back because a region was silent for longer than its lease.",
		func(t *Totals) float64 { return float64(t.ReclaimedShares) })
	pending := desc("weir_coordinator_pending_grants", "Grants that their region has not acknowledged yet, by age.", "age")
	for i, label := range grantAgeLabels {
		c.gauges = append(c.gauges, totalsGauge{pending, []string{label}, prometheus.GaugeValue, func(t *Totals) float64 { return float64(t.Ages[i]) }})
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *totalsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.all {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *totalsCollector) Collect(ch chan<- prometheus.Metric) {
	t := c.totals()
	for _, g := range c.gauges {
		ch <- prometheus.MustNewConstMetric(g.desc, g.kind, g.value(&t), g.label...)
	}
}

func (c *Coordinator) totals() Totals {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.totals(c.cfg.Now())
}

func (c *Coordinator) reclaims() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.reclaims
}

func (c *Coordinator) age(name quota.Region) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.Now().Sub(c.machine.byName[name].last)
}
