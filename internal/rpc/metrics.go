package rpc

import (
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// codeOK is the code label of a call that succeeded.
const codeOK = "ok"

// metrics are the request metrics of a server. All label values come from
// closed sets: the procedures it serves and the codes of Connect.
type metrics struct {
	requests map[string]map[string]prometheus.Counter
	duration map[string]prometheus.Observer
	inFlight map[string]prometheus.Gauge
	rejected prometheus.Counter
	panics   prometheus.Counter
}

// procedures lists what the services of these names serve.
func procedures(services ...string) []string {
	var out []string
	for procedure := range accessTable {
		service, _, _ := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
		if slices.Contains(services, service) {
			out = append(out, procedure)
		}
	}
	return out
}

func newMetrics(reg prometheus.Registerer, served []string) (*metrics, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_rpc_requests_total",
		Help: "Calls by procedure and code. A denied check is ok: it was answered.",
	}, []string{"procedure", "code"})
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                            "weir_rpc_request_duration_seconds",
		Help:                            "Time from the decoded request to the answer.",
		Buckets:                         []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1},
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  100,
		NativeHistogramMinResetDuration: time.Hour,
	}, []string{"procedure"})
	inFlight := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "weir_rpc_in_flight_requests",
		Help: "Calls under way.",
	}, []string{"procedure"})
	rejected := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weir_rpc_rejected_requests_total",
		Help: "Requests refused before a procedure saw them: malformed, oversized, or of an unknown encoding.",
	})
	panics := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weir_rpc_panics_total",
		Help: "Calls that ended in a recovered panic. Anything above 0 is a bug.",
	})
	for _, c := range []prometheus.Collector{requests, duration, inFlight, rejected, panics} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	m := &metrics{
		requests: make(map[string]map[string]prometheus.Counter, len(served)),
		duration: make(map[string]prometheus.Observer, len(served)),
		inFlight: make(map[string]prometheus.Gauge, len(served)),
		rejected: rejected,
		panics:   panics,
	}
	for _, p := range served {
		byCode := map[string]prometheus.Counter{codeOK: requests.WithLabelValues(p, codeOK)}
		for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
			byCode[code.String()] = requests.WithLabelValues(p, code.String())
		}
		m.requests[p] = byCode
		m.duration[p] = duration.WithLabelValues(p)
		m.inFlight[p] = inFlight.WithLabelValues(p)
	}
	return m, nil
}

// refused records a call that was refused before its message was read.
func (m *metrics) refused(procedure, code string) {
	if byCode := m.requests[procedure]; byCode != nil {
		byCode[code].Inc()
	}
}

// done records one call. The trace, when it is sampled, becomes an exemplar.
func (m *metrics) done(ctx context.Context, procedure, code string, took time.Duration) {
	m.requests[procedure][code].Inc()
	o := m.duration[procedure]
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		if e, ok := o.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": span.TraceID().String()})
			return
		}
	}
	o.Observe(took.Seconds())
}
