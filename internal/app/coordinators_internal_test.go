package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// leading takes every report.
type leading struct{}

func (leading) Report(context.Context, quota.Report) (quota.Instructions, error) {
	return quota.Instructions{Epoch: 7}, nil
}

// Whatever a coordinator that does not lead answers, or something else at its address,
// the region goes on to the one that does, and stays with it.
func TestReportReachesTheLeaderPastABrokenCoordinator(t *testing.T) {
	server, err := rpc.NewServer(rpc.ServerConfig{Regions: leading{}, Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ln := httptest.NewUnstartedServer(nil).Listener
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Stop(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	for name, answer := range map[string]http.HandlerFunc{
		"closes the connection": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		},
		"is another server": http.NotFound,
		"fails":             func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	} {
		t.Run(name, func(t *testing.T) {
			broken := httptest.NewServer(answer)
			defer broken.Close()
			l := &lifecycle{log: slog.New(slog.DiscardHandler)}
			c, err := l.dial(RegionalConfig{Coordinator: []string{broken.URL, "http://" + ln.Addr().String()}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.close() }()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			in, err := c.Report(ctx, quota.Report{Region: "a"})
			if err != nil || in.Epoch != 7 {
				t.Fatalf("epoch %d, %v; want the answer of the one that leads", in.Epoch, err)
			}
			if c.leader.Load() != 1 {
				t.Error("the next report asks the broken one first")
			}
		})
	}
}
