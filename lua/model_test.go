package lua_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

// The model and the scripts run the same random commands on the same virtual clock
// and must say the same, to the microsecond and the milli-token.

func TestScriptsAgreeWithTheModelOnACluster(t *testing.T) {
	t.Parallel()
	const atLeast = 100_000
	if n := runAgreement(t, testenv.RedisCluster(t).Addrs, 10, atLeast/10+100); n < atLeast {
		t.Fatalf("%d commands compared, want at least %d", n, atLeast)
	}
}

func TestScriptsAgreeWithTheModelOnMiniredis(t *testing.T) {
	t.Parallel()
	const atLeast = 5_000
	server := miniredis.RunT(t)
	if n := runAgreement(t, []string{server.Addr()}, 2, atLeast/2+50); n < atLeast {
		t.Fatalf("%d commands compared, want at least %d", n, atLeast)
	}
}

func runAgreement(t *testing.T, addrs []string, workers, each int) int64 {
	t.Helper()
	var total, tracked atomic.Int64
	var wg sync.WaitGroup
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for w := range workers {
		wg.Go(func() {
			a := newAgreement(t, addrs, rand.New(rand.NewPCG(seed, uint64(w))))
			if a == nil {
				return
			}
			defer a.close()
			for range each {
				if err := a.step(); err != nil {
					t.Errorf("seed %d worker %d after %d commands:\n%s\n%v", seed, w, a.count, strings.Join(a.relevant(), "\n"), err)
					return
				}
			}
			total.Add(int64(a.count))
			tracked.Add(int64(a.tracked))
		})
	}
	wg.Wait()
	if n := tracked.Load(); n < total.Load()/100 {
		t.Errorf("only %d states of tracked keys compared in %d commands", n, total.Load())
	}
	return total.Load()
}

const agreementStripes = 3

// agreement drives one store and one model per stripe.
type agreement struct {
	t       *testing.T
	r       *rand.Rand
	store   *lua.Store
	models  [agreementStripes]*quota.Model
	now     int64
	gen     string
	epoch   quota.Epoch
	version int64
	limits  map[string]quota.Limit // of global policies
	quotas  []quota.Entry          // without keys
	past    []int64
	swept   [2]any // dataset and epoch that every stripe has seen
	count   int
	tracked int // keys that were found held
	history []string
}

func newAgreement(t *testing.T, addrs []string, r *rand.Rand) *agreement {
	store, err := lua.OpenVirtual(t.Context(), lua.Config{Addrs: addrs, Prefix: testenv.Prefix(t), Stripes: agreementStripes, ReadTimeout: 20 * time.Second})
	if err != nil {
		t.Errorf("open: %v", err)
		return nil
	}
	a := &agreement{t: t, r: r, store: store, now: 1_790_000_000_123_456, version: 1, limits: map[string]quota.Limit{}}
	if r.IntN(2) == 0 {
		a.now = 4_090_000_000_000_000 // year 2099
	}
	for i := range a.models {
		a.models[i] = quota.NewModel()
	}
	a.defineQuotas()
	return a
}

func (a *agreement) close() {
	ctx := context.WithoutCancel(a.t.Context())
	for stripe := range agreementStripes {
		if err := a.store.Wipe(ctx, stripe); err != nil {
			a.t.Error(err)
		}
		a.store.Client().Del(ctx, a.store.BucketKey(stripe, "")[:len(a.store.BucketKey(stripe, ""))-1]+"@testclock")
	}
	a.store.Client().Del(ctx, a.store.StripesKey())
	if err := a.store.Close(); err != nil {
		a.t.Error(err)
	}
}

const token = quota.Token

