package rpc_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// values looks headers up by name, whatever the case, as HTTP does.
func values(hs []rpc.Header) http.Header {
	out := http.Header{}
	for _, h := range hs {
		out.Add(h.Name, h.Value)
	}
	return out
}

func bucket(id string, capacity, refill int64, period time.Duration) quota.Decision {
	return quota.Decision{
		PolicyID: id, Allowed: true, Source: quota.SourceStore, Limit: capacity, Remaining: capacity,
		Limits: quota.Limit{
			Capacity: quota.Tokens(capacity) * quota.Token, Refill: quota.Tokens(refill) * quota.Token, Period: period,
		},
	}
}

func denied(d quota.Decision, wait time.Duration) quota.Decision {
	d.Allowed, d.Reason, d.Remaining, d.RetryAfter = false, quota.ReasonLimit, 0, wait
	return d
}

func render(c rpc.HeaderConfig, ds ...quota.Decision) http.Header {
	r := quota.Result{Allowed: true, Decisions: ds}
	for _, d := range ds {
		r.Allowed = r.Allowed && (d.Allowed || d.Shadow)
	}
	return values(c.Headers(&r, quota.Token, time.Time{}))
}

// Case 109: rounded up, at least 1, so that an obedient client is admitted.
func TestRetryAfterIsRoundedUp(t *testing.T) {
	d := bucket("p", 10, 10, time.Second)
	for wait, want := range map[time.Duration]string{
		time.Nanosecond: "1", time.Millisecond: "1", time.Second: "1", time.Second + 1: "2", 4001 * time.Millisecond: "5",
	} {
		assert.Equal(t, want, render(rpc.HeaderConfig{}, denied(d, wait)).Get("Retry-After"), wait)
	}
	rapid.Check(t, func(t *rapid.T) {
		wait := time.Duration(rapid.Int64Range(0, 1<<55).Draw(t, "wait"))
		seconds, err := strconv.ParseInt(render(rpc.HeaderConfig{}, denied(d, wait)).Get("Retry-After"), 10, 64)
		if err != nil || seconds < 1 || time.Duration(seconds)*time.Second < wait {
			t.Fatalf("wait %v: %d, %v", wait, seconds, err)
		}
		if over := time.Duration(seconds)*time.Second - wait; over >= time.Second && wait > 0 {
			t.Fatalf("wait %v: %v too long", wait, over)
		}
	})
}

// Case 112: the true wait, not the whole window.
func TestRetryAfterIsNotTheWindow(t *testing.T) {
	log := bucket("login", 10, 0, 15*time.Second)
	h := render(rpc.HeaderConfig{}, denied(log, 5*time.Second))
	assert.Equal(t, "5", h.Get("Retry-After"))
	assert.Equal(t, `"login";q=10;w=15`, h.Get("RateLimit-Policy"))
	assert.Equal(t, `"login";r=0;t=5`, h.Get("RateLimit"))
}

// Case 114: a structured fields parser reads it, two policies are both listed,
// and where nothing remains Retry-After is not before t.
func TestHeadersParseBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ds []quota.Decision
		var longest int64
		allowed := true
		for i := range rapid.IntRange(1, 4).Draw(t, "policies") {
			d := bucket(rapid.StringMatching(`[ -~]{1,20}`).Draw(t, "id")+strconv.Itoa(i),
				rapid.Int64Range(1, 1<<40).Draw(t, "capacity"),
				rapid.Int64Range(0, 1<<40).Draw(t, "refill"),
				time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "period")))
			if rapid.Bool().Draw(t, "denied") {
				wait := time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "wait"))
				d = denied(d, wait)
				allowed = false
				longest = max(longest, int64((wait+time.Second-1)/time.Second))
			} else {
				d.Remaining = rapid.Int64Range(0, d.Limit).Draw(t, "remaining")
				d.ResetAfter = time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "reset"))
			}
			ds = append(ds, d)
		}
		h := render(rpc.HeaderConfig{Profile: rpc.Both}, ds...)
		policies, states := items(t, h.Get("RateLimit-Policy")), items(t, h.Get("RateLimit"))
		if len(policies) != len(ds) || len(states) != len(ds) {
			t.Fatalf("%d policies: %v", len(ds), h)
		}
		retry, _ := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
		for i := range states {
			if policies[i].Value != states[i].Value {
				t.Fatalf("order differs: %v", h)
			}
			d := byID(ds, states[i].Value)
			r, reset := param(t, states[i], "r"), param(t, states[i], "t")
			if r != d.Remaining || param(t, states[i], "a") != r || param(t, states[i], "w") != reset {
				t.Fatalf("numbers of %q: %v", d.PolicyID, h)
			}
			if !d.Allowed && reset > retry {
				t.Fatalf("t=%d is after Retry-After %d", reset, retry)
			}
		}
		if !allowed && (retry != max(1, longest) || param(t, states[0], "t") != retry) {
			t.Fatalf("Retry-After %d, want %d first: %v", retry, longest, h)
		}
	})
}

