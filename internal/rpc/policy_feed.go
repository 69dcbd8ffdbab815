package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

const (
	// feedPoll is how often the store is asked for news without having woken us.
	feedPoll = 5 * time.Second
	// feedTrust is for how long after the store answered nodes are told that
	// they are up to date.
	feedTrust = 3 * feedPoll
	// overridePart and overrideStep are how many overrides, and changes of them,
	// one message holds.
	overridePart = 2000
	overrideStep = 1000
	// snapshotAge is how long a listing of all overrides serves those who begin
	// anew, who mostly come together; from there they go on by changes.
	snapshotAge = 10 * time.Second
	maxWatchers = 10_000
)

// feed reads the store once for all watchers. It looks for news while there are
// any. What it hands out is shared and never changed.
type feed struct {
	store policystore.Store
	log   *slog.Logger
	now   func() time.Time

	mu       sync.Mutex
	watchers int
	stop     context.CancelFunc
	current  *feedState
	// changed is closed when current is replaced.
	changed chan struct{}
	// answered is when the store last told its position.
	answered time.Time
	listing  *lazy[*overrideListing]
	listed   time.Time
}

func newFeed(store policystore.Store, log *slog.Logger) *feed {
	return &feed{store: store, log: log, now: time.Now, changed: make(chan struct{})}
}

// join counts a watcher, and starts to look for news for the first.
func (f *feed) join() (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers >= maxWatchers {
		return nil, fmt.Errorf("%w: %d nodes watch policies already", quota.ErrOverloaded, f.watchers)
	}
	f.watchers++
	if f.watchers == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		f.stop = cancel
		f.current, f.listing = nil, nil
		go f.run(ctx)
	}
	return sync.OnceFunc(f.leave), nil
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers--
	if f.watchers == 0 {
		f.stop()
		f.current, f.listing = nil, nil
	}
}

func (f *feed) run(ctx context.Context) {
	wake := f.store.Watch(ctx)
	poll := time.NewTicker(feedPoll)
	defer poll.Stop()
	away := false
	for {
		at, err := f.store.Position(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			away = false
			f.publish(ctx, at)
		case !away:
			away = true
			f.log.WarnContext(ctx, "the policy store does not answer; nodes stay on what they have", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-poll.C:
		}
	}
}

func (f *feed) publish(ctx context.Context, at policystore.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return // a later run has begun
	}
	f.answered = f.now()
	if f.listing != nil && f.now().Sub(f.listed) > snapshotAge {
		f.listing = nil
	}
	if f.current != nil && f.current.at == at {
		return
	}
	next := newFeedState(f.store, at)
	if f.current != nil && f.current.at.Revision == at.Revision {
		next.sets = f.current.sets // the same lock guards both
	}
	f.current = next
	close(f.changed)
	f.changed = make(chan struct{})
}

// latest returns the newest state, nil when the store has not answered yet, and
// a channel that is closed when there is a newer one.
func (f *feed) latest() (*feedState, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.changed
}

// trusted reports whether the newest state is known to be still the newest.
func (f *feed) trusted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current != nil && f.now().Sub(f.answered) <= feedTrust
}

// overrideListing is all overrides as of a position, ready to be sent.
type overrideListing struct {
	position int64
	parts    []*weirv1.WatchPoliciesResponse
}

// overrides lists all overrides, or returns a listing that is still fresh.
func (f *feed) overrides(ctx context.Context) (*overrideListing, error) {
	f.mu.Lock()
	if f.listing == nil || f.now().Sub(f.listed) > snapshotAge {
		f.listing, f.listed = &lazy[*overrideListing]{}, f.now()
	}
	l := f.listing
	f.mu.Unlock()
	return l.get(func() (*overrideListing, error) {
		at, err := f.store.Position(ctx)
		if err != nil {
			return nil, err
		}
		all, err := listOverrides(ctx, f.store, policystore.OverrideQuery{})
		if err != nil {
			return nil, err
		}
		out := &overrideListing{position: at.Overrides}
		for first := true; first || len(all) > 0; first = false {
			n := min(len(all), overridePart)
			out.parts = append(out.parts, &weirv1.WatchPoliciesResponse{Event: &weirv1.WatchPoliciesResponse_Overrides{
				Overrides: &weirv1.OverridePart{First: first, Overrides: fromOverrides(all[:n])},
			}})
			all = all[n:]
		}
		return out, nil
	})
}

// feedState is the store at one position, read on demand and once for all.
type feedState struct {
	store policystore.Store
	at    policystore.Position
	sets  *regionSets

	mu      sync.Mutex
	changes map[int64]*lazy[*overrideStepRead]
}

// regionSets are what is in force in each region at one revision.
type regionSets struct {
	mu   sync.Mutex
	sets map[quota.Region]*lazy[*regionSet]
}

type regionSet struct {
	number  int64
	message *weirv1.WatchPoliciesResponse
}

// overrideStepRead is the changes after a position, at most overrideStep of them.
type overrideStepRead struct {
	message *weirv1.WatchPoliciesResponse
	// position is that of the last change; more says that there may be others.
	position int64
	more     bool
}

func newFeedState(store policystore.Store, at policystore.Position) *feedState {
	return &feedState{
		store: store, at: at,
		sets:    &regionSets{sets: make(map[quota.Region]*lazy[*regionSet])},
		changes: make(map[int64]*lazy[*overrideStepRead]),
	}
}

// set returns what is in force in a region.
func (s *feedState) set(ctx context.Context, region quota.Region) (*regionSet, error) {
	return entry(&s.sets.mu, s.sets.sets, region).get(func() (*regionSet, error) {
		snapshot, err := s.store.InForce(ctx, region)
		if err != nil {
			return nil, err
		}
		return &regionSet{snapshot.Number, &weirv1.WatchPoliciesResponse{Event: &weirv1.WatchPoliciesResponse_Policies{
			Policies: &weirv1.PolicySet{Revision: fromRevision(snapshot.Revision), Policies: fromPolicies(snapshot.Policies)},
		}}}, nil
	})
}

// changesAfter returns the changes of overrides after a position, or
// policystore.ErrCompacted.
func (s *feedState) changesAfter(ctx context.Context, after int64) (*overrideStepRead, error) {
	return entry(&s.mu, s.changes, after).get(func() (*overrideStepRead, error) {
		list, err := s.store.OverrideChanges(ctx, after, overrideStep)
		if err != nil {
			return nil, err
		}
		out := &overrideStepRead{position: after, more: len(list) == overrideStep}
		if len(list) > 0 {
			out.position = list[len(list)-1].Position
			out.message = &weirv1.WatchPoliciesResponse{Event: &weirv1.WatchPoliciesResponse_Changes{Changes: fromOverrideChanges(list)}}
		}
		return out, nil
	})
}

// entry returns the value of a key, made when it is asked for first.
func entry[K comparable, V any](mu *sync.Mutex, m map[K]*V, key K) *V {
	mu.Lock()
	defer mu.Unlock()
	v := m[key]
	if v == nil {
		v = new(V)
		m[key] = v
	}
	return v
}

// lazy is a value that is made by the first who asks while the others wait.
// An error is not kept: the next one tries again.
type lazy[T any] struct {
	mu    sync.Mutex
	made  bool
	value T
}

func (l *lazy[T]) get(read func() (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made {
		return l.value, nil
	}
	value, err := read()
	if err == nil {
		l.value, l.made = value, true
	}
	return value, err
}
