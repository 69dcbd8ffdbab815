package quota_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

func bucketLimit(capacity int64) quota.Limit {
	return quota.Limit{Capacity: quota.Tokens(capacity) * quota.Token, Refill: 100 * quota.Token, Period: time.Minute}
}

func TestOverridesReplaceNumbersOfOneKey(t *testing.T) {
	p, q := policy("p", []string{"tenant", "user"}), policy("q", []string{"tenant", "user"})
	x := compile(t, []*quota.Policy{p, q},
		quota.Override{Policy: "p", Key: []string{"acme", "u1"}, Limit: bucketLimit(500)},
		quota.Override{Policy: "p", Key: []string{"acme", "u2"}, Unlimited: true},
		quota.Override{Policy: "p", Key: []string{"acme", "u3"}, Limit: quota.Limit{Period: time.Second}},
		quota.Override{Policy: "gone", Key: []string{"x"}, Limit: bucketLimit(1)},
	)
	for _, tc := range []struct {
		tenant, user string
		want         quota.Limit
		unlimited    bool
	}{
		{"acme", "u1", bucketLimit(500), false},
		{"acme", "u2", quota.Limit{}, true},
		{"acme", "u3", quota.Limit{Period: time.Second}, false},
		{"acme", "u4", p.Limit, false},
		{"acmeu", "1", p.Limit, false},
		{"", "acmeu1", p.Limit, false},
	} {
		got := x.Resolve(attributes(t, "tenant", tc.tenant, "user", tc.user), nil)
		if got[0].Limit != tc.want || got[0].Unlimited != tc.unlimited || (got[0].Override != nil) != (tc.want != p.Limit) {
			t.Errorf("%s/%s: %+v", tc.tenant, tc.user, got[0])
		}
		if got[1].Policy != q || got[1].Limit != q.Limit {
			t.Errorf("%s/%s: the override of p changed q: %+v", tc.tenant, tc.user, got[1])
		}
	}
}

func TestOverrideExpires(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	o, err := quota.NewOverrides([]quota.Override{{Policy: "p", Key: []string{"v"}, Limit: bucketLimit(7), Expires: now.Add(time.Hour)}}, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	x, err := quota.Compile(1, []*quota.Policy{policy("p", []string{"k"})}, o)
	if err != nil {
		t.Fatal(err)
	}
	attrs := attributes(t, "k", "v")
	now = now.Add(time.Hour - 1)
	if got := x.Resolve(attrs, nil); got[0].Limit != bucketLimit(7) {
		t.Errorf("before: %+v", got[0])
	}
	now = now.Add(1)
	if got := x.Resolve(attrs, nil); got[0].Limit != bucketLimit(20) || got[0].Override != nil {
		t.Errorf("after: %+v", got[0])
	}
}

func TestNewOverridesRefusesDuplicates(t *testing.T) {
	_, err := quota.NewOverrides([]quota.Override{{Policy: "p", Key: []string{"a"}}, {Policy: "p", Key: []string{"b"}}, {Policy: "p", Key: []string{"a"}}}, nil)
	if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), "overrides[2]") {
		t.Errorf("error is %v", err)
	}
}

