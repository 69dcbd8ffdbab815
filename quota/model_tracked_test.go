package quota_test

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

// trackedBench is one stripe with one policy and a key of it that is tracked at times,
// beside the exact bucket that the key's region has to be.
type trackedBench struct {
	t       rapid.TB
	m       *quota.Model
	limit   quota.Limit
	floor   quota.Share
	entry   quota.Entry
	version int64
	now     int64
}

func newTrackedBench(t rapid.TB, l quota.Limit, own quota.Limit) *trackedBench {
	b := &trackedBench{t: t, m: quota.NewModel(), limit: l, now: start}
	b.floor = quota.Share{Capacity: l.Capacity / 5, Refill: l.Refill / 5}
	b.m.Initialise(b.now, 0, "g", true)
	b.entry = quota.Entry{Bucket: "k", ShareKey: "share", Algorithm: quota.TokenBucket, Limit: own, Base: l, Floor: b.floor}
	share := quota.Share{Capacity: l.Capacity / 2, Refill: l.Refill / 2}
	b.apply(share, share.Capacity-b.floor.Capacity)
	return b
}

func (b *trackedBench) grant(share quota.Share, gift quota.Tokens) quota.Grant {
	b.version++
	return quota.Grant{
		ID: quota.ID{Policy: "p"}, Version: b.version, Share: share, Permanent: share, Gift: gift,
		Algorithm: b.entry.Algorithm, Limit: b.limit, Floor: b.floor,
	}
}

