package quota_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// logWorld is K regions that split one sliding log. Shares move by rule W4: a region
// grows a window after another shrank.
type logWorld struct {
	r       *rand.Rand
	limit   quota.Limit
	regions []*envelopeRegion
	limits  map[string]int64 // of the keys
	entries map[string][]int64
	now     int64
	version int64
	hasty   bool // grows at once, which is wrong
}

func newLogWorld(seed uint64) *logWorld {
	r := rand.New(rand.NewPCG(seed, 11))
	n := 3 + r.Int64N(30)
	w := &logWorld{
		r: r, limit: quota.Limit{Capacity: tokens(n), Period: time.Duration(1+r.Int64N(20)) * time.Second},
		limits:  map[string]int64{"plain": n, "double": 2 * n, "third": n / 3},
		entries: map[string][]int64{},
	}
	for range 2 + r.IntN(3) {
		w.regions = append(w.regions, &envelopeRegion{model: quota.NewModel(), offset: start + r.Int64N(1_000_000_000)})
	}
	return w
}

func (w *logWorld) grant(i int, share quota.Tokens) error {
	g := w.regions[i]
	g.share.Capacity = share
	w.version++
	grant := quota.Grant{Version: w.version, Algorithm: quota.SlidingLog, Limit: w.limit, Share: g.share, Permanent: g.share}
	_, err := g.model.Apply(g.clock(w.now), 0, 1, "g", []string{"share"}, []quota.Grant{grant})
	return err
}

func (w *logWorld) traffic(span time.Duration) error {
	for end := w.now + span.Microseconds(); w.now < end; {
		w.now += (w.r.Int64N(max(1, w.limit.Period.Microseconds()/8))/tick + 1) * tick
		for name, n := range w.limits {
			for _, i := range w.r.Perm(len(w.regions)) {
				if err := w.drain(i, name, n); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *logWorld) drain(i int, name string, n int64) error {
	g := w.regions[i]
	now := g.clock(w.now)
	g.model.Expire(now)
	e := quota.Entry{
		Bucket: name, ShareKey: "share", Algorithm: quota.SlidingLog,
		Limit: quota.Limit{Capacity: tokens(n), Period: w.limit.Period}, Base: w.limit,
	}
	for most := w.r.IntN(20); most > 0; most-- {
		out, err := g.model.Acquire(now, quota.Attempt{Cost: quota.Token, Entries: []quota.Entry{e}})
		if err != nil || !out.Allowed {
			return err
		}
		w.entries[name] = append(w.entries[name], w.now)
		in := w.entries[name]
		for w.now-in[0] >= w.limit.Period.Microseconds() {
			in = in[1:]
		}
		w.entries[name] = in
		if int64(len(in)) > n {
			return fmt.Errorf("key %s: %d of %d in %s", name, len(in), n, w.limit.Period)
		}
	}
	return nil
}

func (w *logWorld) run(moves int) error {
	for i, g := range w.regions {
		g.model.Initialise(g.clock(0), 0, "g", true)
		if err := w.grant(i, w.limit.Capacity/quota.Tokens(len(w.regions))/quota.Token*quota.Token); err != nil {
			return err
		}
	}
	for range moves {
		if err := w.traffic(time.Duration(w.r.Int64N(int64(2 * w.limit.Period)))); err != nil {
			return err
		}
		from, to := w.r.IntN(len(w.regions)), w.r.IntN(len(w.regions))
		moved := quota.Tokens(w.r.Int64N(int64(w.regions[from].share.Capacity)+1)) / quota.Token * quota.Token
		if from == to || moved == 0 {
			continue
		}
		if err := w.grant(from, w.regions[from].share.Capacity-moved); err != nil {
			return err
		}
		if !w.hasty {
			if err := w.traffic(w.limit.Period + w.limit.Period/1000); err != nil {
				return err
			}
		}
		if err := w.grant(to, w.regions[to].share.Capacity+moved); err != nil {
			return err
		}
	}
	return nil
}

func TestGlobalLogHolds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		if err := newLogWorld(seed).run(40); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for seed := range uint64(60) {
		w := newLogWorld(seed)
		w.hasty = true
		if err := w.run(40); err != nil {
			t.Logf("a hasty move is noticed in world %d: %v", seed, err)
			return
		}
	}
	t.Error("a region that grows at once is not noticed in any of 60 worlds")
}

// A policy whose share changes all the time still refills, however slow it is.
func TestFrequentSharesLoseNoRefill(t *testing.T) {
	t.Parallel()
	l := perPeriod(3, 1, 24*time.Hour)
	m := quota.NewModel()
	m.Initialise(start, 0, "g", true)
	e := regional(l)
	e.ShareKey, e.Floor = "share", l.Share()
	const every, span = 7 * time.Second, 6 * 24 * time.Hour
	var admitted, version int64
	refill := 0.0
	for d := time.Duration(0); d < span; d += every {
		now := start + d.Microseconds()
		version++
		share := quota.Share{Capacity: tokens(1 + version%3), Refill: 300 + quota.Tokens(version%7)*100}
		grant := quota.Grant{Version: version, Algorithm: quota.TokenBucket, Limit: l, Share: share, Permanent: share, Floor: l.Share()}
		if _, err := m.Apply(now, 0, 1, "g", []string{"share"}, []quota.Grant{grant}); err != nil {
			t.Fatal(err)
		}
		refill += float64(share.Refill) * every.Seconds() / l.Period.Seconds() / (1 + quota.Drift)
		if take(t, m, now, e, quota.Token) {
			admitted++
		}
	}
	// It starts with three tokens, of which a share of one or two cuts the rest.
	least, most := int64(refill/1000), int64(refill/1000)+3
	if admitted < least || admitted > most {
		t.Errorf("%d admitted, refill was %.3f tokens: want %d to %d", admitted, refill/1000, least, most)
	}
}
