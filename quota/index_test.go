package quota_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

// attributes builds a request's attributes from name, value, name, value...
func attributes(tb testing.TB, pairs ...string) quota.Attributes {
	tb.Helper()
	var b quota.AttributeBuilder
	for i := 0; i < len(pairs); i += 2 {
		b.Add(pairs[i], pairs[i+1])
	}
	attrs, err := b.Attributes()
	if err != nil {
		tb.Fatal(err)
	}
	return attrs
}

// policy makes a token bucket with conditions attribute, pattern, attribute, pattern...
func policy(id string, key []string, match ...string) *quota.Policy {
	p := &quota.Policy{
		ID: id, Key: key, Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailOpen,
		Limit: quota.Limit{Capacity: 20 * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
	}
	for i := 0; i < len(match); i += 2 {
		p.Match = append(p.Match, quota.Condition{Attribute: match[i], Pattern: match[i+1]})
	}
	slices.SortFunc(p.Match, func(a, b quota.Condition) int { return strings.Compare(a.Attribute, b.Attribute) })
	return p
}

func compile(tb testing.TB, policies []*quota.Policy, overrides ...quota.Override) *quota.Index {
	tb.Helper()
	o, err := quota.NewOverrides(overrides, nil)
	if err != nil {
		tb.Fatal(err)
	}
	x, err := quota.Compile(1, policies, o)
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

func ids(matches []quota.Match) string {
	var out []string
	for _, m := range matches {
		out = append(out, m.Policy.ID)
	}
	return strings.Join(out, " ")
}

func TestResolvePrecedence(t *testing.T) {
	x := compile(t, []*quota.Policy{
		policy("all", nil),
		policy("any", nil, "route", "*"),
		policy("get", nil, "route", "GET /*"),
		policy("v1", nil, "route", "GET /v1/*"),
		policy("items", nil, "route", "GET /v1/items"),
		policy("items-pro", nil, "route", "GET /v1/items", "plan", "pro"),
		policy("pro", nil, "plan", "pro"),
		policy("post", nil, "route", "POST /*"),
	})
	for _, tc := range []struct{ route, plan, want string }{
		{"GET /v1/items", "pro", "items-pro items pro v1 get any all"},
		{"GET /v1/items", "", "items v1 get any all"},
		{"GET /v1/", "free", "v1 get any all"},
		{"GET /v1", "free", "get any all"},
		{"GET /zzz", "", "get any all"},
		{"POST /v1/items", "", "post any all"},
		{"A", "", "any all"},
		{"", "pro", "pro all"},
		{"", "", "all"},
	} {
		if got := ids(x.Resolve(attributes(t, "route", tc.route, "plan", tc.plan), nil)); got != tc.want {
			t.Errorf("route %q plan %q: %s, want %s", tc.route, tc.plan, got, tc.want)
		}
	}
}

// randomPolicies draws policies over few attributes and values, so that they
// overlap in every way.
func randomPolicies(t *rapid.T) []*quota.Policy {
	patterns := []string{"*", "a*", "ab*", "abc*", "a", "ab", "abc", "b*", "b", "ba*", "a\xff*"}
	n := rapid.IntRange(0, 40).Draw(t, "policies")
	var out []*quota.Policy
	for i := range n {
		var match []string
		for _, name := range []string{"x", "y", "z"} {
			if rapid.Bool().Draw(t, "has "+name) {
				match = append(match, name, rapid.SampledFrom(patterns).Draw(t, name))
			}
		}
		out = append(out, policy(fmt.Sprintf("p%02d", i), nil, match...))
	}
	return out
}

// plainHolds is the definition of a condition, written as plainly as can be.
func plainHolds(c quota.Condition, attrs map[string]string) bool {
	value := attrs[c.Attribute]
	if value == "" {
		return false
	}
	if prefix, ok := strings.CutSuffix(c.Pattern, "*"); ok {
		return strings.HasPrefix(value, prefix)
	}
	return value == c.Pattern
}

// TestResolveAgreesWithDefinition compares the index with a plain scan, and
// with indexes of the same policies loaded in another order. Cases 24, 25, 97,
// 102 and 130.
func TestResolveAgreesWithDefinition(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		policies := randomPolicies(r)
		shuffled := rapid.Permutation(policies).Draw(r, "order")
		x, y := compile(t, policies), compile(t, shuffled)
		for range 8 {
			m := map[string]string{}
			for _, name := range []string{"x", "y", "z", "other"} {
				m[name] = rapid.SampledFrom([]string{"", "a", "ab", "abc", "abcd", "b", "ba", "c", "a\xff", "aa"}).Draw(r, name)
			}
			var b quota.AttributeBuilder
			b.AddMap(m)
			attrs, err := b.Attributes()
			if err != nil {
				r.Fatal(err)
			}
			var want []*quota.Policy
			for _, p := range policies {
				if !slices.ContainsFunc(p.Match, func(c quota.Condition) bool { return !plainHolds(c, m) }) {
					want = append(want, p)
				}
			}
			slices.SortFunc(want, quota.Compare)
			got, other := x.Resolve(attrs, nil), y.Resolve(attrs, nil)
			if ids(got) != ids(other) {
				r.Fatalf("order of loading matters: %s and %s", ids(got), ids(other))
			}
			if !slices.EqualFunc(got, want, func(m quota.Match, p *quota.Policy) bool { return m.Policy == p }) {
				r.Fatalf("%v: %s", m, ids(got))
			}
			traces := x.ExplainMatch(attrs)
			for i, p := range want {
				if i < len(traces) && (traces[i].Policy != p || !traces[i].Matched) {
					r.Fatalf("explain differs from resolve at %d", i)
				}
			}
		}
	})
}

