package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

// node is what a node does with updates: it keeps the newest state.
type node struct {
	mu        sync.Mutex
	at        rpc.WatchPosition
	set       *policystore.Snapshot
	overrides map[string]int
	sets      int // how many sets it was sent
	resets    int
	empty     int
	err       error
	done      chan struct{}
	stop      context.CancelFunc
}

func (n *node) use(u rpc.PolicyUpdate) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at = u.Position
	if u.Set != nil {
		n.set = u.Set
		n.sets++
	}
	if u.Reset {
		n.overrides = make(map[string]int)
		n.resets++
	}
	for _, o := range u.Overrides {
		n.overrides[policystore.IDOf(o).String()] = int(o.Limit.Capacity.Whole())
	}
	for _, c := range u.Changes {
		if c.Override == nil {
			delete(n.overrides, c.ID.String())
		} else {
			n.overrides[c.ID.String()] = int(c.Override.Limit.Capacity.Whole())
		}
	}
	if u.Empty() {
		n.empty++
	}
	return nil
}

// watch starts a node; it is stopped with the test.
func watch(t *testing.T, c *rpc.PolicyClient, region quota.Region, known *rpc.WatchPosition) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{done: make(chan struct{}), stop: cancel, overrides: make(map[string]int)}
	go func() {
		defer close(n.done)
		n.err = c.Watch(ctx, region, known, n.use)
	}()
	t.Cleanup(func() {
		cancel()
		<-n.done
	})
	return n
}

// look has something read of a node that goes on following.
func (n *node) look(read func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	read()
}

// until waits until the node's state satisfies a condition.
func (n *node) until(t *testing.T, what string, ok func(n *node) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return ok(n)
	}, 20*time.Second, time.Millisecond, what)
}

func (n *node) has(set map[string]int, overrides map[string]int) func(*node) bool {
	return func(n *node) bool {
		return n.set != nil && fmt.Sprint(numbers(n.set.Policies)) == fmt.Sprint(set) && fmt.Sprint(n.overrides) == fmt.Sprint(overrides)
	}
}

func TestWatch(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("a", 7, "k1")))
	east, west := watch(t, b.PolicyClient, "us-east", nil), watch(t, b.PolicyClient, "eu-west", nil)
	for _, n := range []*node{east, west} {
		n.until(t, "the snapshot", n.has(map[string]int{"a": 1}, map[string]int{`a["k1"]`: 7}))
		n.look(func() {
			assert.Equal(t, rpc.WatchPosition{Instance: "test", Revision: 1, Overrides: 1}, n.at)
			assert.Equal(t, b.current(t), *n.set, "nothing of a revision is lost")
		})
	}
	assert.Contains(t, b.get(t, "/metrics").body, "weir_policy_watchers 2")

	b.put(t, ann, map[string]int{"a": 2, "b": 1})
	east.until(t, "the update", east.has(map[string]int{"a": 2, "b": 1}, map[string]int{`a["k1"]`: 7}))
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("b", 9, "k2")))
	require.NoError(t, b.DeleteOverrides(t.Context(), ann, policystore.OverrideID{Policy: "a", Key: []string{"k1"}}))
	west.until(t, "the overrides", west.has(map[string]int{"a": 2, "b": 1}, map[string]int{`b["k2"]`: 9}))

	_, err := b.Apply(t.Context(), rpc.Change{Edit: ann, Document: doc(map[string]int{"a": 3}), Patch: true, Regions: []quota.Region{"us-east"}})
	require.NoError(t, err)
	east.until(t, "the rollout", east.has(map[string]int{"a": 3, "b": 1}, map[string]int{`b["k2"]`: 9}))
	_, err = b.Rollback(t.Context(), rpc.Rollback{Edit: ann, To: 3})
	require.NoError(t, err)
	west.until(t, "the promotion", west.has(map[string]int{"a": 3, "b": 1}, map[string]int{`b["k2"]`: 9}))
	west.look(func() {
		assert.Equal(t, 3, west.sets, "the other region saw nothing of the rollout")
		assert.Equal(t, 1, west.resets, "overrides came as changes")
	})
	before := 0
	east.look(func() { before = east.empty })
	east.until(t, "heartbeats", func(n *node) bool { return n.empty > before+2 })

	east.stop()
	<-east.done
	require.ErrorIs(t, east.err, context.Canceled)
	require.Eventually(t, func() bool {
		return containsLine(b.get(t, "/metrics").body, "weir_policy_watchers 1")
	}, 10*time.Second, time.Millisecond)
	assert.NotContains(t, b.log.String(), "level=ERROR", "a node that leaves is no error")
}