func (b *trackedBench) apply(share quota.Share, gift quota.Tokens) {
	if _, err := b.m.Apply(b.now, 0, 1, "g", []string{"share"}, []quota.Grant{b.grant(share, gift)}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *trackedBench) track(share quota.Share, gift quota.Tokens, drop bool) {
	g := b.grant(share, gift)
	g.Drop = drop
	got, err := b.m.Track(b.now, 0, 1, "g", []quota.Place{{Bucket: "k", ShareKey: "share"}}, []quota.Grant{g})
	if err != nil || got[0] != g.Version {
		b.t.Fatalf("versions %v, %v; want %d", got, err, g.Version)
	}
}

func (b *trackedBench) held() (quota.KeyState, bool) { return b.m.HeldKey(b.now, "k") }

func (b *trackedBench) ask(cost quota.Tokens, peek bool) quota.Verdict {
	b.m.Expire(b.now)
	out, err := b.m.Acquire(b.now, quota.Attempt{Cost: cost, Peek: peek, Entries: []quota.Entry{b.entry}})
	if err != nil {
		b.t.Fatal(err)
	}
	return out.Verdicts[0]
}

func (b *trackedBench) level() quota.Tokens { return b.ask(0, true).Level }

// rational is a share as the exact bucket of a region has it.
func (b *trackedBench) rational(share quota.Share, exact *exactBucket) {
	l, own := b.limit, b.entry.Limit
	// The capacity counts in proportion, in whole milli-tokens; the refill is slower by 1.0005.
	exact.capacity = new(big.Rat).SetInt64(int64(math.Floor(float64(share.Capacity) * float64(own.Capacity) / float64(l.Capacity))))
	exact.rate = big.NewRat(int64(share.Refill)*2000, l.Period.Microseconds()*2001)
	scale := new(big.Rat).Mul(big.NewRat(int64(own.Refill), int64(l.Refill)), big.NewRat(l.Period.Microseconds(), own.Period.Microseconds()))
	exact.rate.Mul(exact.rate, scale)
	if exact.level.Cmp(exact.capacity) > 0 {
		exact.level.Set(exact.capacity)
	}
}

func anyShare(rt *rapid.T, l quota.Limit, label string) quota.Share {
	return quota.Share{
		Capacity: quota.Tokens(rapid.Int64Range(0, int64(l.Capacity)).Draw(rt, label+" capacity")),
		Refill:   quota.Tokens(rapid.Int64Range(1, int64(l.Refill)).Draw(rt, label+" refill")),
	}
}

// A tracked key is the exact bucket of its own shares: from before it is pinned, over
// any number of share changes, until after it is dropped, rounded down by no more than
// a few milli-tokens.
func TestTrackedKeyIsTheExactBucket(t *testing.T) {
	t.Parallel()
	l := perPeriod(100, 60, time.Minute)
	owns := map[string]quota.Limit{
		"plain": l, "double": perPeriod(200, 120, time.Minute), "half": perPeriod(50, 30, time.Minute), "burstier": perPeriod(1000, 60, time.Minute),
	}
	for name, own := range owns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				b := newTrackedBench(rt, l, own)
				share := quota.Share{Capacity: l.Capacity / 2, Refill: l.Refill / 2}
				exact := newExactBucket(own)
				exact.at = b.now
				b.rational(share, exact)
				initial := share
				// What rounding may hold back: a few steps of the accumulator at each change.
				step := new(big.Rat).Add(new(big.Rat).SetInt64(2), big.NewRat(2*int64(own.Refill), int64(l.Refill)))
				lost := new(big.Rat).Add(step, step)
				// A bucket that was cut has no phase of its own: it may be ahead by a part of
				// one milli-token of the policy, which is as much of an overridden key's as its
				// numbers say.
				part := new(big.Rat).Add(big.NewRat(int64(own.Capacity), int64(l.Capacity)), new(big.Rat).SetInt64(1))
				spare := new(big.Rat).Set(part)
				tracked := false
				b.ask(quota.Token, false) // an attempt has told what the key's quota is
				exact.take(b.now, quota.Token)
				for range rapid.IntRange(1, 60).Draw(rt, "steps") {
					b.now += rapid.Int64Range(0, 20_000_000).Draw(rt, "pass")
					exact.advance(b.now)
					switch rapid.IntRange(0, 5).Draw(rt, "what") {
					case 0: // pinned, or another share
						share = anyShare(rt, l, "own")
						share.Capacity = max(quota.Token, share.Capacity)
						gift := quota.Tokens(0)
						if tracked && rapid.Bool().Draw(rt, "gift?") {
							gift = quota.Tokens(rapid.Int64Range(0, int64(l.Capacity)).Draw(rt, "gift"))
						}
						b.track(share, gift, false)
						scaled := int64(math.Floor(float64(gift) * float64(own.Capacity) / float64(l.Capacity)))
						b.rational(share, exact) // first the cut, then the gift
						exact.level.Add(exact.level, new(big.Rat).SetInt64(scaled))
						b.rational(share, exact)
						tracked = true
						b.ask(0, false)
						lost.Add(lost, step)
						spare.Add(spare, part)
					case 1:
						if tracked {
							b.track(initial, 0, false)
							b.track(share, 0, true)
							share, tracked = initial, false
							b.rational(share, exact)
							lost.Add(lost, step)
							spare.Add(spare, part)
							b.ask(0, false)
						}
					default:
						cost := quota.Tokens(rapid.Int64Range(1, 30_000).Draw(rt, "cost"))
						if b.ask(cost, false).Allowed {
							exact.level.Sub(exact.level, new(big.Rat).SetInt64(int64(cost)))
						}
					}
					most := new(big.Rat).Add(exact.level, spare)
					if most.Sign() < 0 {
						rt.Fatalf("%s milli-tokens too many", new(big.Rat).Neg(exact.level).FloatString(3))
					}
					least := new(big.Rat).Sub(exact.level, lost)
					if got := new(big.Rat).SetInt64(int64(b.level())); got.Cmp(least) < 0 || got.Cmp(most) > 0 {
						rt.Fatalf("level %s, exactly %s, of which rounding may hold back %s", got.FloatString(0), exact.level.FloatString(3), lost.FloatString(0))
					}
				}
			})
		})
	}
}