func TestCompareIsTotal(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		policies := randomPolicies(r)
		for i, a := range policies {
			for j, b := range policies {
				if (quota.Compare(a, b) == 0) != (i == j) || quota.Compare(a, b) != -quota.Compare(b, a) {
					r.Fatalf("%v and %v", a, b)
				}
			}
		}
	})
}

func TestCompileRefusesDuplicateID(t *testing.T) {
	_, err := quota.Compile(1, []*quota.Policy{policy("same", nil), policy("same", nil, "a", "b")}, nil)
	if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), `"same"`) {
		t.Errorf("error is %v", err)
	}
}

func TestIndexLookup(t *testing.T) {
	x := compile(t, []*quota.Policy{policy("b", nil), policy("a", nil)})
	if p, ok := x.Policy("b"); !ok || p.ID != "b" {
		t.Error("b is not found")
	}
	if _, ok := x.Policy("c"); ok {
		t.Error("c is found")
	}
	var order []string
	for p := range x.Policies() {
		order = append(order, p.ID)
	}
	if strings.Join(order, " ") != "a b" || x.Len() != 2 || x.Revision() != 1 {
		t.Errorf("order %v, len %d, revision %d", order, x.Len(), x.Revision())
	}
}

func TestResolveMissingKey(t *testing.T) {
	deny := policy("deny", []string{"tenant", "apiKey"}, "plan", "free")
	deny.MissingKey = quota.MissingDeny
	x := compile(t, []*quota.Policy{deny})
	for _, tc := range []struct {
		pairs []string
		want  string
	}{
		{[]string{"plan", "free", "tenant", "t", "apiKey", "k"}, ""},
		{[]string{"plan", "free", "tenant", "t"}, "apiKey"},
		{[]string{"plan", "free", "tenant", "", "apiKey", "k"}, "tenant"},
		{[]string{"plan", "free"}, "tenant"},
	} {
		got := x.Resolve(attributes(t, tc.pairs...), nil)
		if len(got) != 1 || got[0].Missing != tc.want {
			t.Errorf("%v: %+v, want missing %q", tc.pairs, got, tc.want)
		}
	}
}

func TestResolveAppends(t *testing.T) {
	x := compile(t, []*quota.Policy{policy("b", nil), policy("a", nil)})
	dst := x.Resolve(nil, x.Resolve(nil, nil))
	if ids(dst) != "a b a b" {
		t.Errorf("got %s", ids(dst))
	}
}

// TestIndexIsImmutable uses one index from many goroutines. With -race it shows
// that nothing is written (case 133).
func TestIndexIsImmutable(t *testing.T) {
	p := policy("keyed", []string{"k"}, "r", "a*")
	x := compile(t, []*quota.Policy{p, policy("all", nil)}, quota.Override{Policy: "keyed", Key: []string{"v"}, Unlimited: true})
	attrs := attributes(t, "k", "v", "r", "abc")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				m := x.Resolve(attrs, nil)
				m[0].Limit.Capacity = 0
				x.ExplainMatch(attrs)
			}
		})
	}
	wg.Wait()
	if p.Limit.Capacity != 20*quota.Token {
		t.Error("changing a match changed the policy")
	}
}

