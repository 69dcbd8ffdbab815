package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDebounce(t *testing.T) {
	start := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for name, tc := range map[string]struct {
		events []int
		due    int
	}{
		"one event":              {[]int{0}, 100},
		"a burst waits for rest": {[]int{0, 50, 120}, 220},
		"but not for ever":       {[]int{0, 90, 180, 270, 360, 450}, 500},
		"limit is from first":    {[]int{10, 490}, 510},
	} {
		d := debounce{quiet: 100 * time.Millisecond, limit: 500 * time.Millisecond}
		require.Zero(t, d.due(), name)
		for _, ms := range tc.events {
			d.event(at(ms))
		}
		require.Equal(t, at(tc.due), d.due(), name)
		d.reset()
		require.Zero(t, d.due(), name)
	}
}

// fakeStore takes every change, or fails.
type fakeStore struct {
	mu    sync.Mutex
	err   error
	calls int
}

func (f *fakeStore) Apply(context.Context, policystore.Change) (policystore.Applied, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return policystore.Applied{Committed: f.err == nil, Revision: policystore.Revision{Number: int64(f.calls)}}, f.err
}

func (f *fakeStore) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeStore) applies() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// everything is a follower to which each event matters.
type everything struct{}

func (everything) follow() {}

func (everything) concerns(fsnotify.Event) bool { return true }

// loopBundle is a loop in virtual time over a real file.
type loopBundle struct {
	path    string
	store   *fakeStore
	source  *Source
	events  chan fsnotify.Event
	errs    chan error
	results []Result
}

func runLoop(t *testing.T, test func(t *testing.T, b *loopBundle)) {
	path := filepath.Join(t.TempDir(), "policies.yaml")
	synctest.Test(t, func(t *testing.T) {
		b := &loopBundle{path: path, store: &fakeStore{}, events: make(chan fsnotify.Event), errs: make(chan error)}
		b.write(t, "first")
		s, err := New(Config{
			Path: path, Store: b.store,
			Parse:    func([]byte) ([]*quota.Policy, error) { return nil, nil },
			OnResult: func(r Result) { b.results = append(b.results, r) },
		})
		require.NoError(t, err)
		b.source = s
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.loop(ctx, b.events, b.errs, everything{})
		}()
		b.wait(DefaultQuiet)
		require.Equal(t, 1, b.store.applies())
		test(t, b)
		cancel()
		<-done
	})
}

func (b *loopBundle) write(t *testing.T, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(b.path, []byte(content), 0o600))
}

func (b *loopBundle) wait(d time.Duration) {
	<-time.After(d) // by the clock of the bubble
	synctest.Wait()
}

func TestBurstIsReadOnceWhenQuiet(t *testing.T) {
	runLoop(t, func(t *testing.T, b *loopBundle) {
		for _, content := range []string{"a", "ab", "abc"} {
			b.write(t, content)
			b.events <- fsnotify.Event{}
			b.wait(DefaultQuiet - time.Millisecond)
			require.Equal(t, 1, b.store.applies(), "read while it is being written")
		}
		b.wait(time.Millisecond)
		require.Equal(t, 2, b.store.applies())
		b.wait(10 * DefaultPoll)
		require.Equal(t, 2, b.store.applies(), "the same content again")
	})
}

func TestEndlessEventsDoNotStarve(t *testing.T) {
	runLoop(t, func(t *testing.T, b *loopBundle) {
		b.write(t, "second")
		for range burstFactor + 1 {
			b.events <- fsnotify.Event{}
			b.wait(DefaultQuiet - time.Millisecond)
		}
		require.Equal(t, 2, b.store.applies())
	})
}

func TestPollFindsWhatEventsMissed(t *testing.T) {
	runLoop(t, func(t *testing.T, b *loopBundle) {
		b.write(t, "second")
		b.wait(DefaultPoll + DefaultQuiet)
		require.Equal(t, 2, b.store.applies())
	})
}

func TestLostEventsAreMadeUp(t *testing.T) {
	runLoop(t, func(t *testing.T, b *loopBundle) {
		b.write(t, "second")
		b.errs <- fsnotify.ErrEventOverflow
		b.wait(DefaultQuiet)
		require.Equal(t, 2, b.store.applies())
		// A watcher that dies leaves the poll.
		close(b.events)
		close(b.errs)
		b.write(t, "third")
		b.wait(DefaultPoll + DefaultQuiet)
		require.Equal(t, 3, b.store.applies())
	})
}

func TestStoreAwayIsTriedAgain(t *testing.T) {
	runLoop(t, func(t *testing.T, b *loopBundle) {
		b.store.fail(quota.ErrUnavailable)
		b.write(t, "second")
		b.events <- fsnotify.Event{}
		b.wait(DefaultQuiet)
		require.ErrorIs(t, b.source.Status().Err, quota.ErrUnavailable)
		b.wait(3 * DefaultPoll)
		require.Equal(t, 5, b.store.applies())
		require.Len(t, b.results, 2, "the same failure is told once")

		b.store.fail(nil)
		b.wait(DefaultPoll + DefaultQuiet)
		require.NoError(t, b.source.Status().Err)
		require.Equal(t, Applied, b.results[2].Outcome)

		// Going back to what is applied heals without the store.
		b.store.fail(quota.ErrUnavailable)
		b.write(t, "third")
		b.wait(DefaultPoll + DefaultQuiet)
		require.Error(t, b.source.Status().Err)
		applies := b.store.applies()
		b.write(t, "second")
		b.wait(DefaultPoll + DefaultQuiet)
		require.NoError(t, b.source.Status().Err)
		require.Equal(t, applies, b.store.applies())
	})
}

func TestWhatTheStoreFindsInvalidIsRefusedOnce(t *testing.T) {
	runLoop(t, func(t *testing.T, b *loopBundle) {
		b.store.fail(errors.Join(quota.ErrInvalid))
		b.write(t, "second")
		b.wait(4 * DefaultPoll)
		require.Equal(t, 2, b.store.applies())
		require.Equal(t, Refused, b.results[1].Outcome)
	})
}
