package chaos_test

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// round is one fault and what happened around it.
type round struct {
	fault     int
	from, to  int64
	recovered recovery
}

// settle is how long a round goes on after the recovery, so that what a fault spoilt
// shows in its own round.
const settle = 500 * time.Millisecond

// Whatever is killed, stopped and cut, all regions together never admit more than the
// limit in any interval, and the shares in force never sum to more than it.
func TestEnvelopeHoldsThroughFaults(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, r, worldConfig{policies: movingPolicies, ownRedis: true})
	shares := w.watchShares([]stream{movingStreams[0], movingStreams[2]})
	eventually(t, "every region has its shares", shares.known)
	load := w.startLoad(movingStreams)
	load.move(r.Uint64())

	var order []int
	for i, f := range faults {
		if !strings.Contains(f.name, os.Getenv(envFaults)) {
			continue
		}
		for range rounds(t, f.few) {
			order = append(order, i)
		}
	}
	if len(order) == 0 {
		t.Fatalf("%s=%s names no fault", envFaults, os.Getenv(envFaults))
	}
	r.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
	var all []round
	for _, i := range order {
		from := w.now()
		pause(t, between(r, 200*time.Millisecond, 1500*time.Millisecond))
		recovered := faults[i].strike(w, shares, r)
		t.Logf("%s: recovered after %s", faults[i].name, recovered.took().Round(time.Millisecond))
		pause(t, settle)
		all = append(all, round{i, from, w.now(), recovered})
	}
	load.stop()
	judge(t, w, load, shares, all)
}

// row is a line of the table.
type row struct {
	rounds, admissions int
	bucket, log        float64
	recovery           time.Duration
}

func judge(t *testing.T, w *world, l *load, s *shares, all []round) {
	t.Helper()
	ends := l.endings()
	rows := make([]row, len(faults))
	for i := range rows {
		rows[i].bucket, rows[i].log = math.Inf(-1), math.Inf(-1)
	}
	for _, r := range all {
		f, sum := faults[r.fault], &rows[r.fault]
		sum.rounds++
		sum.recovery = max(sum.recovery, r.recovered.took())
		if took := r.recovered.took(); r.recovered.ok && f.within > 0 && took > f.within {
			t.Errorf("%s: recovered after %s, want at most %s", f.name, took, f.within)
		}
		for k, st := range l.streams {
			excess, n := worst(ends[k], r.from, r.to)
			sum.admissions += n
			if excess > 0 {
				t.Errorf("%s: %.2f tokens of %s/%s more than the limit allows in an interval that ends between %s and %s",
					f.name, excess, st.policy, st.tenant, time.Duration(r.from)*time.Microsecond, time.Duration(r.to)*time.Microsecond)
			}
			if w.policy(st.policy).Algorithm == quota.SlidingLog {
				sum.log = max(sum.log, excess)
			} else {
				sum.bucket = max(sum.bucket, excess)
			}
		}
	}
	judgeShares(t, w, s)
	total := l.tally()
	if total.admitted == 0 || total.denied == 0 {
		t.Errorf("%+v: the limits were not tried", total)
	}
	publish(t, table(rows, all, l, s))
}

func judgeShares(t *testing.T, w *world, s *shares) {
	t.Helper()
	most, at := s.highest()
	for k, st := range s.streams {
		limit := w.policy(st.policy).Limit.Share()
		if !most[k].Within(limit) {
			t.Errorf("%s/%s: the shares in force summed to %v at %s, the limit is %v",
				st.policy, st.tenant, most[k], time.Duration(at[k])*time.Microsecond, limit)
		}
		if most[k].Capacity < limit.Capacity/2 {
			t.Errorf("%s/%s: the shares in force summed to %v of %v at most: they were not seen", st.policy, st.tenant, most[k], limit)
		}
	}
}

func table(rows []row, all []round, l *load, s *shares) string {
	var b strings.Builder
	b.WriteString("| fault | rounds | admissions | worst excess, bucket | worst excess, log | worst recovery |\n|---|---|---|---|---|---|\n")
	for i, r := range rows {
		if r.rounds > 0 {
			fmt.Fprintf(&b, "| %s | %d | %d | %s | %s | %.1f s |\n",
				faults[i].name, r.rounds, r.admissions, tokens(r.bucket), tokens(r.log), r.recovery.Seconds())
		}
	}
	total := l.tally()
	span := time.Duration(all[len(all)-1].to-all[0].from) * time.Microsecond
	fmt.Fprintf(&b, "\n%d rounds in %s on %d CPUs: %d calls, %d admitted, %d denied, %d not decided by the store, %d failed. "+
		"The longest call that admitted took %s. Versions seen: ",
		len(all), span.Round(time.Second), runtime.NumCPU(), total.calls, total.admitted, total.denied, total.undecided, total.failed,
		l.longest().Round(time.Millisecond))
	most, _ := s.highest()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, st := range s.streams {
		n := 0
		for _, list := range s.seen[k] {
			n += len(list)
		}
		fmt.Fprintf(&b, "%d of %s, shares in force up to %s; ", n, st.policy, most[k].Capacity)
	}
	return strings.TrimSuffix(b.String(), "; ") + ".\n"
}

// tokens prints an excess, if anything was admitted that could have one.
func tokens(excess float64) string {
	if math.IsInf(excess, -1) {
		return "none admitted"
	}
	return strconv.FormatFloat(excess, 'f', 2, 64)
}

// The judges must notice what they are there for: regions that each have the whole
// limit, as they would have if shares were given out twice.
func TestJudgesNoticeUnsharedLimits(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, r, worldConfig{policies: movingPolicies, alone: true})
	load := w.startLoad(movingStreams)
	for k := range movingStreams {
		for i := range w.sites {
			load.set(i, k, 60)
		}
	}
	eventually(t, "the limits are spent", func() bool { return load.tally().denied > 100 })
	load.stop()
	for k, list := range load.endings() {
		excess, n := worst(list, 0, math.MaxInt64)
		if s := movingStreams[k]; excess < 20 {
			t.Errorf("%s/%s: three regions with the whole limit each were %.2f over it in %d admissions, which is not noticed",
				s.policy, s.tenant, excess, n)
		}
	}
}