func TestExplainMatch(t *testing.T) {
	x := compile(t, []*quota.Policy{
		policy("near", nil, "plan", "free", "route", "GET /v1/*"),
		policy("far", nil, "plan", "pro", "region", "*"),
		policy("all", nil),
		policy("keyed", []string{"user"}, "plan", "free"),
	})
	attrs := attributes(t, "plan", "free", "route", "GET /v2/x")
	var got []string
	for _, m := range x.ExplainMatch(attrs) {
		got = append(got, fmt.Sprintf("%s %t: %s", m.Policy.ID, m.Matched, m.Reason))
	}
	want := []string{
		"keyed true: the request has no user to count by; missingKey: skip",
		"all true: the policy matches every request",
		`near false: route is "GET /v2/x", which does not begin with "GET /v1/"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	far := x.ExplainMatch(attrs, "far")
	if len(far) != 1 || far[0].Matched || far[0].Failed.Attribute != "plan" || far[0].Reason != `plan is "free", the policy wants "pro"` {
		t.Errorf("filtered: %+v", far)
	}
}

func TestExplainMatchIsBounded(t *testing.T) {
	var policies []*quota.Policy
	for i := range 1000 {
		policies = append(policies, policy(fmt.Sprint("p", i), nil, "plan", "free", "route", strconv.Itoa(i)))
	}
	if n := len(compile(t, policies).ExplainMatch(attributes(t, "plan", "free"))); n != quota.MaxTraces {
		t.Errorf("%d traces", n)
	}
}

func TestResolveDoesNotAllocate(t *testing.T) {
	for name, bench := range resolveBenchmarks(t) {
		dst := make([]quota.Match, 0, 16)
		for i, attrs := range bench.requests {
			if n := testing.AllocsPerRun(10, func() { dst = bench.index.Resolve(attrs, dst[:0]) }); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
			if want := bench.want(i); ids(dst) != want {
				t.Errorf("%s %d: %s, want %s", name, i, ids(dst), want)
			}
		}
	}
}

// resolveBenchmark asks an index about many requests in turn, so that no single
// path through it stays warm.
type resolveBenchmark struct {
	index    *quota.Index
	requests []quota.Attributes
	want     func(i int) string
}

func resolveBenchmarks(tb testing.TB) map[string]resolveBenchmark {
	tb.Helper()
	const n, step = 10_000, 39
	var exact, prefixes, pairs []*quota.Policy
	request := func(plan, route string) quota.Attributes {
		return attributes(tb, "apiKey", "ak_9f210c64be7d1a35", "ip", "203.0.113.9", "method", "GET", "plan", plan, "route", route, "tenant", "acme")
	}
	var exactRequests, prefixRequests, pairRequests, noneRequests []quota.Attributes
	for i := range n {
		id, route := fmt.Sprintf("p%05d", i), fmt.Sprintf("GET /v1/service-%d/", i)
		exact = append(exact, policy(id, []string{"apiKey"}, "plan", fmt.Sprint("plan-", i%10), "route", route))
		prefixes = append(prefixes, policy(id, []string{"apiKey"}, "route", route+"*"))
		pairs = append(pairs, policy(id, []string{"apiKey"}, "plan", fmt.Sprint("plan-", i), "route", fmt.Sprintf("GET /v1/%d*", i%100)))
		if i%step == 0 {
			exactRequests = append(exactRequests, request(fmt.Sprint("plan-", i%10), route))
			prefixRequests = append(prefixRequests, request("free", route+"items/17"))
			pairRequests = append(pairRequests, request(fmt.Sprint("plan-", i), fmt.Sprintf("GET /v1/%d/items", i%100)))
			noneRequests = append(noneRequests, request("none", "POST "+route))
		}
	}
	general := []*quota.Policy{policy("all", []string{"tenant"}), policy("get", []string{"apiKey"}, "route", "GET *")}
	one := func(i int) string { return fmt.Sprintf("p%05d", i*step) }
	three := func(i int) string { return one(i) + " get all" }
	return map[string]resolveBenchmark{
		"exact":    {compile(tb, append(exact, general...)), exactRequests, three},
		"prefixes": {compile(tb, append(prefixes, general...)), prefixRequests, three},
		"pairs":    {compile(tb, pairs), pairRequests, one},
		"none":     {compile(tb, exact), noneRequests, func(int) string { return "" }},
	}
}

func BenchmarkResolve(b *testing.B) {
	for name, bench := range resolveBenchmarks(b) {
		b.Run(name, func(b *testing.B) {
			dst, i := make([]quota.Match, 0, 16), 0
			b.ReportAllocs()
			for b.Loop() {
				dst = bench.index.Resolve(bench.requests[i], dst[:0])
				if i++; i == len(bench.requests) {
					i = 0
				}
			}
		})
	}
}
