package quota_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// BenchmarkIndexMemory prints what a node holds for ten thousand policies and a hundred
// thousand overrides, and how long it takes to bring them into force.
func BenchmarkIndexMemory(b *testing.B) {
	policies := make([]*quota.Policy, 10_000)
	for i := range policies {
		policies[i] = &quota.Policy{
			ID: fmt.Sprintf("policy-%05d", i), Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailLocal,
			Match: []quota.Condition{{Attribute: "route", Pattern: fmt.Sprintf("GET /v1/things/%05d", i)}}, Key: []string{"tenant"},
			Limit: quota.Limit{Capacity: 100 * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
		}
	}
	overrides := make([]quota.Override, 100_000)
	for i := range overrides {
		overrides[i] = quota.Override{
			Policy: policies[i%len(policies)].ID, Key: []string{fmt.Sprintf("tenant-%d", i/len(policies))},
			Limit: quota.Limit{Capacity: 500 * quota.Token, Refill: 500 * quota.Token, Period: time.Minute},
		}
	}
	var index *quota.Index
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for b.Loop() {
		set, err := quota.NewOverrides(overrides, time.Now)
		if err != nil {
			b.Fatal(err)
		}
		if index, err = quota.Compile(1, policies, set); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(heap()-before)/(1<<20), "MiB")
	runtime.KeepAlive(index)
}