func limit(capacity, refill int64, per time.Duration) quota.Limit {
	return quota.Limit{Capacity: quota.Tokens(capacity) * token, Refill: quota.Tokens(refill) * token, Period: per}
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// bucketLimits are the shapes of limits that token buckets are tried with.
var bucketLimits = []quota.Limit{
	limit(20, 100, time.Minute),
	limit(5, 7, 13*time.Second),
	limit(3, 1, day),
	limit(2, 1, year),
	limit(1000, 100_000, time.Second),
	limit(1<<40, 1<<40, time.Second),
	limit(1<<40, 1<<38, year),
	limit(1000, 1, time.Second),
	limit(0, 0, time.Second),
	{Capacity: 50 * token, Refill: 333, Period: 777_777 * time.Microsecond},
	limit(17, 999_983, 86_399_999_999*time.Microsecond),
	limit(400_000, 1000, time.Minute),
	limit(500_000, 3, time.Millisecond),
}

var logLimits = []quota.Limit{
	limit(10, 0, time.Minute), limit(3, 0, time.Second), limit(100, 0, 13*time.Second), limit(0, 0, time.Second), limit(1, 0, year),
}

func (a *agreement) defineQuotas() {
	for _, l := range bucketLimits {
		a.quotas = append(a.quotas, quota.Entry{Algorithm: quota.TokenBucket, Limit: l, Base: l})
	}
	for _, l := range logLimits {
		a.quotas = append(a.quotas, quota.Entry{Algorithm: quota.SlidingLog, Limit: l, Base: l})
	}
	add := func(id string, algorithm quota.Algorithm, l quota.Limit, own ...quota.Limit) {
		a.limits[id] = l
		floor := quota.Share{Capacity: l.Capacity / 5 / token * token, Refill: l.Refill / 5}
		for _, o := range append(own, l) {
			a.quotas = append(a.quotas, quota.Entry{ShareKey: id, Algorithm: algorithm, Limit: o, Base: l, Floor: floor})
		}
	}
	for i, l := range bucketLimits {
		if l.Capacity > 0 {
			add(fmt.Sprintf("b%d", i), quota.TokenBucket, l, a.override(), a.override())
		}
	}
	for i, l := range logLimits {
		if l.Capacity > 0 {
			add(fmt.Sprintf("l%d", i), quota.SlidingLog, l, limit(a.r.Int64N(200), 0, l.Period))
		}
	}
}

func (a *agreement) override() quota.Limit {
	switch a.r.IntN(4) {
	case 0:
		return limit(0, 0, time.Second)
	case 1:
		return bucketLimits[a.r.IntN(len(bucketLimits))]
	}
	return quota.Limit{
		Capacity: quota.Tokens(1+a.r.Int64N(5000)) * token, Refill: quota.Tokens(1 + a.r.Int64N(5_000_000)),
		Period: time.Duration(1+a.r.Int64N(100_000_000)) * time.Microsecond,
	}
}

// pass moves the clock: mostly on, sometimes back, by all orders of magnitude.
func (a *agreement) pass() {
	spans := []time.Duration{0, 0, 5 * time.Microsecond, time.Millisecond, 30 * time.Millisecond, time.Second, time.Minute, time.Hour, 2 * day, 2 * year}
	d := spans[a.r.IntN(len(spans)-a.r.IntN(5))]
	if d > 0 {
		d = time.Duration(a.r.Int64N(int64(d)))
	}
	if a.r.IntN(12) == 0 {
		d = -d
	}
	a.now += d.Microseconds()
	if a.now < 1_700_000_000_000_000 || a.now > 4_200_000_000_000_000 {
		a.now = 1_790_000_000_000_000
	}
}

// tick sets the clock of a stripe; what has expired by it is gone.
func (a *agreement) tick(stripe int) error {
	a.models[stripe].Expire(a.now)
	return a.store.SetClock(a.t.Context(), stripe, a.now)
}

func (a *agreement) note(format string, args ...any) {
	a.count++
	a.history = append(a.history, fmt.Sprintf("%d: ", a.now)+fmt.Sprintf(format, args...))
	if len(a.history) > 60 {
		a.history = a.history[1:]
	}
}

// relevant returns the last command and those before it that touched the same keys.
func (a *agreement) relevant() []string {
	last := a.history[len(a.history)-1]
	var names []string
	for _, field := range strings.FieldsFunc(last, func(r rune) bool { return r == ' ' || r == '[' || r == '{' }) {
		for _, prefix := range []string{"k", "t:k", "share:", "initialise"} {
			if _, name, ok := strings.Cut(field, "}:"); ok && strings.HasPrefix(name, prefix) {
				names = append(names, field)
			}
		}
		if _, policy, ok := strings.Cut(field, "@share:"); ok {
			names = append(names, "{Policy:"+policy+" ")
		}
	}
	return slices.DeleteFunc(slices.Clone(a.history), func(line string) bool {
		return line != last && !strings.Contains(line, "initialise") && !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) })
	})
}

func (a *agreement) step() error {
	a.pass()
	switch n := a.r.IntN(100); {
	case n < 74:
		return a.acquire()
	case n < 82:
		return a.refund()
	case n < 90:
		return a.apply(true)
	case n < 95:
		return a.apply(false)
	case n < 97:
		return a.renew()
	case n < 98:
		return a.held()
	case n < 99:
		return a.heldKeys()
	default:
		return a.initialise()
	}
}

