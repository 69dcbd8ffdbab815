package document_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

var (
	attributeName = rapid.StringMatching(`[A-Za-z][A-Za-z0-9_.-]{0,12}|true|null|on|y`)
	matchValue    = rapid.Custom(func(t *rapid.T) string {
		s := rapid.OneOf(
			rapid.StringN(1, 12, 64),
			rapid.SampledFrom([]string{"free", "GET /v1/", "true", "null", "~", "1", "1.5", "0x1", "- a", "a: b", "a #b", "{", "[", "&a", "!a", "%a", "@a", "`", "'", `"`, `\`, "a\n", "\t", " a ", "é", "😀", "\u2028", "\u0085", "\x00", "\x7f", "\ufeff", "2026-11-30", "<<", "=", "?", "|", ">"}),
		).Draw(t, "value")
		out := []rune{}
		for _, r := range s {
			if r != '*' {
				out = append(out, r)
			}
		}
		if len(out) == 0 || rapid.Bool().Draw(t, "prefix") {
			out = append(out, '*')
		}
		return string(out)
	})
)

func drawPolicy(t *rapid.T, i int) *quota.Policy {
	p := &quota.Policy{ID: fmt.Sprintf("%s%d", rapid.StringMatching(`[A-Za-z0-9_.:/-]{0,20}`).Draw(t, "id"), i)}
	names := rapid.SliceOfNDistinct(attributeName, 0, 4, rapid.ID[string]).Draw(t, "names")
	for _, name := range names {
		p.Match = append(p.Match, quota.Condition{Attribute: name, Pattern: matchValue.Draw(t, "pattern")})
	}
	sortConditions(p.Match)
	p.Key = rapid.SliceOfNDistinct(attributeName, 0, 4, rapid.ID[string]).Draw(t, "key")
	if len(p.Key) == 0 {
		p.Key = nil
	} else {
		p.MissingKey = rapid.SampledFrom([]quota.MissingKey{quota.MissingSkip, quota.MissingDeny, quota.MissingShared}).Draw(t, "missing")
	}
	drawNumbers(t, p)
	p.OnStoreFailure = rapid.SampledFrom([]quota.FailureMode{quota.FailLocal, quota.FailOpen, quota.FailClosed}).Draw(t, "failure")
	p.StoreDeadline = time.Duration(rapid.SampledFrom([]int{0, 1000, 7500, 1_000_001, 10_000_000}).Draw(t, "deadline")) * time.Microsecond
	p.Priority = rapid.IntRange(-1000, 1000).Draw(t, "priority")
	p.Shadow = rapid.Bool().Draw(t, "shadow")
	if rapid.Bool().Draw(t, "regional") {
		p.Scope = quota.Regional
		return p
	}
	p.Split.Strategy = rapid.SampledFrom([]quota.SplitStrategy{quota.SplitByDemand, quota.SplitEqual, quota.SplitExplicit}).Draw(t, "strategy")
	if rapid.Bool().Draw(t, "floor") {
		floor := rapid.Float64Range(0, 100).Draw(t, "percent")
		p.Split.FloorPercent = &floor
	}
	if p.Split.Strategy == quota.SplitExplicit {
		p.Split.Weights = map[quota.Region]float64{"us-east": 1}
		for _, region := range rapid.SliceOfN(rapid.StringMatching(`[A-Za-z0-9_.-]{1,10}`), 0, 3).Draw(t, "regions") {
			p.Split.Weights[quota.Region(region)] = rapid.Float64Range(0, 1e6).Draw(t, "weight")
		}
	}
	return p
}

func drawNumbers(t *rapid.T, p *quota.Policy) {
	period := rapid.OneOf(
		rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 13 * time.Second, quota.Day, quota.Week, quota.Year}),
		rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(1000, 1e12).Draw(t, "us")) * time.Microsecond
		}),
	).Draw(t, "period")
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		p.Algorithm = rapid.SampledFrom([]quota.Algorithm{quota.TokenBucket, quota.SlidingLog, quota.Concurrency}).Draw(t, "algorithm")
		p.Unlimited = true
	case 1:
		p.Algorithm = quota.SlidingLog
		p.Limit = quota.Limit{Capacity: quota.Tokens(rapid.Int64Range(0, quota.MaxLogEntries).Draw(t, "limit")) * quota.Token, Period: period}
	default:
		p.Algorithm = quota.TokenBucket
		p.Limit = quota.Limit{Capacity: quota.Tokens(rapid.Int64Range(0, 1<<40).Draw(t, "capacity")) * quota.Token, Period: period}
		p.Limit.Refill = quota.Tokens(rapid.Int64Range(1, int64(quota.MaxTokens)).Draw(t, "refill"))
		if quota.FillTime(p.Limit) > quota.MaxFillTime {
			p.Limit.Refill = quota.MaxTokens
		}
	}
}

func sortConditions(c []quota.Condition) {
	for i := range c {
		for j := i; j > 0 && c[j].Attribute < c[j-1].Attribute; j-- {
			c[j], c[j-1] = c[j-1], c[j]
		}
	}
}

// TestMarshalRoundTrip draws policies over everything that the language can say.
func TestMarshalRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var policies []*quota.Policy
		for i := range rapid.IntRange(0, 4).Draw(r, "policies") {
			policies = append(policies, drawPolicy(r, i))
		}
		text := document.Marshal(policies)
		got, err := document.Policies(text)
		if err != nil {
			r.Fatalf("%v\n%s", err, text)
		}
		if len(policies) == 0 && len(got) == 0 {
			return
		}
		if diff := cmp.Diff(policies, got); diff != "" {
			r.Fatalf("%s\n%s", diff, text)
		}
		if again := document.Marshal(got); !bytes.Equal(again, text) {
			r.Fatalf("not canonical:\n%s\n%s", text, again)
		}
	})
}

// TestOrderOfDocumentDoesNotMatter permutes the policies of a document: every
// request resolves alike (case 130).
func TestOrderOfDocumentDoesNotMatter(t *testing.T) {
	policies := load(t, "testdata/good/service-rules.yaml")
	rapid.Check(t, func(r *rapid.T) {
		shuffled, err := document.Policies(document.Marshal(rapid.Permutation(policies).Draw(r, "order")))
		if err != nil {
			r.Fatal(err)
		}
		x, err := quota.Compile(1, policies, nil)
		if err != nil {
			r.Fatal(err)
		}
		y, err := quota.Compile(1, shuffled, nil)
		if err != nil {
			r.Fatal(err)
		}
		attrs := quota.Attributes{{Name: "path", Value: "/v1/a"}, {Name: "plan", Value: "pro"}, {Name: "route", Value: "POST /login"}}
		a, b := x.Resolve(attrs, nil), y.Resolve(attrs, nil)
		if len(a) != 4 || len(a) != len(b) {
			r.Fatalf("%d and %d matches", len(a), len(b))
		}
		for i := range a {
			if diff := cmp.Diff(a[i].Policy, b[i].Policy); diff != "" {
				r.Fatal(diff)
			}
		}
	})
}

func TestMarshalIsReadable(t *testing.T) {
	const want = `policies:
  - id: api-free
    match: { plan: free }
    key: [apiKey]
    algorithm: token-bucket
    capacity: 20
    refill: 100/1m
    onStoreFailure: local
  - id: login
    match: { route: "POST /auth/login" }
    key: [ip, username]
    algorithm: sliding-log
    limit: 10
    window: 1m
    onStoreFailure: closed
`
	if diff := cmp.Diff(want, string(document.Marshal(load(t, "testdata/good/distributed-rate-limiter.yaml")))); diff != "" {
		t.Error(diff)
	}
}
