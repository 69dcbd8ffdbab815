package quota_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

// poll asks for one token every so often for a while and counts what is admitted.
func poll(t *testing.T, m *quota.Model, e quota.Entry, from int64, every, span time.Duration) (admitted int) {
	t.Helper()
	for d := time.Duration(0); d < span; d += every {
		if take(t, m, from+d.Microseconds(), e, quota.Token) {
			admitted++
		}
	}
	return admitted
}

// Case 6: a bucket refills evenly, not all at once.
func TestThreePerSecondForAMinute(t *testing.T) {
	t.Parallel()
	n := poll(t, quota.NewModel(), regional(perPeriod(3, 3, time.Second)), start, 100*time.Millisecond, time.Minute)
	if n > 3+180 || n < 180 {
		t.Errorf("%d admitted in a minute of 3/s, want 180 to 183", n)
	}
}

// Case 8: burst and refill both count for a bucket; a log with the same numbers admits just them.
func TestSeventeenPerThirtySeconds(t *testing.T) {
	t.Parallel()
	const span = 30 * time.Second
	if n := poll(t, quota.NewModel(), regional(perPeriod(17, 17, span)), start, 10*time.Millisecond, span); n != 17+16 {
		t.Errorf("token bucket: %d admitted within 30 s, want the burst and what 29.99 s refill: 33", n)
	}
	if n := poll(t, quota.NewModel(), regionalLog(17, span), start, 10*time.Millisecond, span); n != 17 {
		t.Errorf("sliding log: %d admitted within 30 s, want 17", n)
	}
}

// Case 17: a short window never denies traffic that is below its limit.
func TestShortWindowDeniesNothingBelowItsLimit(t *testing.T) {
	t.Parallel()
	const every, span = 2 * time.Millisecond, 5 * time.Minute
	for name, e := range map[string]quota.Entry{
		"log": regionalLog(3000, time.Second), "bucket": regional(perPeriod(3000, 3000, time.Second)),
	} {
		if n := poll(t, quota.NewModel(), e, start, every, span); n != int(span/every) {
			t.Errorf("%s: %d of %d admitted at 500/s under a limit of 3000/s", name, n, span/every)
		}
	}
}

// Case 18: denials do not count, so steady overload is admitted up to the limit all along.
func TestOverloadIsAdmittedUpToTheLimitAllAlong(t *testing.T) {
	t.Parallel()
	m, e := quota.NewModel(), regionalLog(5, time.Second)
	for second := range int64(60) {
		n := poll(t, m, e, start+second*1_000_000, 100*time.Millisecond, time.Second)
		if n != 5 {
			t.Errorf("second %d: %d admitted, want 5", second, n)
		}
	}
}

// Case 76: high rates are limited exactly.
func TestHighRatesAreLimitedExactly(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []int64{1_000, 10_000, 100_000, 1_000_000} {
		m, e := quota.NewModel(), regional(perPeriod(perSecond/10, perSecond, time.Second))
		// 1/40 s of attempts at twice the rate, a multiple of the clock's resolution apart.
		var admitted, tried int64
		for us := int64(0); us < 500_000; us += 100 {
			cost := max(1, perSecond/5_000)
			if take(t, m, start+us, e, tokens(cost)) {
				admitted += cost
			}
			tried += cost
		}
		most := perSecond/10 + perSecond*499_900/1_000_000
		if admitted > most || admitted < most-max(1, perSecond/5_000) || tried < admitted {
			t.Errorf("%d/s: %d of %d admitted in half a second, want %d", perSecond, admitted, tried, most)
		}
	}
}

