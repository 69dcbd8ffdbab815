package quota

import "math"

// Report returns what a stripe holds of the share record with the given key, as a
// region reports it: a log is taken to hold what its share was before it shrank until
// a window has passed. ok is false when there is no record.
func (m *Model) Report(now int64, shareKey string) (q QuotaReport, ok bool) {
	r, ok := m.shares[shareKey]
	if !ok {
		return QuotaReport{}, false
	}
	q = QuotaReport{
		Version: int64(r.version), Share: Share{Tokens(r.capacity), Tokens(r.refill)}, Period: fromMicros(r.period),
		Permanent: Share{Tokens(r.permCapacity), Tokens(r.permRefill)},
	}
	if float64(now)-r.shrunk < math.Ceil(r.period*drift) {
		q.Hold = Tokens(r.hold)
	}
	q.Drained = q.Hold <= q.Share.Capacity
	return q, true
}