// Whatever happened to a key before: a pin, a grow and a drop raise no level, but by a
// gift; and a shrink tells what it cut off.
func TestGrantsOfATrackedKeyRaiseNoLevel(t *testing.T) {
	t.Parallel()
	l := perPeriod(100, 60, time.Minute)
	wide := perPeriod(500_000, 3_000_000, time.Second)
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]quota.Limit{l, wide}).Draw(rt, "limit")
		own := limit
		if rapid.Bool().Draw(rt, "overridden") {
			own = quota.Limit{
				Capacity: quota.Tokens(rapid.Int64Range(0, 4*int64(limit.Capacity)).Draw(rt, "own capacity")),
				Refill:   quota.Tokens(rapid.Int64Range(1, 4*int64(limit.Refill)).Draw(rt, "own refill")), Period: limit.Period,
			}
		}
		ratio := float64(own.Capacity) / float64(limit.Capacity)
		b := newTrackedBench(rt, limit, own)
		learned := false // an attempt since the pin has told what the key's quota is
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			b.now += rapid.Int64Range(0, 3*limit.Period.Microseconds()).Draw(rt, "pass")
			before := b.level()
			_, tracked := b.held()
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				b.apply(anyShare(rt, limit, "default"), 0)
			case 1, 2:
				share := anyShare(rt, limit, "own")
				gift := quota.Tokens(rapid.SampledFrom([]int64{0, 0, 1500, int64(limit.Capacity)}).Draw(rt, "gift"))
				learned = learned && tracked
				b.track(share, gift, false)
				state, ok := b.held()
				after := b.level()
				cut, least := before-after, quota.Tokens(0)
				if gift == 0 && before > after {
					least = cut - 1
				}
				if !ok || state.Share != share || state.Version != b.version || state.Hold != share.Capacity {
					rt.Fatalf("held %+v, want share %+v of version %d", state, share, b.version)
				}
				if most := before + quota.Tokens(math.Ceil(float64(gift)*ratio)); after > most {
					rt.Fatalf("level %s after a grant with gift %s, %s before", after, gift, before)
				}
				if told := float64(state.Surrendered) * ratio; gift == 0 && told >= float64(cut)+1 || state.Surrendered < 0 {
					rt.Fatalf("%s surrendered, but only %s of the level went (%v of the policy's)", state.Surrendered, cut, ratio)
				}
				if told := quota.Tokens(math.Ceil(float64(state.Surrendered+1) * ratio)); gift == 0 && learned && own.Capacity > 0 && told < least {
					rt.Fatalf("%s surrendered, but %s went", state.Surrendered, cut)
				}
			case 3:
				if tracked {
					b.track(quota.Share{}, 0, true)
					if _, still := b.held(); still {
						rt.Fatal("dropped, and still tracked")
					}
				}
			default:
				b.ask(quota.Tokens(rapid.Int64Range(0, int64(own.Capacity)/2).Draw(rt, "cost")), false)
				learned = true
				continue
			}
			if _, tracked = b.held(); !tracked && b.level() > before {
				rt.Fatalf("level %s, %s before", b.level(), before)
			}
		}
	})
}

// A gift raises the level by just itself, but not above the capacity.
func TestGiftRaisesTheLevelByItself(t *testing.T) {
	t.Parallel()
	b := newTrackedBench(t, perPeriod(100, 60, time.Minute), perPeriod(100, 60, time.Minute))
	share := quota.Share{Capacity: tokens(50), Refill: tokens(30)}
	b.track(share, 0, false)
	for b.ask(tokens(10), false).Allowed {
		b.now++
	}
	for _, c := range []struct{ gift, capacity, want quota.Tokens }{
		{tokens(7), tokens(60), tokens(7)}, {0, tokens(70), 0}, {tokens(90), tokens(80), tokens(73)}, {tokens(10), tokens(90), tokens(10)},
	} {
		before := b.level()
		b.track(quota.Share{Capacity: c.capacity, Refill: tokens(30)}, c.gift, false)
		if got := b.level() - before; got != c.want {
			t.Errorf("gift %s to %s of %s raises the level by %s, want %s", c.gift, before, c.capacity, got, c.want)
		}
	}
	b.track(quota.Share{Capacity: tokens(20), Refill: tokens(30)}, 0, false)
	if state, _ := b.held(); state.Surrendered != tokens(70) {
		t.Errorf("surrendered %s of 90 when 20 are left, want 70", state.Surrendered)
	}
	b.track(quota.Share{Capacity: tokens(30), Refill: tokens(30)}, 0, false)
	if state, _ := b.held(); state.Surrendered != 0 {
		t.Errorf("surrendered %s by a grow", state.Surrendered)
	}
}