// Case 77: a limit of zero denies always, and is no error.
func TestLimitOfZeroDenies(t *testing.T) {
	t.Parallel()
	global := regional(perPeriod(0, 0, time.Second))
	global.ShareKey = "share"
	for name, e := range map[string]quota.Entry{
		"bucket": regional(perPeriod(0, 0, time.Second)), "log": regionalLog(0, time.Second), "global": global,
	} {
		m := quota.NewModel()
		m.Initialise(start, 0, "g", true)
		for i := range int64(3) {
			v := ask(t, m, start+i*1_000_000, e, quota.Token, false)
			if v.Allowed || !v.NeverFits || v.RetryAfter != 0 || v.Level != 0 {
				t.Errorf("%s: %+v, want a denial for ever", name, v)
			}
		}
	}
}

// Case 78: what costs more than the capacity can never fit, and takes nothing.
func TestCostAboveCapacityNeverFits(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]quota.Entry{
		"bucket": regional(perPeriod(5, 5, time.Second)), "log": regionalLog(5, time.Second),
	} {
		m := quota.NewModel()
		if !take(t, m, start, e, tokens(2)) {
			t.Fatal("2 of 5 denied")
		}
		v := ask(t, m, start, e, tokens(10), false)
		if v.Allowed || !v.NeverFits || v.RetryAfter != 0 || v.Level != tokens(3) {
			t.Errorf("%s: cost 10 of 5: %+v, want never, no wait, 3 left", name, v)
		}
		if v := ask(t, m, start, e, tokens(3), false); !v.Allowed {
			t.Errorf("%s: the denial charged: %+v", name, v)
		}
	}
}

// Case 81: a refund never lifts a bucket above its capacity.
func TestRefundNeverPassesTheCapacity(t *testing.T) {
	t.Parallel()
	l := perPeriod(5, 1, time.Hour)
	global := regional(l)
	global.ShareKey, global.Floor = "share", l.Share()
	for name, e := range map[string]quota.Entry{"bucket": regional(l), "log": regionalLog(5, time.Hour), "global": global} {
		m := quota.NewModel()
		m.Initialise(start, 0, "g", true)
		m.Refund(quota.Refund{Entry: e, Amount: tokens(9)}) // full, and untouched
		for range 3 {
			if !take(t, m, start, e, tokens(2)) {
				break
			}
		}
		m.Refund(quota.Refund{Entry: e, Amount: tokens(2)})
		m.Refund(quota.Refund{Entry: e, Amount: tokens(7)})
		v := ask(t, m, start, e, 0, true)
		if v.Level != tokens(5) {
			t.Errorf("%s: %s left after refunds, want 5", name, v.Level)
		}
		n := 0
		for take(t, m, start, e, quota.Token) {
			n++
		}
		if n != 5 {
			t.Errorf("%s: %d admitted after refunds, want 5", name, n)
		}
	}
}

// A refund that names its attempt drops the entries of that attempt alone.
func TestRefundOfALogDropsTheAttemptsEntries(t *testing.T) {
	t.Parallel()
	m, e := quota.NewModel(), regionalLog(3, time.Minute)
	for i := range int64(3) {
		take(t, m, start+i*1_000_000, e, quota.Token)
	}
	m.Refund(quota.Refund{Entry: e, Amount: quota.Token, At: start + 1_000_000})
	m.Refund(quota.Refund{Entry: e, Amount: quota.Token, At: start + 7}) // of no attempt
	now := start + 3_000_000
	if !take(t, m, now, e, quota.Token) || take(t, m, now, e, quota.Token) {
		t.Fatal("one refund, but not one slot")
	}
	// The first entry is still there: the next slot comes when it leaves.
	if v := ask(t, m, now, e, quota.Token, true); v.RetryAfter != 57*time.Second {
		t.Errorf("wait of %s, want 57 s", v.RetryAfter)
	}
}

// Case 92: burst and rate are independent.
func TestLargeBurstSlowRate(t *testing.T) {
	t.Parallel()
	m, e := quota.NewModel(), regional(perPeriod(1000, 1, time.Second))
	n := 0
	for take(t, m, start, e, quota.Token) {
		n++
	}
	if n != 1000 {
		t.Errorf("%d admitted at once, want 1000", n)
	}
	if n := poll(t, m, e, start+1, 10*time.Millisecond, 100*time.Second); n != 99 {
		t.Errorf("%d admitted in the 99.99 s after, want 99", n)
	}
}

