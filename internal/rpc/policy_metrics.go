package rpc

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// What is changed through the API.
const (
	changeApply           = "apply"
	changeDelete          = "delete"
	changeRollback        = "rollback"
	changeSetOverrides    = "set_overrides"
	changeDeleteOverrides = "delete_overrides"
	changeCreateToken     = "create_token"
	changeRevokeToken     = "revoke_token"
)

// What became of a change.
const (
	resultCommitted = "committed"
	resultUnchanged = "unchanged"
	resultDryRun    = "dry_run"
	resultInvalid   = "invalid"
	resultConflict  = "conflict"
	resultFailed    = "failed"
)

// changeMetrics count changes and watchers.
type changeMetrics struct {
	changes  map[string]map[string]prometheus.Counter
	watchers prometheus.Gauge
}

func newChangeMetrics(reg prometheus.Registerer) (*changeMetrics, error) {
	changes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_policy_changes_total",
		Help: "Changes of policies, overrides and tokens that were asked for, by what became of them.",
	}, []string{"action", "result"})
	m := &changeMetrics{
		changes: make(map[string]map[string]prometheus.Counter),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_policy_watchers", Help: "Nodes that watch policies on this server.",
		}),
	}
	for _, c := range []prometheus.Collector{changes, m.watchers} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	for _, action := range []string{
		changeApply, changeDelete, changeRollback, changeSetOverrides, changeDeleteOverrides, changeCreateToken, changeRevokeToken,
	} {
		m.changes[action] = make(map[string]prometheus.Counter)
		for _, result := range []string{resultCommitted, resultUnchanged, resultDryRun, resultInvalid, resultConflict, resultFailed} {
			m.changes[action][result] = changes.WithLabelValues(action, result)
		}
	}
	return m, nil
}

// done counts a change that is committed unless it failed.
func (m *changeMetrics) done(action string, err error) {
	result := resultCommitted
	switch {
	case err == nil:
	case errors.Is(err, quota.ErrConflict):
		result = resultConflict
	case errors.Is(err, quota.ErrInvalid), errors.Is(err, quota.ErrNotFound):
		result = resultInvalid
	default:
		result = resultFailed
	}
	m.changes[action][result].Inc()
}

// applied counts a change of the policy set.
func (m *changeMetrics) applied(action string, dryRun bool, applied policystore.Applied, err error) {
	switch {
	case err != nil || applied.Committed:
		m.done(action, err)
	case dryRun:
		m.changes[action][resultDryRun].Inc()
	default:
		m.changes[action][resultUnchanged].Inc()
	}
}
