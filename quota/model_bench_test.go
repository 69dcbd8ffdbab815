package quota_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

func benchmarkModel(b *testing.B, e quota.Entry) {
	b.Helper()
	m := quota.NewModel()
	m.Initialise(start, 0, "g", true)
	a := quota.Attempt{Cost: quota.Token, Entries: []quota.Entry{e}}
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now += 7
		if _, err := m.Acquire(now, a); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkModelBucket(b *testing.B) {
	l := perPeriod(1000, 100_000, time.Second)
	shared := regional(l)
	shared.ShareKey, shared.Floor = "share", l.Share()
	b.Run("regional", func(b *testing.B) { benchmarkModel(b, regional(l)) })
	b.Run("global", func(b *testing.B) { benchmarkModel(b, shared) })
}

func BenchmarkModelLog(b *testing.B) {
	b.Run("10", func(b *testing.B) { benchmarkModel(b, regionalLog(10, time.Minute)) })
	b.Run("1000", func(b *testing.B) { benchmarkModel(b, regionalLog(1000, time.Minute)) })
}
