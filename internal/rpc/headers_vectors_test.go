package rpc

import (
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// vector is one line of the table of test vectors of the header contract.
type vector struct {
	name                           string
	items                          []item
	policy, draft11, draft12, both string
}

var vectors = []vector{
	{
		"plain",
		[]item{{name: "default", quota: 100, window: 60, remaining: 99, reset: 50}},
		`"default";q=100;w=60`, `"default";r=99;t=50`, `"default";a=99;w=50`, `"default";r=99;t=50;a=99;w=50`,
	},
	{
		"burst and daily",
		[]item{
			{name: "burst", quota: 100, window: 60, remaining: 20, reset: ceilSeconds(time.Millisecond)},
			{name: "daily", quota: 1000, window: 86400, remaining: 0, reset: 36000},
		},
		`"burst";q=100;w=60, "daily";q=1000;w=86400`, `"burst";r=20;t=1, "daily";r=0;t=36000`,
		`"burst";a=20;w=1, "daily";a=0;w=36000`, `"burst";r=20;t=1;a=20;w=1, "daily";r=0;t=36000;a=0;w=36000`,
	},
	{
		"denied",
		[]item{{name: "default", quota: 100, window: 60, remaining: 0, reset: ceilSeconds(4001 * time.Millisecond), cost: 1}},
		`"default";q=100;w=60`, `"default";r=0;t=5`, `"default";a=0;w=5;c=1`, `"default";r=0;t=5;a=0;w=5;c=1`,
	},
	{
		"negative",
		[]item{{name: "default", quota: 10, window: 1, remaining: -3, reset: ceilSeconds(-time.Second)}},
		`"default";q=10;w=1`, `"default";r=0;t=0`, `"default";a=0;w=0`, `"default";r=0;t=0;a=0;w=0`,
	},
	{
		"bytes",
		[]item{{name: "bw", unit: "content-bytes", quota: 65535, window: 10, remaining: 300, cost: 512}},
		`"bw";q=65535;qu="content-bytes";w=10`, `"bw";r=300;t=0`, `"bw";a=300;w=0;c=512`, `"bw";r=300;t=0;a=300;w=0;c=512`,
	},
	{
		"concurrency",
		[]item{{name: "inflight", unit: "concurrent-requests", quota: 5, reset: 1}},
		`"inflight";q=5;qu="concurrent-requests"`, `"inflight";r=0;t=1`, `"inflight";a=0;w=1`, `"inflight";r=0;t=1;a=0;w=1`,
	},
	{
		"clamped",
		[]item{{name: "big", quota: 1 << 60, window: 1, remaining: 1 << 60, reset: 1}},
		`"big";q=999999999999999;w=1`, `"big";r=999999999999999;t=1`, `"big";a=999999999999999;w=1`,
		`"big";r=999999999999999;t=1;a=999999999999999;w=1`,
	},
	{
		"below a second",
		[]item{{
			name: "sub", quota: 10, window: ceilSeconds(100 * time.Millisecond), remaining: 1,
			reset: ceilSeconds(50 * time.Millisecond),
		}},
		`"sub";q=10;w=1`, `"sub";r=1;t=1`, `"sub";a=1;w=1`, `"sub";r=1;t=1;a=1;w=1`,
	},
	{
		"escaped",
		[]item{{name: `we"ird\x`, quota: 1, window: 1, reset: 5}},
		`"we\"ird\\x";q=1;w=1`, `"we\"ird\\x";r=0;t=5`, `"we\"ird\\x";a=0;w=5`, `"we\"ird\\x";r=0;t=5;a=0;w=5`,
	},
}

// TestHeaderVectors also re-parses and re-serialises each line byte for byte.
func TestHeaderVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			for profile, want := range map[Profile]string{Draft11: v.draft11, Draft12: v.draft12, Both: v.both} {
				got := profile.append(nil, v.items, time.Time{})
				require.Equal(t, []Header{{"RateLimit-Policy", v.policy}, {"RateLimit", want}}, got, profile)
				for _, h := range got {
					list, err := httpsfv.UnmarshalList([]string{h.Value})
					require.NoError(t, err, h.Value)
					again, err := httpsfv.Marshal(list)
					require.NoError(t, err)
					assert.Equal(t, h.Value, again)
				}
			}
		})
	}
}

func TestOlderHeaders(t *testing.T) {
	items := []item{
		{name: "burst", quota: 100, window: 60, remaining: 20, reset: 30, capacity: 100},
		{name: "hour", quota: 1000, window: 3600, remaining: 900, reset: 2, capacity: 1000},
	}
	assert.Equal(t, []Header{
		{"RateLimit-Limit", "100, 100;w=60, 1000;w=3600"}, {"RateLimit-Remaining", "20"}, {"RateLimit-Reset", "30"},
	}, LegacyTriple.append(nil, items, time.Time{}))
	assert.Equal(t, []Header{
		{"X-RateLimit-Limit", `100, 100;w=60;name="burst", 1000;w=3600;name="hour"`},
		{"X-RateLimit-Remaining", "20"},
		{"X-RateLimit-Reset", "30"},
	}, XRateLimit.append(nil, items, time.Time{}))
	epoch := XRateLimitEpoch.append(nil, items, time.Unix(1_700_000_000, 1))
	assert.Equal(t, Header{"X-RateLimit-Reset", "1700000031"}, epoch[2], "rounded up")

	items[0].reset = -1
	assert.Len(t, XRateLimit.append(nil, items, time.Time{}), 2, "a cost that never fits has no reset")
}

func BenchmarkAppendHeaders(b *testing.B) {
	items := vectors[1].items
	b.Run("hand", func(b *testing.B) {
		var buf [512]byte
		b.ReportAllocs()
		for b.Loop() {
			appendPolicies(buf[:0], items)
			appendStates(buf[:0], items, paramsDraft11)
		}
	})
	b.Run("httpsfv", func(b *testing.B) {
		policy, err := httpsfv.UnmarshalList([]string{vectors[1].policy})
		require.NoError(b, err)
		state, err := httpsfv.UnmarshalList([]string{vectors[1].draft11})
		require.NoError(b, err)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = httpsfv.Marshal(policy)
			_, _ = httpsfv.Marshal(state)
		}
	})
}