// A full bucket gives its whole burst, whatever the refill and at any phase of the clock.
func TestFullBucketGivesItsWholeBurst(t *testing.T) {
	t.Parallel()
	for _, l := range rates {
		if l.Capacity > tokens(1000) {
			continue
		}
		for phase := range int64(50) {
			for _, share := range []string{"", "share"} {
				e := regional(l)
				e.ShareKey, e.Floor = share, l.Share()
				m := quota.NewModel()
				m.Initialise(start, 0, "g", true)
				now := start + phase*997
				n := int64(0)
				for ; n < l.Capacity.Whole() && take(t, m, now, e, quota.Token); n++ {
				}
				if n != l.Capacity.Whole() {
					t.Fatalf("%s per %s share %q: %d of %s at once", l.Refill, l.Period, share, n, l.Capacity)
				}
			}
		}
	}
}

// Cases 36 and 37: callers whose clocks differ mint nothing.
func TestSkewedClocksMintNothing(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond} {
		for _, shared := range []string{"", "share"} {
			l := perPeriod(100, 100, time.Second)
			e := regional(l)
			e.ShareKey, e.Floor = shared, l.Share()
			m := quota.NewModel()
			m.Initialise(start-skew.Microseconds(), 0, "g", true)
			admitted, i := 0, int64(0)
			for us := int64(0); us < 10_000_000; us += 1000 {
				now := start + us + skew.Microseconds()*(1-2*(i%2))
				if take(t, m, now, e, quota.Token) {
					admitted++
				}
				i++
			}
			// From the slowest clock's start to the fastest one's end.
			most := 100 + int((10*time.Second+2*skew)*100/time.Second)
			if admitted > most || admitted < most*8/10 {
				t.Errorf("skew %s share %q: %d admitted of 10,000, want at most %d and not much less", skew, shared, admitted, most)
			}
		}
	}
}

// Case 39: a clock that is set back or forward by an hour mints nothing beyond one
// capacity and denies for no longer than a bucket or window takes anyway.
func TestClockStepsOfAnHour(t *testing.T) {
	t.Parallel()
	global := regional(perPeriod(10, 10, time.Minute))
	global.ShareKey, global.Floor = "share", global.Limit.Share()
	for name, e := range map[string]quota.Entry{
		"bucket": regional(perPeriod(10, 10, time.Minute)), "log": regionalLog(10, time.Minute), "global": global,
	} {
		for _, step := range []time.Duration{-time.Hour, time.Hour} {
			t.Run(fmt.Sprintf("%s %s", name, step), func(t *testing.T) {
				t.Parallel()
				m := quota.NewModel()
				m.Initialise(start, 0, "g", true)
				now := start + 10_000_000
				for take(t, m, now, e, quota.Token) {
				}
				now += step.Microseconds()
				n := 0
				for take(t, m, now, e, quota.Token) {
					n++
				}
				if step < 0 && n > 0 || n > 10 {
					t.Errorf("%d admitted right after the step", n)
				}
				// Denied attempts in between must not hold it back either.
				after := int64(0)
				for ; after <= 61 && !take(t, m, now+after*1_000_000, e, quota.Token); after++ {
				}
				if after > 61 {
					t.Errorf("still denied %d s after the step", after)
				}
				if m.Len() != 1 {
					t.Errorf("%d keys held, want the one", m.Len())
				}
			})
		}
	}
}

