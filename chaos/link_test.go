package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// link is a TCP proxy in front of one server.
type link struct {
	proxy *toxiproxy.Proxy
	addr  string
}

// direction is what a link loses.
type direction string

const (
	// requests are what goes to the server, answers what comes from it.
	requests direction = "upstream"
	answers  direction = "downstream"
)

func newLink(tb testing.TB, r *rand.Rand, target string) *link {
	tb.Helper()
	nothing := zerolog.Nop()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), nothing)
	addr := net.JoinHostPort("127.0.0.1", freePort(tb, r))
	l := &link{proxy: toxiproxy.NewProxy(server, target, addr, target), addr: addr}
	if err := l.proxy.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(l.proxy.Stop)
	return l
}

// freePort returns a port that can be listened on again after it was closed: one below
// those that the kernel gives to outgoing connections.
func freePort(tb testing.TB, r *rand.Rand) string {
	tb.Helper()
	for range 100 {
		port := strconv.Itoa(15000 + r.IntN(15000))
		ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			continue
		}
		if err := ln.Close(); err != nil {
			tb.Fatal(err)
		}
		return port
	}
	tb.Fatal("no free port from 15000 to 30000")
	return ""
}

func (l *link) toxic(tb testing.TB, kind string, way direction, attributes string) {
	tb.Helper()
	text := fmt.Sprintf(`{"name":"%s-%s","type":"%s","stream":"%s","attributes":%s}`, kind, way, kind, way, attributes)
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
		tb.Errorf("toxic %s: %v", text, err)
	}
}

// delay makes each way take about this long.
func (l *link) delay(tb testing.TB, d time.Duration) {
	tb.Helper()
	ms := d.Milliseconds()
	for _, way := range []direction{requests, answers} {
		l.toxic(tb, "latency", way, fmt.Sprintf(`{"latency":%d,"jitter":%d}`, ms, ms/2))
	}
}

// lose swallows what goes one way. Connections stay open and new ones are accepted, as
// when packets are dropped.
func (l *link) lose(tb testing.TB, way direction) {
	tb.Helper()
	l.toxic(tb, "timeout", way, `{"timeout":0}`)
}

// find ends lose. The connections that lost something end too.
func (l *link) find(tb testing.TB, way direction) {
	tb.Helper()
	if err := l.proxy.Toxics.RemoveToxic(tb.Context(), "timeout-"+string(way)); err != nil {
		tb.Error(err)
	}
}

// refuse ends all connections and refuses new ones, as when the server is gone.
func (l *link) refuse() { l.proxy.Stop() }

// accept ends refuse.
func (l *link) accept(tb testing.TB) {
	tb.Helper()
	if err := l.proxy.Start(); err != nil {
		tb.Error(err)
	}
}
