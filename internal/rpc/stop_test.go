package rpc_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// Clients that look at /readyz, as a load balancer does, see no failed call.
func TestStopUnderLoadFailsNoCall(t *testing.T) {
	s := serve(t, &fakeLimiter{}, func(c *rpc.ServerConfig) { c.DrainDelay = 300 * time.Millisecond })
	conn := s.grpcConn(t)
	var calls atomic.Int64
	var removed atomic.Bool
	var clients sync.WaitGroup
	load := func(call func() error) {
		clients.Go(func() {
			for !removed.Load() {
				if err := call(); err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	for range 4 {
		load(func() error {
			return conn.Invoke(context.Background(), check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{})
		})
		load(func() error {
			_, err := s.do(http.MethodPost, check, `{}`)
			return err
		})
	}
	// The balancer: asks every few milliseconds and takes the server out.
	clients.Go(func() {
		defer removed.Store(true)
		for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
			r, err := s.do(http.MethodGet, "/readyz", "")
			if err != nil {
				t.Error(err)
			}
			if r.status != http.StatusOK {
				return
			}
		}
	})
	require.Eventually(t, func() bool { return calls.Load() > 200 }, 10*time.Second, time.Millisecond)
	before := calls.Load()
	require.NoError(t, s.Stop(context.Background()))
	clients.Wait()
	assert.Greater(t, calls.Load(), before, "calls went on while the server drained")
}

// What is under way when the listener closes is answered, over each protocol.
func TestStopWaitsForCallsUnderWay(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		entered <- struct{}{}
		<-release
		return quota.Result{Allowed: true}, nil
	}})
	conn := s.grpcConn(t)
	errs := make(chan error, 2)
	go func() {
		errs <- conn.Invoke(context.Background(), check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{})
	}()
	go func() {
		_, err := s.do(http.MethodPost, check, `{}`)
		errs <- err
	}()
	<-entered
	<-entered
	stopped := make(chan error, 2)
	for range 2 { // concurrent stops wait for one and the same
		go func() { stopped <- s.Stop(context.Background()) }()
	}
	require.Eventually(t, func() bool {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, 5*time.Second, time.Millisecond, "the listener closes at once")
	select {
	case err := <-stopped:
		t.Fatalf("stopped before the calls were answered: %v", err)
	default:
	}
	close(release)
	for range 2 {
		require.NoError(t, <-errs)
		require.NoError(t, <-stopped)
	}
	require.NoError(t, s.Stop(context.Background()), "again")
}

func TestStopIsBounded(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	s := serve(t, &fakeLimiter{check: func(ctx context.Context, _ quota.Request) (quota.Result, error) {
		close(entered)
		<-ctx.Done()
		close(left)
		return quota.Result{}, ctx.Err()
	}}, func(c *rpc.ServerConfig) {
		c.DrainTimeout = 30 * time.Millisecond
		c.DrainDelay = time.Hour
	})
	failed := make(chan error, 1)
	go func() {
		_, err := s.do(http.MethodPost, check, `{}`)
		failed <- err
	}()
	<-entered
	// An hour of delay is cut short by the context, which is then over for the drain too.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	err := s.Stop(ctx)
	require.ErrorContains(t, err, "calls were cut")
	assert.Equal(t, err, s.Stop(context.Background()))
	<-left
	assert.Error(t, <-failed)
}

func TestDrainingIsNotReady(t *testing.T) {
	s := serve(t, &fakeLimiter{}, func(c *rpc.ServerConfig) { c.DrainDelay = time.Hour })
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(ctx) }()
	require.Eventually(t, func() bool {
		r := s.get(t, "/readyz")
		if r.status != http.StatusServiceUnavailable {
			return false
		}
		assert.JSONEq(t, `{"ready":false,"status":"draining"}`, r.body)
		assert.True(t, r.closing, "HTTP/1.1 clients are told to go elsewhere")
		return true
	}, 5*time.Second, time.Millisecond)
	status, _ := s.post(t, check, `{}`)
	assert.Equal(t, 200, status, "still answered while balancers catch up")
	cancel()
	if err := <-stopped; err != nil {
		t.Log("the context is over, so a connection may be cut:", err)
	}
}

func BenchmarkEmptyCheck(b *testing.B) {
	s := serve(b, &fakeLimiter{})
	b.Run("connect-json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.post(b, check, `{}`)
		}
	})
	b.Run("connect", func(b *testing.B) {
		c := newClient(b, s.url, 0)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Check(context.Background(), quota.Request{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("grpc", func(b *testing.B) {
		conn := s.grpcConn(b)
		b.ReportAllocs()
		for b.Loop() {
			if err := conn.Invoke(context.Background(), check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