// entry returns a quota on one of a few keys, mostly the key's own.
func (a *agreement) entry(stripe, key int) quota.Entry {
	home := a.home(stripe, key)
	e := home
	if a.r.IntN(15) == 0 {
		// Only a policy's own quotas are decided under the shares of its keys.
		other := a.quotas[a.r.IntN(len(a.quotas))]
		if home.ShareKey == "" || other.ShareKey == "" || other.ShareKey == home.ShareKey {
			e = other
		}
	}
	e.Bucket = a.bucket(stripe, key)
	if e.ShareKey != "" {
		if e.Limit == e.Base {
			e.Limit = a.limits[e.ShareKey]
		}
		e.Base = a.limits[e.ShareKey]
		e.ShareKey = a.store.ShareKey(stripe, e.ShareKey)
	}
	e.Shadow = a.r.IntN(7) == 0
	return e
}

func (a *agreement) amount(e quota.Entry) quota.Tokens {
	switch a.r.IntN(8) {
	case 0:
		return 0
	case 1:
		return quota.Tokens(2+a.r.Int64N(5)) * token
	case 2:
		return min(e.Limit.Capacity, 1000*token)
	case 3:
		if e.Algorithm == quota.TokenBucket {
			return e.Limit.Capacity
		}
		return min(e.Limit.Capacity+token, quota.MaxTokens)
	case 4:
		if e.Algorithm == quota.TokenBucket {
			return min(e.Limit.Capacity/2/token*token, quota.MaxTokens)
		}
	case 5:
		if a.r.IntN(5) == 0 {
			return quota.MaxTokens
		}
	}
	return token
}

func (a *agreement) acquire() error {
	stripe := a.r.IntN(agreementStripes)
	at := quota.Attempt{Stripe: stripe, Peek: a.r.IntN(8) == 0}
	for _, key := range a.r.Perm(14)[:1+a.r.IntN(1+a.r.IntN(5))] {
		at.Entries = append(at.Entries, a.entry(stripe, key))
	}
	at.Cost = a.amount(at.Entries[0])
	if a.r.IntN(10) == 0 {
		at.RequestID = fmt.Sprintf("r%d-%d", stripe, a.r.IntN(4))
	}
	a.note("acquire %+v", at)
	if err := a.tick(stripe); err != nil {
		return err
	}
	want, wantErr := a.models[stripe].Acquire(a.now, at)
	got, gotErr := a.store.Acquire(a.t.Context(), at)
	if wantErr != nil || gotErr != nil {
		for _, kind := range []error{quota.ErrUninitialised, quota.ErrRequestID} {
			if errors.Is(wantErr, kind) && errors.Is(gotErr, kind) {
				return nil
			}
		}
		return fmt.Errorf("model fails with %w, scripts with %w", wantErr, gotErr)
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("scripts %+v\nmodel   %+v", got, want)
	}
	if got.Allowed {
		a.past = append(a.past[max(0, len(a.past)-5):], got.At)
	}
	return nil
}

func (a *agreement) refund() error {
	stripe := a.r.IntN(agreementStripes)
	r := quota.Refund{Entry: a.entry(stripe, a.r.IntN(14))}
	r.Amount = a.amount(r.Entry)
	if a.r.IntN(4) == 0 {
		r.Amount = quota.Tokens(a.r.Int64N(5000))
	}
	if len(a.past) > 0 && a.r.IntN(2) == 0 {
		r.At = a.past[a.r.IntN(len(a.past))]
	}
	if a.r.IntN(5) == 0 {
		r.RequestID = fmt.Sprintf("r%d-%d", stripe, a.r.IntN(4))
	}
	a.note("refund %+v", r)
	if err := a.tick(stripe); err != nil {
		return err
	}
	a.models[stripe].Refund(r)
	return a.store.Refund(a.t.Context(), stripe, []quota.Refund{r})
}

// initialise gives the dataset its id; sometimes a stripe loses its data first.
func (a *agreement) initialise() error {
	lost := -1
	if a.gen != "" && a.r.IntN(3) == 0 {
		lost = a.r.IntN(agreementStripes)
		if err := a.store.Wipe(a.t.Context(), lost); err != nil {
			return err
		}
		a.models[lost] = quota.NewModel()
	}
	fresh := a.r.IntN(2) == 0
	if a.gen == "" || a.r.IntN(2) == 0 {
		a.gen = fmt.Sprintf("gen%d", a.count)
	}
	a.note("initialise %s fresh %t lost %d", a.gen, fresh, lost)
	for stripe := range agreementStripes {
		if err := a.tick(stripe); err != nil {
			return err
		}
		a.models[stripe].Initialise(a.now, stripe, a.gen, fresh)
	}
	return a.store.Initialise(a.t.Context(), a.gen, fresh)
}