func items(t *rapid.T, value string) []httpsfv.Item {
	list, err := httpsfv.UnmarshalList([]string{value})
	if err != nil {
		t.Fatalf("%q: %v", value, err)
	}
	out := make([]httpsfv.Item, len(list))
	for i, m := range list {
		it, ok := m.(httpsfv.Item)
		if !ok {
			t.Fatalf("%q holds an inner list", value)
		}
		out[i] = it
	}
	return out
}

func param(t *rapid.T, it httpsfv.Item, name string) int64 {
	v, _ := it.Params.Get(name)
	n, ok := v.(int64)
	if !ok {
		t.Fatalf("%s of %v is %v", name, it.Value, v)
	}
	return n
}

func byID(ds []quota.Decision, id any) quota.Decision {
	for _, d := range ds {
		if d.PolicyID == id {
			return d
		}
	}
	return quota.Decision{}
}

// A client that spends what remains evenly until t never exceeds the limit's rate.
func TestResetNeverInvitesMoreThanTheRate(t *testing.T) {
	d := bucket("p", 10_000, 10_000, 1000*time.Second)
	assert.Equal(t, `"p";r=10000;t=1000`, render(rpc.HeaderConfig{}, d).Get("RateLimit"))
	d.Remaining, d.ResetAfter = 0, 1000*time.Second
	assert.Equal(t, `"p";r=0;t=1`, render(rpc.HeaderConfig{}, d).Get("RateLimit"), "the next token comes in 0.1 s")
}

func TestLimitsThatAreNoWholeNumbers(t *testing.T) {
	day := bucket("p", 1, 0, 0)
	day.Limits = quota.Limit{Capacity: quota.Token, Refill: quota.Token / 2, Period: 12 * time.Hour}
	assert.Equal(t, `"p";q=1;w=86400`, render(rpc.HeaderConfig{}, day).Get("RateLimit-Policy"))
	short := bucket("p", 10, 10, 100*time.Millisecond)
	assert.Equal(t, `"p";q=10;w=1`, render(rpc.HeaderConfig{}, short).Get("RateLimit-Policy"), "stricter than the truth, never looser")
}

// Case 116: hidden means hidden, on every answer.
func TestHeadersOff(t *testing.T) {
	off := rpc.HeaderConfig{Profile: rpc.Off}
	assert.Empty(t, render(off, bucket("p", 1, 1, time.Second)))
	assert.Empty(t, render(off, denied(bucket("p", 1, 1, time.Second), time.Second)))
}

// Case 117: each policy's numbers carry its name, in every profile that has a place for it.
func TestNumbersCarryNames(t *testing.T) {
	daily := bucket("daily", 1000, 0, 24*time.Hour)
	daily.Remaining = 10
	burst := bucket("burst", 100, 100, time.Minute)
	burst.Remaining = 80
	h := render(rpc.HeaderConfig{}, burst, daily)
	assert.Equal(t, `"daily";q=1000;w=86400, "burst";q=100;w=60`, h.Get("RateLimit-Policy"), "the most restrictive first")
	assert.Equal(t, `"daily";r=10;t=864, "burst";r=80;t=48`, h.Get("RateLimit"))
	x := render(rpc.HeaderConfig{Profile: rpc.XRateLimit}, burst, daily)
	assert.Equal(t, `1000, 1000;w=86400;name="daily", 100;w=60;name="burst"`, x.Get("X-Ratelimit-Limit"))
	assert.Equal(t, "10", x.Get("X-Ratelimit-Remaining"))
}