// A tracked log tells how many entries it has, and admits none while they are more
// than its share.
func TestTrackedLogTellsItsEntries(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]int64{"plain": 100, "double": 200, "half": 50} {
		b := newTrackedBench(t, quota.Limit{Capacity: tokens(100), Period: time.Minute}, quota.Limit{Capacity: tokens(own), Period: time.Minute})
		b.entry.Algorithm = quota.SlidingLog
		b.apply(quota.Share{Capacity: tokens(60)}, 0)
		admitted := int64(0)
		for b.ask(quota.Token, false).Allowed {
			b.now += 100_000
			admitted++
		}
		if admitted != own*60/100 {
			t.Fatalf("%s: %d admitted under 60 of 100", name, admitted)
		}
		b.track(quota.Share{Capacity: tokens(60)}, 0, false)
		if v := b.ask(quota.Token, false); v.Allowed || v.Version != b.version {
			t.Fatalf("%s: pinned and full: %+v", name, v)
		}
		b.track(quota.Share{Capacity: tokens(20)}, 0, false)
		for left := admitted; left > own*20/100; left-- {
			state, _ := b.held()
			if want := tokens(left) * 100 / quota.Tokens(own); state.Hold != want {
				t.Fatalf("%s: %d entries are told as %s, want %s", name, left, state.Hold, want)
			}
			if b.ask(quota.Token, false).Allowed {
				t.Fatalf("%s: admitted with %d entries under 20 of 100", name, left)
			}
			b.now += b.ask(quota.Token, true).RetryAfter.Microseconds()
			b.now = start + (admitted-left)*100_000 + 60_030_000 // when the next entry leaves
		}
		if state, _ := b.held(); state.Hold != tokens(20) {
			t.Errorf("%s: drained, and holds %s", name, state.Hold)
		}
		b.track(quota.Share{}, 0, true)
		if got := b.level().Whole(); got != own*60/100-own*20/100 {
			t.Errorf("%s: %d slots after the drop, want those of the policy's share but for the entries", name, got)
		}
		b.now += 70_000_000
		if b.m.Expire(b.now); b.m.Len() != 0 {
			t.Errorf("%s: the log stays for ever", name)
		}
	}
}

// Only newer grants count, by the key's own record; a key without one takes any grant
// of its dataset.
func TestTrackedKeysTakeOnlyNewerGrants(t *testing.T) {
	t.Parallel()
	b := newTrackedBench(t, perPeriod(100, 60, time.Minute), perPeriod(100, 60, time.Minute))
	place := []quota.Place{{Bucket: "k", ShareKey: "share"}}
	share := func(n int64) quota.Share { return quota.Share{Capacity: tokens(n), Refill: tokens(n)} }
	for i, c := range []struct {
		epoch   quota.Epoch
		version int64
		drop    bool
		in      int64
		held    int64 // 0: none
	}{
		{1, 7, true, 7, 0}, {1, 5, false, 5, 5}, {1, 5, false, 5, 5}, {1, 4, false, 5, 5}, {1, 4, true, 5, 5}, {2, 1, false, 1, 1}, {2, 2, true, 2, 0}, {2, 1, false, 1, 1},
	} {
		g := quota.Grant{Version: c.version, Share: share(int64(i + 1)), Permanent: share(int64(i + 1)), Algorithm: quota.TokenBucket, Limit: b.limit, Floor: b.floor, Drop: c.drop}
		got, err := b.m.Track(b.now, 0, c.epoch, "g", place, []quota.Grant{g})
		if err != nil || got[0] != c.in {
			t.Errorf("grant %d: version %v in force, %v; want %d", i, got, err, c.in)
		}
		if state, ok := b.held(); ok != (c.held > 0) || state.Version != c.held {
			t.Errorf("grant %d: held %+v (%t), want version %d", i, state, ok, c.held)
		}
	}
	if _, err := b.m.Track(b.now, 0, 1, "g", place, nil); !errors.Is(err, quota.ErrFenced) {
		t.Errorf("an old epoch: %v", err)
	}
	if _, err := b.m.Track(b.now, 0, 2, "x", place, nil); !errors.Is(err, quota.ErrFenced) {
		t.Errorf("another dataset: %v", err)
	}
	if _, err := b.m.Track(b.now, 1, 2, "g", place, nil); !errors.Is(err, quota.ErrUninitialised) {
		t.Errorf("a lost stripe: %v", err)
	}
	if got := b.m.Tracked(); len(got) != 1 || got[0] != "k" {
		t.Errorf("tracked %v", got)
	}
}
