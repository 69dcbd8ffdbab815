package quota_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

// TestParseDuration covers windows of any length (case 41: a year is 365 days).
func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"13s": 13 * time.Second, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute,
		"1d": 24 * time.Hour, "1w": 7 * 24 * time.Hour, "30d": 720 * time.Hour, "1y": 8760 * time.Hour,
		"250ms": 250 * time.Millisecond, "7us": 7 * time.Microsecond, "0": 0, "0s": 0, "1d12h": 36 * time.Hour,
		"0.25s": 250 * time.Millisecond, "1.000s": time.Second, "0.000001s": time.Microsecond, "292y": 292 * quota.Year,
	} {
		if got, err := quota.ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":               "is empty",
		"60":             "has a number without a unit",
		"1h30":           "has a number without a unit",
		"s":              "is not a number followed by a unit",
		"-5s":            "is not a number followed by a unit",
		"5 s":            `has the unknown unit " s" (did you mean s?)`,
		"5min":           `has the unknown unit "min" (did you mean m?)`,
		"5M":             `has the unknown unit "M": months differ in length (did you mean 30d?)`,
		"5fortnights":    `has the unknown unit "fortnights": the units are us, ms, s, m, h, d, w and y`,
		"1.s":            "has a malformed number",
		".5s":            "has a malformed number",
		"1.2.3s":         "has a malformed number",
		"0.0000001s":     "is not a whole number of microseconds",
		"0.5us":          "is not a whole number of microseconds",
		"293y":           "is too long to be represented",
		"200y200y":       "is too long to be represented",
		"1000000000000y": "is too long to be represented",
	} {
		if got, err := quota.ParseDuration(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
}

func TestDurationRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64/1000).Draw(r, "us")) * time.Microsecond
		d -= d % rapid.SampledFrom([]time.Duration{1, time.Second, time.Hour, quota.Day, quota.Week, quota.Year}).Draw(r, "unit")
		d -= d % time.Microsecond
		text := quota.FormatDuration(d)
		if got, err := quota.ParseDuration(text); err != nil || got != d {
			r.Fatalf("%d is written %s and read as %d, %v", d, text, got, err)
		}
	})
}

func TestFillTime(t *testing.T) {
	for _, tc := range []struct {
		l    quota.Limit
		want time.Duration
	}{
		{quota.Limit{Capacity: 20 * quota.Token, Refill: 100 * quota.Token, Period: time.Minute}, 12 * time.Second},
		{quota.Limit{Capacity: 1000 * quota.Token, Refill: quota.Token, Period: time.Second}, 1000 * time.Second},
		{quota.Limit{Capacity: 1, Refill: 3, Period: time.Microsecond}, time.Microsecond},
		{quota.Limit{Capacity: quota.MaxTokens, Refill: quota.MaxTokens, Period: quota.MaxPeriod}, quota.MaxPeriod},
		{quota.Limit{Capacity: quota.MaxTokens, Refill: 1, Period: quota.MaxPeriod}, math.MaxInt64},
		{quota.Limit{Capacity: quota.Token, Period: time.Second}, math.MaxInt64},
	} {
		if got := quota.FillTime(tc.l); got != tc.want {
			t.Errorf("%+v: %v, want %v", tc.l, got, tc.want)
		}
	}
}
