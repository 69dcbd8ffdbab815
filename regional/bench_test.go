package regional_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// answering is a store that admits at once and does nothing else, so that the
// numbers are the engine's own.
type answering struct{ *memStore }

func (answering) Acquire(_ context.Context, a quota.Attempt) (quota.Outcome, error) {
	return quota.Outcome{Allowed: true, Verdicts: admitting[:len(a.Entries)], At: 1}, nil
}

var admitting = []quota.Verdict{{Allowed: true, Level: quota.Token}, {Allowed: true, Level: quota.Token}}

func BenchmarkCheck(b *testing.B) {
	one := []*quota.Policy{globalBucket("p", 1000, 1000)}
	two := []*quota.Policy{globalBucket("p", 1000, 1000), with(globalBucket("q", 1000, 1000), func(p *quota.Policy) { p.Key = []string{"ip"} })}
	for name, policies := range map[string][]*quota.Policy{"one policy": one, "two stripes": two} {
		b.Run(name, func(b *testing.B) {
			for _, p := range policies {
				p.StoreDeadline = time.Second
			}
			e := setupOver(b, answering{newMemStore()}, policies)
			r := request("ip", "203.0.113.7", "route", "GET /")
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if res, err := e.Check(context.Background(), r); err != nil || !res.Allowed {
						b.Errorf("got %+v, %v", res, err)
						return
					}
				}
			})
		})
	}
}
