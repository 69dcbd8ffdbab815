package chaos_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/quota"
)

// inForce is a share that a region had for certain from one instant to another: it was
// seen at both, under one version, and a version never comes back.
type inForce struct {
	share       quota.Share
	version     int64
	from, until int64
}

// shares watches what every region may spend on some keys, by asking it.
type shares struct {
	w       *world
	streams []stream

	mu   sync.Mutex
	seen []map[string][]inForce // by stream, then region, in the order of time
}

// watchEvery is the pause between two questions; shares in force are known up to that.
const watchEvery = 100 * time.Millisecond

func (w *world) watchShares(streams []stream) *shares {
	s := &shares{w: w, streams: streams, seen: make([]map[string][]inForce, len(streams))}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for k := range streams {
		s.seen[k] = map[string][]inForce{}
		for _, at := range w.sites {
			done.Go(func() {
				tick := time.NewTicker(watchEvery)
				defer tick.Stop()
				for ctx.Err() == nil {
					s.ask(ctx, k, at)
					select {
					case <-ctx.Done():
					case <-tick.C:
					}
				}
			})
		}
	}
	w.tb.Cleanup(func() { cancel(); done.Wait() })
	return s
}

func (s *shares) ask(ctx context.Context, k int, at *site) {
	st := s.streams[k]
	sent := s.w.now()
	e, err := at.client.Explain(ctx, quota.Request{Attributes: st.attributes(), Cost: quota.Token, Policies: []string{st.policy}})
	answered := s.w.now() + 1
	if err != nil {
		return
	}
	for _, p := range e.Policies {
		if p.PolicyID == st.policy && p.Version > 0 {
			s.note(k, at.name, p.Share, p.Version, sent, answered)
		}
	}
}

func (s *shares) note(k int, region string, share quota.Share, version, sent, answered int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.seen[k][region]
	if n := len(list); n > 0 && list[n-1].version == version && list[n-1].share == share {
		list[n-1].until = max(list[n-1].until, sent)
		return
	}
	s.seen[k][region] = append(list, inForce{share, version, answered, answered})
}

// known reports whether every region was seen with a share of every key.
func (s *shares) known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.streams {
		for _, at := range s.w.sites {
			if len(s.seen[k][at.name]) == 0 {
				return false
			}
		}
	}
	return true
}

// changedAfter returns when some region was first seen with another version than
// before, at or after an instant; the earlier version must have been seen after it, so
// that the change itself happened after it.
func (s *shares) changedAfter(instant int64) (at int64, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.streams {
		for _, list := range s.seen[k] {
			for i := 1; i < len(list); i++ {
				if list[i-1].until >= instant && (!changed || list[i].from < at) {
					at, changed = list[i].from, true
				}
			}
		}
	}
	return at, changed
}

// highest returns, by stream, the most that the shares in force for certain at one
// instant summed to, and that instant.
func (s *shares) highest() (most []quota.Share, at []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.streams {
		m, t := highestSum(s.seen[k])
		most, at = append(most, m), append(at, t)
	}
	return most, at
}

// highestSum adds up the shares in force at every instant at which one begins, and
// returns the component-wise maximum and when its capacity was last raised.
func highestSum(seen map[string][]inForce) (most quota.Share, at int64) {
	type event struct {
		at    int64
		begin bool
		share quota.Share
	}
	var events []event
	for _, list := range seen {
		for _, f := range list {
			if f.until > f.from {
				events = append(events, event{f.from, true, f.share}, event{f.until, false, f.share})
			}
		}
	}
	// What ends at an instant was in force until then and not after it.
	slices.SortFunc(events, func(a, b event) int {
		switch {
		case a.at != b.at:
			return int(a.at - b.at)
		case a.begin == b.begin:
			return 0
		case b.begin:
			return -1
		}
		return 1
	})
	var sum quota.Share
	for _, e := range events {
		if !e.begin {
			sum = sum.Sub(e.share)
			continue
		}
		sum = sum.Add(e.share)
		if !sum.Within(most) {
			most, at = most.Max(sum), e.at
		}
	}
	return most, at
}
