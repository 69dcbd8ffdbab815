package chaos_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
)

// callTimeout is how long a caller waits. What it does not hear of it does not count: it
// cannot know whether it was admitted.
const callTimeout = 2 * time.Second

// stream is the traffic on one key. Every stream has an envelope of its own.
type stream struct{ policy, tenant string }

var movingStreams = []stream{{"jobs", "acme"}, {"jobs", "globex"}, {"logins", "ada"}}

func (s stream) attributes() map[string]string {
	return map[string]string{"route": "POST /" + s.policy, "tenant": s.tenant}
}

// inFlight bounds the calls of one region on one key, so that a region that does not
// answer does not pile up callers.
const inFlight = 48

// load is the callers of all regions.
type load struct {
	w       *world
	streams []stream
	rates   [][]atomic.Uint64 // region, stream: calls per second, float bits

	cancel context.CancelFunc
	done   sync.WaitGroup
	// restless keeps demand moving between regions, without the pauses that fill buckets;
	// nudges wake who moves it, one for each policy.
	restless atomic.Bool
	nudges   []chan struct{}

	mu        sync.Mutex
	admitted  [][]call // by stream
	durations []sample
	total     tally
}

// tally counts outcomes. Undecided calls were answered without the store.
type tally struct{ calls, admitted, denied, undecided, failed int }

func (t tally) minus(o tally) tally {
	return tally{t.calls - o.calls, t.admitted - o.admitted, t.denied - o.denied, t.undecided - o.undecided, t.failed - o.failed}
}

// sample is how long an answered call took, and when that was.
type sample struct {
	at   int64
	took time.Duration
}

func (w *world) startLoad(streams []stream) *load {
	w.load = &load{w: w, streams: streams, admitted: make([][]call, len(streams)), rates: make([][]atomic.Uint64, len(w.sites))}
	l := w.load
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for i := range w.sites {
		l.rates[i] = make([]atomic.Uint64, len(streams))
		for k := range streams {
			l.done.Go(func() { l.generate(ctx, i, k) })
		}
	}
	w.tb.Cleanup(l.stop)
	return l
}

// stop ends the load and waits for the calls under way.
func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// set is the calls per second of one region on one key.
func (l *load) set(region, stream int, perSecond float64) {
	l.rates[region][stream].Store(math.Float64bits(perSecond))
}

// generate sends calls at the present rate, whether or not earlier ones were answered.
func (l *load) generate(ctx context.Context, region, stream int) {
	slots := make(chan struct{}, inFlight)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	due, last := 0.0, time.Now()
	// A call is not cut short when the load stops: what was admitted must be known.
	unhurried := context.WithoutCancel(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		due = min(due+now.Sub(last).Seconds()*math.Float64frombits(l.rates[region][stream].Load()), inFlight)
		for last = now; due >= 1; due-- {
			select {
			case slots <- struct{}{}:
				calls.Go(func() {
					l.call(unhurried, region, stream)
					<-slots
				})
			default:
			}
		}
	}
}

// call makes one check.
func (l *load) call(ctx context.Context, region, stream int) {
	request := quota.Request{Attributes: l.streams[stream].attributes(), Cost: quota.Token}
	sent := l.w.now()
	answer, err := l.w.sites[region].client.Check(ctx, request)
	answered := l.w.now() + 1
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.calls++
	if err != nil {
		l.total.failed++
		return
	}
	l.durations = append(l.durations, sample{answered, time.Duration(answered-sent) * time.Microsecond})
	byStore := !slices.ContainsFunc(answer.Decisions, func(d quota.Decision) bool { return d.Source != quota.SourceStore })
	switch {
	case !byStore:
		l.total.undecided++
	case !answer.Allowed:
		l.total.denied++
	}
	if answer.Allowed {
		l.total.admitted++
		l.admitted[stream] = append(l.admitted[stream], call{sent, answered})
	}
}

func (l *load) tally() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// endings returns the worst of all intervals that end with each answer, by stream.
func (l *load) endings() [][]ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([][]ending, len(l.streams))
	for k, s := range l.streams {
		p := l.w.policy(s.policy)
		out[k] = endings(p.Algorithm, p.Limit, l.admitted[k])
	}
	return out
}

func (l *load) longest() (most time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, calls := range l.admitted {
		most = max(most, longest(calls))
	}
	return most
}

// quantile is of the durations of calls answered in [from, to].
func (l *load) quantile(q float64, from, to int64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var took []time.Duration
	for _, s := range l.durations {
		if s.at >= from && s.at <= to {
			took = append(took, s.took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}

// move changes the rates at random until the load stops. Mostly one region has nearly
// all of the demand, and never the same one twice, long enough for shares to follow. In
// between nobody asks for anything, which fills the buckets, and then all for much at
// once: that is when shares given twice would show most. Keys of one policy move
// together, different policies on their own.
func (l *load) move(seed uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	stop := l.cancel
	l.cancel = func() { cancel(); stop() }
	for k, p := range l.w.set {
		r := rand.New(rand.NewPCG(seed, uint64(k)))
		nudge := make(chan struct{}, 1)
		l.nudges = append(l.nudges, nudge)
		l.done.Go(func() {
			for hot, idle := r.IntN(len(l.w.sites)), true; ; {
				hot, idle = l.mix(r, p, hot, idle)
				timer := time.NewTimer(between(r, 1500*time.Millisecond, 4*time.Second))
				select {
				case <-timer.C:
				case <-nudge:
				case <-ctx.Done():
					timer.Stop()
					return
				}
				timer.Stop()
			}
		})
	}
}

// keepMoving makes the demand of every policy move at once and again and again, so that
// a share that does not follow is not for want of a reason.
func (l *load) keepMoving(yes bool) {
	l.restless.Store(yes)
	for _, nudge := range l.nudges {
		select {
		case nudge <- struct{}{}:
		default:
		}
	}
}

// mix sets new rates for the keys of a policy and returns which region is hot and
// whether nobody asks for anything.
func (l *load) mix(r *rand.Rand, p *quota.Policy, hot int, wasIdle bool) (nowHot int, idle bool) {
	limit := float64(p.Limit.Refill.Whole()) / p.Limit.Period.Seconds()
	if p.Algorithm == quota.SlidingLog {
		limit = float64(p.Limit.Capacity.Whole()) / p.Limit.Period.Seconds()
	}
	parts, total := []float64{1. / 3, 1. / 3, 1. / 3}, limit*(1+3*r.Float64())
	restless := l.restless.Load()
	switch idle = !wasIdle && !restless && r.IntN(4) == 0; {
	case idle:
		total = 0
	case wasIdle && !restless:
		total = limit * 4
	default:
		hot = (hot + 1 + r.IntN(len(l.w.sites)-1)) % len(l.w.sites)
		parts = []float64{0.05, 0.05, 0.05}
		parts[hot] = 0.9
	}
	for k, s := range l.streams {
		for i := range l.w.sites {
			if s.policy == p.ID {
				l.set(i, k, total*parts[i])
			}
		}
	}
	return hot, idle
}