func containsLine(body, line string) bool {
	for l := range strings.SplitSeq(body, "\n") {
		if l == line {
			return true
		}
	}
	return false
}

func TestWatchGoesOnFromAPosition(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("a", 7, "k1")))
	first := watch(t, b.PolicyClient, "us-east", nil)
	first.until(t, "the snapshot", func(n *node) bool { return n.set != nil })
	first.stop()
	<-first.done

	again := watch(t, b.PolicyClient, "us-east", &first.at)
	again.until(t, "heartbeats", func(n *node) bool { return n.empty > 0 })
	again.look(func() {
		assert.Zero(t, again.sets, "the node is up to date and is sent nothing")
		assert.Zero(t, again.resets)
	})
	again.stop()
	<-again.done

	// Fifty changes while nobody listens.
	for i := range 50 {
		b.put(t, ann, map[string]int{"a": 100 + i})
		require.NoError(t, b.SetOverrides(t.Context(), ann, override("a", 1, fmt.Sprint("k", i%10))))
	}
	behind := watch(t, b.PolicyClient, "us-east", &first.at)
	behind.until(t, "the newest", func(n *node) bool { return n.at.Overrides == 51 && len(n.overrides) == 10 })
	assert.Equal(t, 1, behind.sets, "only the newest revision is sent")
	assert.Zero(t, behind.resets)
	assert.Equal(t, map[string]int{"a": 149}, numbers(behind.set.Policies))

	for name, known := range map[string]rpc.WatchPosition{
		"another instance": {Instance: "other", Revision: 51, Overrides: 51},
		"ahead of us":      {Instance: "test", Revision: 99, Overrides: 99},
	} {
		n := watch(t, b.PolicyClient, "us-east", &known)
		n.until(t, name, func(n *node) bool { return n.sets == 1 && n.resets == 1 && n.at.Overrides == 51 })
	}
}

// compacting forgets changes before a position, as stores do after an hour.
type compacting struct {
	*memory.Store
	forgotten atomic.Int64
}

func (c *compacting) OverrideChanges(ctx context.Context, after int64, limit int) ([]policystore.OverrideChange, error) {
	if after < c.forgotten.Load() {
		return nil, policystore.ErrCompacted
	}
	return c.Store.OverrideChanges(ctx, after, limit)
}

func TestWatchAfterCompaction(t *testing.T) {
	store := &compacting{Store: memory.New(nil)}
	b := servePolicies(t, func(c *rpc.ServerConfig) { c.Policies.Store = store })
	b.store = store.Store
	b.put(t, ann, map[string]int{"a": 1})
	var overrides []quota.Override
	for i := range 5000 { // more than a message of either kind holds
		overrides = append(overrides, override("a", i+1, fmt.Sprintf("k%04d", i)))
	}
	n := watch(t, b.PolicyClient, "us-east", nil)
	n.until(t, "the snapshot", func(n *node) bool { return n.resets == 1 })
	require.NoError(t, b.SetOverrides(t.Context(), ann, overrides...))
	n.until(t, "all changes", func(n *node) bool { return len(n.overrides) == 5000 && n.at.Overrides == 5000 })
	n.look(func() { assert.Equal(t, 1, n.resets) })

	store.forgotten.Store(5000)
	late := watch(t, b.PolicyClient, "us-east", &rpc.WatchPosition{Instance: "test", Revision: 1, Overrides: 10})
	late.until(t, "everything", func(n *node) bool { return len(n.overrides) == 5000 && n.resets == 1 && n.at.Overrides == 5000 })
	assert.Zero(t, late.sets)
}