// All quotas of an attempt are charged, or none; shadows go their own way.
func TestAttemptChargesAllOrNothing(t *testing.T) {
	t.Parallel()
	named := func(e quota.Entry, name string) quota.Entry { e.Bucket = name; return e }
	full := named(regional(perPeriod(1, 1, time.Hour)), "a")
	wide := named(regional(perPeriod(9, 1, time.Hour)), "b")
	log := named(regionalLog(9, time.Hour), "c")
	shadow := full
	shadow.Shadow = true
	m := quota.NewModel()
	try := func(entries ...quota.Entry) quota.Outcome {
		out, err := m.Acquire(start, quota.Attempt{Cost: quota.Token, Entries: entries})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if !try(full, wide, log).Allowed {
		t.Fatal("the first was denied")
	}
	if out := try(full, wide, log); out.Allowed || out.Verdicts[0].Allowed || !out.Verdicts[1].Allowed || out.Verdicts[1].Level != tokens(8) || out.Verdicts[2].Level != tokens(8) {
		t.Errorf("with one quota empty: %+v, want it denied and the others at 8", out)
	}
	if out := try(shadow, wide, log); !out.Allowed || out.Verdicts[0].Allowed || out.Verdicts[1].Level != tokens(7) || out.Verdicts[2].Level != tokens(7) {
		t.Errorf("with the empty one a shadow: %+v, want the others charged", out)
	}
}

func TestRequestIDsChargeOnce(t *testing.T) {
	t.Parallel()
	m, e := quota.NewModel(), regional(perPeriod(3, 1, time.Hour))
	a := quota.Attempt{Cost: quota.Token, Entries: []quota.Entry{e}, RequestID: "r"}
	first, err := m.Acquire(start, a)
	if err != nil || !first.Allowed || first.Replayed {
		t.Fatalf("first: %+v, %v", first, err)
	}
	again, err := m.Acquire(start+1_000_000, a)
	if err != nil || !again.Replayed || again.At != first.At || ask(t, m, start, e, 0, true).Level != tokens(2) {
		t.Errorf("again: %+v, %v", again, err)
	}
	two := a
	two.Entries = append([]quota.Entry{regionalLog(1, time.Hour)}, e)
	if _, err := m.Acquire(start, two); !errors.Is(err, quota.ErrRequestID) || !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("the id with another request: %v", err)
	}
	two.Entries[1].ShareKey = "share" // of a stripe without a region record
	if _, err := m.Acquire(start, two); !errors.Is(err, quota.ErrRequestID) {
		t.Errorf("the id with another request, before the dataset is there: %v", err)
	}
	m.Expire(start + quota.IdempotencyTTL.Microseconds() + 1)
	if out, err := m.Acquire(start+quota.IdempotencyTTL.Microseconds()+1, a); err != nil || out.Replayed {
		t.Errorf("after its time: %+v, %v", out, err)
	}
}

// An overridden key with the whole limit as share has the whole of its own numbers.
func TestOverrideIsExactUnderTheWholeShare(t *testing.T) {
	t.Parallel()
	for base := int64(1); base < 400; base += 7 {
		for own := int64(1); own < 400; own += 3 {
			l := perPeriod(base, base, time.Minute)
			e := regional(l)
			e.ShareKey, e.Floor, e.Limit = "share", l.Share(), perPeriod(own, own, time.Minute)
			m := quota.NewModel()
			m.Initialise(start, 0, "g", true)
			if v := ask(t, m, start, e, tokens(own), false); !v.Allowed {
				t.Fatalf("base %d own %d: the capacity does not fit a full bucket: %+v", base, own, v)
			}
		}
	}
}

// What an outcome tells is always a time, however extreme the numbers are.
func TestWaitsStayInRange(t *testing.T) {
	t.Parallel()
	l := perPeriod(1<<40, 1, 100*365*24*time.Hour)
	e := regional(l)
	e.ShareKey, e.Floor = "share", l.Share()
	m := quota.NewModel()
	m.Initialise(start, 0, "g", true)
	take(t, m, start, e, l.Capacity)
	v := ask(t, m, start, e, l.Capacity, false)
	if v.RetryAfter <= 0 || v.ResetAfter <= 0 {
		t.Errorf("waits of %s and %s", v.RetryAfter, v.ResetAfter)
	}
}
