package quota_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

func TestShareIsCountedByAnotherPeriod(t *testing.T) {
	for _, c := range []struct {
		refill   quota.Tokens
		from, to time.Duration
		want     quota.Tokens
	}{
		{120_423, 2 * time.Second, 3 * time.Second, 180_635},
		{120_424, 2 * time.Second, 3 * time.Second, 180_636},
		{10, time.Minute, time.Second, 1},
		{600, time.Minute, time.Second, 10},
		{7, time.Second, time.Second, 7},
		{7, 0, time.Second, 7},
		{quota.MaxTokens, time.Microsecond, 24 * time.Hour, quota.MaxTokens},
		{quota.MaxTokens, time.Second, 2 * time.Second, quota.MaxTokens},
		{quota.MaxTokens, 2 * time.Second, time.Second, quota.MaxTokens / 2},
	} {
		got := quota.Share{Capacity: 5, Refill: c.refill}.Per(c.from, c.to)
		if got != (quota.Share{Capacity: 5, Refill: c.want}) {
			t.Errorf("%d per %v is %v per %v, want %d", c.refill, c.from, got, c.to, c.want)
		}
	}
}