// Case 119: rendering looks and does not touch.
func TestHeadersDoNotChangeTheResult(t *testing.T) {
	make2 := func() quota.Result {
		return quota.Result{Decisions: []quota.Decision{
			bucket("b", 100, 100, time.Minute), denied(bucket("a", 10, 10, time.Minute), time.Second),
		}}
	}
	for profile := rpc.Draft11; profile <= rpc.Off; profile++ {
		got := make2()
		rpc.HeaderConfig{Profile: profile}.Headers(&got, quota.Token, time.Now())
		assert.Equal(t, make2(), got, profile)
	}
}

func TestShadowAndUnlimitedNeverShow(t *testing.T) {
	shadow := denied(bucket("dry", 5, 5, time.Second), time.Hour)
	shadow.Shadow = true
	free := bucket("free", 0, 0, 0)
	free.Unlimited = true
	assert.Empty(t, render(rpc.HeaderConfig{}, shadow, free))
	h := render(rpc.HeaderConfig{}, shadow, free, denied(bucket("p", 5, 5, time.Second), time.Second))
	assert.Equal(t, `"p";r=0;t=1`, h.Get("RateLimit"))
	assert.Equal(t, "1", h.Get("Retry-After"))
}

func TestNeverFitsHasNoRetryAfter(t *testing.T) {
	never := denied(bucket("p", 5, 5, time.Second), 0)
	never.Reason, never.Remaining = quota.ReasonNeverFits, 5
	h := render(rpc.HeaderConfig{}, denied(bucket("other", 5, 5, time.Second), time.Minute), never)
	assert.Equal(t, `"p";r=5, "other";r=0;t=60`, h.Get("RateLimit"), "first, and no wait is promised")
	assert.Empty(t, h.Values("Retry-After"))

	missing := quota.Decision{PolicyID: "p", Reason: quota.ReasonMissingKey, Source: quota.SourceNone}
	assert.Empty(t, render(rpc.HeaderConfig{}, missing))
}

func TestHeadersOfFallback(t *testing.T) {
	closed := bucket("p", 5, 5, time.Second)
	closed.Allowed, closed.Source, closed.Reason = false, quota.SourceFallback, quota.ReasonStoreUnavailable
	assert.Equal(t, http.Header{"Retry-After": {"1"}}, render(rpc.HeaderConfig{}, closed), "not over limit, so no count")

	open := bucket("p", 5, 5, time.Second)
	open.Source = quota.SourceFallback
	assert.Empty(t, render(rpc.HeaderConfig{}, open), "admitted without counting")

	local := bucket("p", 5, 5, time.Second)
	local.Source, local.Remaining = quota.SourceFallback, 3
	assert.Equal(t, `"p";r=3;t=1`, render(rpc.HeaderConfig{}, local).Get("RateLimit"))
}

func TestWhen(t *testing.T) {
	roomy, tight := bucket("p", 10, 10, time.Second), bucket("p", 10, 10, time.Second)
	tight.Remaining = 2
	no := denied(bucket("p", 10, 10, time.Second), time.Second)
	for _, tc := range []struct {
		when               rpc.When
		roomy, tight, deny bool
	}{
		{rpc.Always, true, true, true}, {rpc.NearLimit, false, true, true}, {rpc.Denied, false, false, true},
	} {
		c := rpc.HeaderConfig{When: tc.when}
		assert.Equal(t, tc.roomy, len(render(c, roomy)) > 0)
		assert.Equal(t, tc.tight, len(render(c, tight)) > 0)
		assert.Equal(t, tc.deny, len(render(c, no)) > 0)
	}
}

func TestParseProfile(t *testing.T) {
	for p := rpc.Draft11; p <= rpc.Off; p++ {
		got, err := rpc.ParseProfile(p.String())
		require.NoError(t, err)
		assert.Equal(t, p, got)
	}
	_, err := rpc.ParseProfile("draft-10")
	require.ErrorIs(t, err, quota.ErrInvalid)
	assert.ErrorContains(t, err, "use one of draft-11, draft-12")
}

func BenchmarkHeaders(b *testing.B) {
	r := quota.Result{Allowed: true, Decisions: []quota.Decision{
		bucket("burst", 100, 100, time.Minute), bucket("daily", 1000, 0, 24*time.Hour),
	}}
	b.ReportAllocs()
	for b.Loop() {
		rpc.HeaderConfig{}.Headers(&r, quota.Token, time.Time{})
	}
}
