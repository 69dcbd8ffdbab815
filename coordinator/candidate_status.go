package coordinator

import (
	"errors"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weirhq/weir/quota"
)

// CandidateStatus is what a candidate knows.
type CandidateStatus struct {
	// Status is the coordinator's while it leads, and else tells no more than the
	// time and the epoch.
	Status
	Leadership Leadership `json:"leadership"`
}

// Leadership is what one candidate knows of the election.
type Leadership struct {
	// Leading is true in the one that holds the lead, Serving when it may also
	// answer: it has loaded the ledger and beats in time.
	Leading bool `json:"leading"`
	Serving bool `json:"serving"`
	// Leader and URL name who leads, as far as is known here.
	Leader string      `json:"leader"`
	URL    string      `json:"url"`
	Epoch  quota.Epoch `json:"epoch"`
	// BeatAge is the time since the leader sent its last beat, or since another saw it.
	BeatAge time.Duration `json:"beatAge"`
}

// CandidateOverview is what a candidate knows, without the single quotas.
type CandidateOverview struct {
	// Overview is the coordinator's while it leads, and else tells no more than the
	// time and the epoch.
	Overview
	Leadership Leadership `json:"leadership"`
}

// Status returns what is known of the election and, while leading, of every split.
func (c *Candidate) Status() CandidateStatus { return c.StatusOfFirst(math.MaxInt) }

// StatusOfFirst is Status with at most so many quotas.
func (c *Candidate) StatusOfFirst(quotas int) CandidateStatus {
	now, serving, lead := c.known()
	s := CandidateStatus{Status: Status{At: now, Epoch: lead.Epoch}, Leadership: lead}
	if serving != nil {
		s.Status = serving.StatusOfFirst(quotas)
		s.Leadership.Epoch = s.Epoch
	}
	return s
}

// Overview returns what is known of the election and, while leading, of regions and totals.
func (c *Candidate) Overview() CandidateOverview {
	now, serving, lead := c.known()
	o := CandidateOverview{Overview: Overview{At: now, Epoch: lead.Epoch}, Leadership: lead}
	if serving != nil {
		o.Overview = serving.Overview()
		o.Leadership.Epoch = o.Epoch
	}
	return o
}

// Splits returns a page of quotas and whether there are more. It fails with a
// NotLeaderError while this candidate does not lead.
func (c *Candidate) Splits(q SplitQuery) (page []QuotaStatus, more bool, err error) {
	serving, err := c.right(nil)
	if err != nil {
		return nil, false, err
	}
	page, more = serving.Splits(q)
	return page, more, nil
}

// Reload has this candidate load the ledger again, under a new epoch, if it leads:
// somebody has changed what the ledger says of itself.
func (c *Candidate) Reload() {
	if _, serving, _ := c.known(); serving != nil {
		c.doubt(serving, 0)
	}
}

func (c *Candidate) known() (now time.Time, serving *Coordinator, lead Leadership) {
	now = c.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return now, c.serving, c.leadershipLocked(now)
}

func (c *Candidate) leadershipLocked(now time.Time) Leadership {
	e := c.elector
	if e.leading {
		return Leadership{
			Leading: true, Serving: c.serving != nil && e.maySend(now), Leader: e.self.Holder, URL: e.self.URL,
			Epoch: e.seen.Epoch, BeatAge: now.Sub(e.beaten),
		}
	}
	if !e.ever {
		return Leadership{}
	}
	return Leadership{Leader: e.seen.Holder, URL: e.seen.URL, Epoch: e.seen.Epoch, BeatAge: now.Sub(e.since)}
}

// Leadership returns what is known of the election.
func (c *Candidate) Leadership() Leadership {
	_, serving, lead := c.known()
	if serving != nil {
		lead.Epoch = serving.epoch()
	}
	return lead
}

// epoch returns the epoch that is in force here.
func (c *Coordinator) epoch() quota.Epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.epoch
}

// candidateMetrics are those that every candidate has. Those of Coordinator are
// there only while it leads.
type candidateMetrics struct {
	won, refused, failed prometheus.Counter
}

func newCandidateMetrics(reg prometheus.Registerer, c *Candidate) candidateMetrics {
	f := promauto.With(reg)
	gauge := func(name, help string, value func(Leadership) float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(c.Leadership()) })
	}
	gauge("weir_leader", "1 in the coordinator that leads and may answer regions, else 0.", func(l Leadership) float64 {
		if l.Serving {
			return 1
		}
		return 0
	})
	gauge("weir_leader_epoch", "Epoch of the ledger, as far as it is known here.", func(l Leadership) float64 { return float64(l.Epoch) })
	gauge("weir_leader_beat_age_seconds", "Time since the leader's last beat that is known here.", func(l Leadership) float64 { return l.BeatAge.Seconds() })
	elections := f.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_leader_elections_total", Help: "Claims to lead by result: won, refused because another led, failed without an answer.",
	}, []string{"result"})
	return candidateMetrics{
		won: elections.WithLabelValues("won"), refused: elections.WithLabelValues("refused"), failed: elections.WithLabelValues("failed"),
	}
}

func (m candidateMetrics) claimed(err error) {
	switch {
	case err == nil:
		m.won.Inc()
	case errors.Is(err, quota.ErrFenced):
		m.refused.Inc()
	default:
		m.failed.Inc()
	}
}