// A node that reads slowly is brought to the newest state, not through all.
func TestWatchSkipsWhatASlowNodeMissed(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	release, entered := make(chan struct{}), make(chan struct{})
	var sets atomic.Int64
	var last atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.Watch(ctx, "us-east", nil, func(u rpc.PolicyUpdate) error {
			if u.Set == nil {
				return nil
			}
			if sets.Add(1) == 1 {
				close(entered)
				<-release
			}
			last.Store(u.Set.Number)
			return nil
		})
	}()
	<-entered
	var big []*quota.Policy // far more than the buffers on the way hold, together
	for i := range 3000 {
		big = append(big, &quota.Policy{ID: fmt.Sprintf("policy-%04d", i), Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailOpen})
	}
	const changes = 40
	for i := range changes {
		big[0].Priority = i
		_, err := b.store.Apply(t.Context(), policystore.Change{Edit: policystore.Edit{Author: "x"}, Replace: true, Policies: big})
		require.NoError(t, err)
	}
	close(release)
	require.Eventually(t, func() bool { return last.Load() == changes+1 }, 30*time.Second, time.Millisecond)
	assert.Less(t, sets.Load(), int64(changes), "states in between were skipped")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestWatchEndsWithTheServer(t *testing.T) {
	b := servePolicies(t, func(c *rpc.ServerConfig) { c.DrainTimeout = 5 * time.Second })
	b.put(t, ann, map[string]int{"a": 1})
	nodes := make([]*node, 5)
	for i := range nodes {
		nodes[i] = watch(t, b.PolicyClient, "us-east", nil)
		nodes[i].until(t, "the snapshot", func(n *node) bool { return n.set != nil })
	}
	start := time.Now()
	require.NoError(t, b.Stop(context.Background()), "no stream had to be cut")
	assert.Less(t, time.Since(start), 4*time.Second)
	for _, n := range nodes {
		<-n.done
		require.ErrorIs(t, n.err, quota.ErrUnavailable)
	}
}

func TestWatchManyNodesReadTheStoreOnce(t *testing.T) {
	store := &counting{Store: memory.New(nil)}
	b := servePolicies(t, func(c *rpc.ServerConfig) { c.Policies.Store = store })
	b.put(t, ann, map[string]int{"a": 1})
	nodes := make([]*node, 30)
	for i := range nodes {
		nodes[i] = watch(t, b.PolicyClient, "us-east", nil)
	}
	for _, n := range nodes {
		n.until(t, "the snapshot", func(n *node) bool { return n.set != nil })
	}
	store.inForce.Store(0)
	store.changes.Store(0)
	b.put(t, ann, map[string]int{"a": 2})
	require.NoError(t, b.SetOverrides(t.Context(), ann, override("a", 1, "k")))
	for _, n := range nodes {
		n.until(t, "the change", func(n *node) bool { return n.at.Revision == 2 && len(n.overrides) == 1 })
	}
	assert.LessOrEqual(t, store.inForce.Load(), int64(2))
	assert.LessOrEqual(t, store.changes.Load(), int64(2))
}

type counting struct {
	*memory.Store
	inForce, changes atomic.Int64
}

func (c *counting) InForce(ctx context.Context, region quota.Region) (policystore.Snapshot, error) {
	c.inForce.Add(1)
	return c.Store.InForce(ctx, region)
}

func (c *counting) OverrideChanges(ctx context.Context, after int64, limit int) ([]policystore.OverrideChange, error) {
	c.changes.Add(1)
	return c.Store.OverrideChanges(ctx, after, limit)
}

// flaky is a store that can be away.
type flaky struct {
	*memory.Store
	away atomic.Bool
}

func (f *flaky) err() error {
	if f.away.Load() {
		return fmt.Errorf("no connection: %w", quota.ErrUnavailable)
	}
	return nil
}

func (f *flaky) Position(ctx context.Context) (policystore.Position, error) {
	if err := f.err(); err != nil {
		return policystore.Position{}, err
	}
	return f.Store.Position(ctx)
}

