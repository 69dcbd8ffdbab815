package app

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/regional"
)

const (
	// trafficRate is what all built-in clients offer together, in checks per
	// second: 85 % of the example policy that they share.
	trafficRate = 85
	// trafficCycle is how long the busiest region takes to wander once around.
	trafficCycle = 3 * time.Minute
)

// traffic is the built-in client population: one stream of checks per region, whose
// rates shift so that the split can be seen to follow.
type traffic struct {
	clients []*client
}

type client struct {
	region           quota.Region
	engine           *regional.Engine
	admitted, denied atomic.Int64
}

// clientCount is what the clients of one region have met so far.
type clientCount struct {
	Region   quota.Region `json:"region"`
	Admitted int64        `json:"admitted"`
	Denied   int64        `json:"denied"`
}

func newTraffic(regions []quota.Region, engines []*regional.Engine) *traffic {
	t := &traffic{}
	for i, e := range engines {
		t.clients = append(t.clients, &client{region: regions[i], engine: e})
	}
	return t
}

// mix is the part of the traffic that region i of n offers after some time: a hump
// that wanders from region to region. The parts sum to 1.
func mix(i, n int, elapsed time.Duration) float64 {
	weight := func(i int) float64 {
		phase := 2 * math.Pi * (elapsed.Seconds()/trafficCycle.Seconds() - float64(i)/float64(n))
		return math.Exp(1.5 * math.Cos(phase))
	}
	sum := 0.0
	for k := range n {
		sum += weight(k)
	}
	return weight(i) / sum
}

func (t *traffic) run(ctx context.Context) error {
	var all sync.WaitGroup
	start := time.Now()
	for i, c := range t.clients {
		all.Go(func() {
			c.run(ctx, func() float64 { return trafficRate * mix(i, len(t.clients), time.Since(start)) })
		})
	}
	all.Wait()
	return nil
}

// run sends checks at random instants (a Poisson process) of the given rate per second.
func (c *client) run(ctx context.Context, rate func() float64) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		result, err := c.engine.Check(ctx, quota.Request{
			Attributes: map[string]string{"route": "GET /v1/orders", "tenant": "acme", "plan": "pro"},
			Cost:       quota.Token,
		})
		switch {
		case errors.Is(err, context.Canceled):
			return
		case err == nil && result.Allowed:
			c.admitted.Add(1)
		default:
			c.denied.Add(1)
		}
		pause.Reset(time.Duration(rand.ExpFloat64() / rate() * float64(time.Second))) //nolint:gosec // simulated clients
	}
}

func (t *traffic) counts() []clientCount {
	counts := make([]clientCount, len(t.clients))
	for i, c := range t.clients {
		counts[i] = clientCount{Region: c.region, Admitted: c.admitted.Load(), Denied: c.denied.Load()}
	}
	return counts
}
