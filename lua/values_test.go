package lua_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/quota"
)

// Case 67: whatever is not a record has a TTL, and the right one.
func TestEveryKeyHasItsTTL(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	hour := limit(60, 60, time.Hour)
	global := globalEntry(s, 4, "global", "p", hour)
	life := quota.BucketLife(hour, hour.Share())
	override := globalEntry(s, 4, "override", "p", hour)
	override.Limit = limit(240, 60, time.Hour)
	want := map[string]time.Duration{
		s.BucketKey(4, "bucket"):   10 * time.Minute, // ten tokens at one a minute
		s.BucketKey(4, "log"):      90 * time.Second,
		s.BucketKey(4, "global"):   life,
		s.BucketKey(4, "override"): 4 * life,
		s.ReplyKey(4, "id"):        quota.IdempotencyTTL,
		s.RegionKey(4):             -1,
		s.ShareKey(4, "p"):         -1,
	}
	a := one(bucketEntry(s, 4, "bucket", hour), logEntry(s, 4, "log", 20, 90*time.Second), global, override)
	a.Cost, a.RequestID = 10*token, "id"
	if out, err := s.Acquire(t.Context(), a); err != nil || !out.Allowed {
		t.Fatalf("%+v, %v", out, err)
	}
	for _, e := range a.Entries { // a refund keeps what there is
		if err := s.Refund(t.Context(), 4, []quota.Refund{{Entry: e, Amount: 2 * token}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddDemand(t.Context(), []quota.Demand{{Policy: "p", Offered: token}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.HoldAgent(t.Context(), "n", time.Second*5); err != nil {
		t.Fatal(err)
	}
	for stripe := range s.Stripes() {
		keys, err := s.KeysOf(t.Context(), stripe)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			ttl, err := s.Client().PTTL(t.Context(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			record := strings.Contains(key, "@region") || strings.Contains(key, "@share:")
			expected, named := want[key]
			switch {
			case record != (ttl == -1):
				t.Errorf("%s has a TTL of %s", key, ttl)
			case named && !record && (ttl > expected+10*time.Millisecond || ttl < expected-20*time.Second):
				t.Errorf("%s has a TTL of %s, want %s", key, ttl, expected)
			}
			delete(want, key)
		}
	}
	for key := range want {
		t.Errorf("%s is missing", key)
	}
}

// What anybody else wrote into a bucket's key never fails a check, nor gives more than
// the limit.
func TestForeignValuesFailNoCheck(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.RedisCluster(t).Addrs)
	initialise(t, s)
	l := limit(5, 1, time.Hour)
	override := globalEntry(s, 1, "k", "p", l)
	override.Limit = limit(7, 3, time.Minute)
	globalLog := logEntry(s, 1, "k", 5, time.Hour)
	globalLog.ShareKey, globalLog.Floor = s.ShareKey(1, "log"), share(5, 0)
	kinds := []quota.Entry{bucketEntry(s, 1, "k", l), globalEntry(s, 1, "k", "p", l), override, logEntry(s, 1, "k", 5, time.Hour), globalLog}
	r := rand.New(rand.NewPCG(3, 3))
	values := []string{
		"", "L", "Lx", "T", "T#", "T1:2#5000:1", "T;1:1:1:1#", "Tx#L", "L1234567", "L12345678901234", "1000000000", "-1000000000", "x1000000000", "5000@", "@", "5000@1", "5000:1", "-9:9", "nan:1", "inf@inf",
		"0x10@5", "1e3@1e3", "99999999999999999999999@1", "5000@99999999999999999999", "99999999999999999999:99999999999999999999", "-", "--1@1", "1:2:3", " 1@1",
	}
	for range 60 {
		b := make([]byte, r.IntN(30))
		for i := range b {
			b[i] = []byte("L0123456789:@-1xe. ")[r.IntN(19)]
		}
		values = append(values, string(b))
	}
	for _, value := range values {
		for i, e := range kinds {
			if err := s.Client().Set(t.Context(), e.Bucket, value, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			if err := s.Refund(t.Context(), 1, []quota.Refund{{Entry: e, Amount: token}}); err != nil {
				t.Errorf("refund to %q as %d: %v", value, i, err)
			}
			n := 0
			for range 9 {
				out, err := s.Acquire(t.Context(), one(e))
				if err != nil {
					t.Fatalf("%q as %d: %v", value, i, err)
				}
				if !out.Allowed {
					break
				}
				n++
			}
			if n > int(e.Limit.Capacity.Whole()) {
				t.Errorf("%q as %d: %d admitted", value, i, n)
			}
		}
	}
}