func TestCheckOverride(t *testing.T) {
	bucket := policy("b", []string{"k"})
	log := policy("l", []string{"k"})
	log.Algorithm, log.Limit = quota.SlidingLog, quota.Limit{Capacity: 10 * quota.Token, Period: time.Minute}
	unlimited := policy("u", []string{"k"})
	unlimited.Unlimited, unlimited.Limit = true, quota.Limit{}
	never := policy("n", []string{"k"})
	never.Limit.Capacity = 0
	logOf := func(n int64, w time.Duration) quota.Limit {
		return quota.Limit{Capacity: quota.Tokens(n) * quota.Token, Period: w}
	}
	for _, tc := range []struct {
		name string
		p    *quota.Policy
		o    quota.Override
		want string // part of the error; empty when there is none
	}{
		{"numbers", bucket, quota.Override{Limit: bucketLimit(5)}, ""},
		{"deny always (case 77)", bucket, quota.Override{Limit: quota.Limit{Period: time.Second}}, ""},
		{"unlimited", bucket, quota.Override{Unlimited: true}, ""},
		{"log", log, quota.Override{Limit: logOf(20, time.Minute)}, ""},
		{"unlimited with numbers", bucket, quota.Override{Unlimited: true, Limit: bucketLimit(5)}, "keep one of them"},
		{"numbers of unlimited", unlimited, quota.Override{Limit: bucketLimit(5)}, "the policy is unlimited"},
		{"numbers of global zero", never, quota.Override{Limit: bucketLimit(5)}, "denies always"},
		{"minus one (case 77)", bucket, quota.Override{Limit: bucketLimit(-1)}, "capacity -1"},
		{"huge", bucket, quota.Override{Limit: bucketLimit(1<<40 + 1)}, "2^40"},
		{"fraction", bucket, quota.Override{Limit: quota.Limit{Capacity: 1, Refill: 1, Period: time.Second}}, "whole number"},
		{"negative refill", bucket, quota.Override{Limit: quota.Limit{Capacity: quota.Token, Refill: -1, Period: time.Second}}, "refill"},
		{"no refill", bucket, quota.Override{Limit: quota.Limit{Capacity: quota.Token, Period: time.Second}}, "never refill"},
		{"no period", bucket, quota.Override{Limit: quota.Limit{Capacity: quota.Token, Refill: 1}}, "must not be zero"},
		{"fine period", bucket, quota.Override{Limit: quota.Limit{Capacity: quota.Token, Refill: 1, Period: time.Second + 1}}, "microseconds"},
		{"other window", log, quota.Override{Limit: logOf(20, time.Hour)}, "state 1m"},
		{"log refill", log, quota.Override{Limit: bucketLimit(5)}, "has no refill"},
		{"large log", log, quota.Override{Limit: logOf(65537, time.Minute)}, "token-bucket"},
		{"no key", policy("k", nil), quota.Override{Key: []string{}}, "no key"},
		{"too many values", bucket, quota.Override{Key: []string{"a", "b"}}, "2 values"},
		{"long value", bucket, quota.Override{Key: []string{strings.Repeat("a", 1025)}}, "1025 bytes"},
	} {
		if tc.o.Key == nil {
			tc.o.Key = []string{"v"}
		}
		err := quota.CheckOverride(tc.p, &tc.o)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.want != "" && (!errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want it to say %q", tc.name, err, tc.want)
		}
	}
}

func TestCompileChecksOverrides(t *testing.T) {
	o, err := quota.NewOverrides([]quota.Override{{Policy: "p", Key: []string{"a", "b"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := quota.Compile(1, []*quota.Policy{policy("p", []string{"k"})}, o); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("error is %v", err)
	}
}

func manyOverrides(tb testing.TB) (*quota.Index, []quota.Attributes) {
	tb.Helper()
	var overrides []quota.Override
	var requests []quota.Attributes
	for i := range 100_000 {
		tenant, user := fmt.Sprint("tenant-", i%1000), fmt.Sprint("user-", i)
		overrides = append(overrides, quota.Override{Policy: "p", Key: []string{tenant, user}, Limit: bucketLimit(int64(i))})
		if i%331 == 0 {
			requests = append(requests, attributes(tb, "tenant", tenant, "user", user, "plan", "free"))
		}
	}
	return compile(tb, []*quota.Policy{policy("p", []string{"tenant", "user"}, "plan", "free")}, overrides...), requests
}

func TestManyOverridesDoNotAllocate(t *testing.T) {
	x, requests := manyOverrides(t)
	dst := make([]quota.Match, 0, 4)
	for i, attrs := range requests {
		if n := testing.AllocsPerRun(5, func() { dst = x.Resolve(attrs, dst[:0]) }); n != 0 {
			t.Fatalf("%v allocations", n)
		}
		if dst[0].Limit != bucketLimit(int64(i*331)) {
			t.Fatalf("request %d: %+v", i, dst[0])
		}
	}
}

func BenchmarkResolveOverrides(b *testing.B) {
	x, requests := manyOverrides(b)
	dst, i := make([]quota.Match, 0, 4), 0
	b.ReportAllocs()
	for b.Loop() {
		dst = x.Resolve(requests[i], dst[:0])
		if i++; i == len(requests) {
			i = 0
		}
	}
}