func (f *flaky) InForce(ctx context.Context, region quota.Region) (policystore.Snapshot, error) {
	if err := f.err(); err != nil {
		return policystore.Snapshot{}, err
	}
	return f.Store.InForce(ctx, region)
}

func (f *flaky) FindToken(ctx context.Context, h policystore.TokenHash) (policystore.Token, error) {
	if err := f.err(); err != nil {
		return policystore.Token{}, err
	}
	return f.Store.FindToken(ctx, h)
}

func TestWatchOutlivesTheStore(t *testing.T) {
	store := &flaky{Store: memory.New(nil)}
	b := servePolicies(t, func(c *rpc.ServerConfig) { c.Policies.Store = store })
	b.store = store.Store
	b.put(t, ann, map[string]int{"a": 1})
	n := watch(t, b.PolicyClient, "us-east", nil)
	n.until(t, "the snapshot", func(n *node) bool { return n.set != nil })
	store.away.Store(true)
	_, err := store.Apply(t.Context(), policystore.Change{Edit: policystore.Edit{Author: "other process"}, Delete: []string{"a"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "policy store does not answer") }, 10*time.Second, time.Millisecond)
	late := watch(t, b.PolicyClient, "us-east", nil)
	store.away.Store(false)
	store.Wake()
	for _, n := range []*node{n, late} {
		n.until(t, "the change made meanwhile", n.has(map[string]int{}, map[string]int{}))
		select {
		case <-n.done:
			t.Fatal("the stream ended")
		default:
		}
	}
}

// A connection that is open and silent is noticed by missing heartbeats.
func TestWatchNoticesADeadStream(t *testing.T) {
	b := servePolicies(t)
	b.put(t, ann, map[string]int{"a": 1})
	proxy := newPausedProxy(t, b.addr)
	client, err := rpc.NewPolicyClient(rpc.ClientConfig{URL: "http://" + proxy.addr, Timeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	n := watch(t, client, "us-east", nil)
	n.until(t, "the snapshot", func(n *node) bool { return n.set != nil })
	proxy.pause()
	<-n.done
	require.ErrorIs(t, n.err, quota.ErrUnavailable)
	assert.ErrorContains(t, n.err, "silent")
}

// pausedProxy forwards connections until it is paused; then it keeps them open
// and forwards nothing.
type pausedProxy struct {
	addr   string
	paused atomic.Bool
}

func (p *pausedProxy) pause() { p.paused.Store(true) }

func newPausedProxy(t *testing.T, target string) *pausedProxy {
	t.Helper()
	ln := listen(t)
	p := &pausedProxy{addr: ln.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := new(net.Dialer).DialContext(context.Background(), "tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(out, in) })
			wg.Go(func() { _, _ = io.Copy(&gated{in, p}, out) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return p
}

type gated struct {
	io.Writer
	p *pausedProxy
}

func (g *gated) Write(b []byte) (int, error) {
	if g.p.paused.Load() {
		return len(b), nil
	}
	return g.Writer.Write(b)
}

func TestWatchRefusals(t *testing.T) {
	b := servePolicies(t)
	use := func(rpc.PolicyUpdate) error { return nil }
	require.ErrorIs(t, b.Watch(t.Context(), "a b", nil, use), quota.ErrInvalid)
	require.ErrorIs(t, b.Watch(t.Context(), "us-east", &rpc.WatchPosition{Instance: string(make([]byte, 65))}, use), quota.ErrInvalid)
	enough := errors.New("enough")
	require.ErrorIs(t, b.Watch(t.Context(), "us-east", nil, func(rpc.PolicyUpdate) error { return enough }), enough)
	_, err := rpc.NewPolicyClient(rpc.ClientConfig{URL: "nowhere"})
	require.ErrorIs(t, err, quota.ErrInvalid)
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	defer elsewhere.Close()
	c, err := rpc.NewPolicyClient(rpc.ClientConfig{URL: elsewhere.URL})
	require.NoError(t, err)
	require.Error(t, c.Watch(t.Context(), "us-east", nil, use))
	require.NoError(t, c.Close())
}
