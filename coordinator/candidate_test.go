package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
)

// town is where the candidates of a test meet: a coordinator.Election in memory.
type town struct {
	mu     sync.Mutex
	row    coordinator.Leader
	ledger *memory.Ledger
	// cut names the candidates that get no answer.
	cut map[string]bool
	// slow is how long each commit takes.
	slow time.Duration
}

func newTown() *town { return &town{ledger: memory.NewComplete(), cut: map[string]bool{}} }

// booth is one candidate's way to the town.
type booth struct {
	*town
	name string
}

func (b booth) reach(ctx context.Context) error {
	b.mu.Lock()
	cut := b.cut[b.name]
	b.mu.Unlock()
	if cut {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", quota.ErrUnavailable, ctx.Err())
	}
	return nil
}

func (b booth) isolate(cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut[b.name] = cut
}

func (b booth) Look(ctx context.Context) (coordinator.Leader, error) {
	if err := b.reach(ctx); err != nil {
		return coordinator.Leader{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.row, nil
}

func (b booth) Claim(ctx context.Context, mine, seen coordinator.Leader) error {
	if err := b.reach(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.row.Tenure != mine.Tenure && (b.row.Tenure != seen.Tenure || b.row.Beat != seen.Beat) {
		return quota.ErrFenced
	}
	mine.Beat = b.row.Beat + 1
	b.row = mine
	return nil
}

func (b booth) Beat(ctx context.Context, tenure string) error {
	if err := b.reach(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.row.Tenure != tenure {
		return quota.ErrFenced
	}
	b.row.Beat++
	return nil
}

func (b booth) Resign(ctx context.Context, tenure string) error {
	if err := b.reach(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.row.Tenure == tenure {
		b.row = coordinator.Leader{Beat: b.row.Beat + 1}
	}
	return nil
}

func (b booth) Ledger(tenure string) coordinator.Ledger { return boothLedger{b, tenure} }

type boothLedger struct {
	booth
	tenure string
}

func (l boothLedger) Load(ctx context.Context, above quota.Epoch) (coordinator.Snapshot, error) {
	if err := l.reach(ctx); err != nil {
		return coordinator.Snapshot{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.row.Tenure != l.tenure {
		return coordinator.Snapshot{}, quota.ErrFenced
	}
	return l.ledger.Load(ctx, above)
}

func (l boothLedger) Commit(ctx context.Context, epoch quota.Epoch, b coordinator.Batch) error {
	l.mu.Lock()
	slow := l.slow
	l.mu.Unlock()
	pass(slow)
	return l.ledger.Commit(ctx, epoch, b)
}

// contender is a candidate and how to stop it.
type contender struct {
	*coordinator.Candidate
	booth
	stop func()
}

func (w *town) contend(t *testing.T, name string) contender {
	t.Helper()
	b := booth{w, name}
	c, err := coordinator.NewCandidate(coordinator.CandidateConfig{
		Config:   coordinator.Config{Regions: []quota.Region{"eu", "us"}, Registerer: prometheus.NewRegistry()},
		Election: b, Name: name, URL: "http://" + name,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	synctest.Wait()
	return contender{c, b, stop}
}

// pair returns a leader and one that waits.
func (w *town) pair(t *testing.T) (a, b contender) {
	t.Helper()
	a = w.contend(t, "a")
	b = w.contend(t, "b")
	requireServing(t, a, true)
	requireServing(t, b, false)
	return a, b
}

// pass lets time go by in the bubble.
func pass(d time.Duration) { <-time.After(d) }

func requireServing(t *testing.T, c contender, want bool) {
	t.Helper()
	synctest.Wait()
	if got := c.Status().Leadership; got.Serving != want {
		t.Fatalf("%s: serving is %v: %+v", c.name, got.Serving, got)
	}
}

func ask(c contender, epoch quota.Epoch) (quota.Instructions, error) {
	return c.Report(context.Background(), quota.Report{Region: "us", Gen: "g", Epoch: epoch, SentAt: time.Now().UnixMicro()})
}

func requireNotLeader(t *testing.T, err error, url string) {
	t.Helper()
	not, ok := errors.AsType[*coordinator.NotLeaderError](err)
	if !ok || not.URL != url || !errors.Is(err, quota.ErrUnavailable) {
		t.Fatalf("want a leader at %q, got %v", url, err)
	}
}

var oneSplit = []*quota.Policy{{
	ID: "p", Scope: quota.Global, Algorithm: quota.TokenBucket,
	Limit: quota.Limit{Capacity: 100 * quota.Token, Refill: 100 * quota.Token, Period: time.Second},
}}

func TestOneLeadsAndTheOthersNameIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newTown().pair(t)
		if _, err := ask(a, 0); err != nil {
			t.Fatal(err)
		}
		_, err := ask(b, 0)
		requireNotLeader(t, err, "http://a")
		pass(time.Hour)
		requireServing(t, a, true)
		lead := b.Status().Leadership
		if lead.Leading || lead.Leader != "a" || lead.BeatAge > 2*time.Second {
			t.Errorf("%+v", lead)
		}
	})
}

func TestStoppingGivesTheLeadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newTown().pair(t)
		for _, c := range []contender{a, b} {
			if err := c.SetPolicies(3, oneSplit); err != nil {
				t.Fatal(err)
			}
			if err := c.SetPolicies(2, nil); !errors.Is(err, quota.ErrConflict) {
				t.Fatal(err)
			}
		}
		epoch := a.Status().Epoch
		a.stop()
		_, err := ask(a, 0)
		requireNotLeader(t, err, "")
		pass(time.Second)
		requireServing(t, b, true)
		s := b.Status()
		if s.Epoch <= epoch || s.Revision != 3 || len(s.Quotas) != 1 {
			t.Errorf("epoch %d after %d, revision %d, %d quotas", s.Epoch, epoch, s.Revision, len(s.Quotas))
		}
	})
}

func TestCutOffLeaderFallsSilentBeforeAnotherSpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newTown().pair(t)
		a.isolate(true)
		cut := time.Now()
		var silent, spoke time.Time
		for spoke.IsZero() && time.Since(cut) < time.Minute {
			pass(10 * time.Millisecond)
			synctest.Wait()
			if silent.IsZero() && !a.Status().Leadership.Serving {
				silent = time.Now()
			}
			if b.Status().Leadership.Serving {
				spoke = time.Now()
			}
		}
		if silent.IsZero() || spoke.IsZero() || !silent.Before(spoke) || silent.Sub(cut) > coordinator.SendRight || spoke.Sub(cut) > 12*time.Second {
			t.Fatalf("cut off for %v until it was silent, %v until the other spoke", silent.Sub(cut), spoke.Sub(cut))
		}
		_, err := ask(a, 0)
		requireNotLeader(t, err, "")
		a.isolate(false)
		pass(3 * time.Second)
		_, err = ask(a, 0)
		requireNotLeader(t, err, "http://b")
		requireServing(t, b, true)
	})
}

func TestLeadSurvivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newTown().pair(t)
		epoch := a.Status().Epoch
		a.isolate(true)
		b.isolate(true)
		pass(10 * time.Minute)
		requireServing(t, a, false)
		a.isolate(false)
		pass(3 * time.Second)
		requireServing(t, a, true)
		b.isolate(false)
		pass(time.Minute)
		requireServing(t, a, true)
		if got := a.Status().Epoch; got != epoch {
			t.Errorf("epoch %d became %d", epoch, got)
		}
	})
}

// An answer that is ready when the right to send has ended is not given.
func TestNoAnswerAfterTheRightHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newTown().pair(t)
		if err := a.SetPolicies(1, oneSplit); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // what the policies make it write is written
		a.mu.Lock()
		a.slow = coordinator.SendRight
		a.mu.Unlock()
		a.isolate(true)
		// What the region's dataset is has to be committed before it is answered.
		_, err := ask(a, a.Status().Epoch)
		requireNotLeader(t, err, "")
	})
}

// Somebody who did not take part in the election fences the leader, which gives up
// so that a later epoch begins, in whoever is elected then.
func TestFencedLeaderIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newTown().pair(t)
		s, err := a.ledger.Load(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.SetPolicies(1, oneSplit); err != nil {
			t.Fatal(err)
		}
		pass(3 * time.Second)
		requireServing(t, a, false)
		requireServing(t, b, true)
		if got := b.Status().Epoch; got <= s.Epoch {
			t.Errorf("epoch %d after %d", got, s.Epoch)
		}
	})
}

// A region that follows a later epoch than the ledger has: it goes on above that.
func TestEpochOfARegionIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newTown().pair(t)
		seen := a.Status().Epoch + 100
		if _, err := ask(a, seen); !errors.Is(err, quota.ErrFenced) {
			t.Fatal(err)
		}
		synctest.Wait()
		in, err := ask(a, seen)
		if err != nil || in.Epoch <= seen {
			t.Fatalf("epoch %d after %d: %v", in.Epoch, seen, err)
		}
		requireServing(t, a, true)
		// A number that cannot be one is not followed.
		if _, err := ask(a, 1<<62); !errors.Is(err, quota.ErrFenced) {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := a.Status().Epoch; got != in.Epoch {
			t.Errorf("followed to %d", got)
		}
	})
}

func TestMetricsFollowTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown()
		reg := prometheus.NewRegistry()
		c, err := coordinator.NewCandidate(coordinator.CandidateConfig{
			Config:   coordinator.Config{Regions: []quota.Region{"us"}, Registerer: reg},
			Election: booth{w, "a"}, Name: "a", URL: "http://a",
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			pass(3 * time.Second)
			synctest.Wait()
			requireGauge(t, reg, "weir_leader", 1)
			requireGauge(t, reg, "weir_coordinator_quotas", 0)
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			requireGauge(t, reg, "weir_leader", 0)
			requireGauge(t, reg, "weir_coordinator_quotas", -1)
		}
	})
}

// requireGauge looks at a metric, which is not there when want is negative.
func requireGauge(t *testing.T, reg *prometheus.Registry, name string, want float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			if got := f.GetMetric()[0].GetGauge().GetValue(); got != want {
				t.Fatalf("%s is %v, want %v", name, got, want)
			}
			return
		}
	}
	if want >= 0 {
		t.Fatalf("no metric %s", name)
	}
}
