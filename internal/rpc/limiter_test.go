package rpc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

const (
	check      = "/weir.v1.LimiterService/Check"
	checkBatch = "/weir.v1.LimiterService/CheckBatch"
	peek       = "/weir.v1.LimiterService/Peek"
	explain    = "/weir.v1.LimiterService/Explain"
	refund     = "/weir.v1.LimiterService/Refund"
	report     = "/weir.v1.RegionService/Report"
)

func TestCheckJSONShape(t *testing.T) {
	var got quota.Request
	s := serve(t, &fakeLimiter{check: func(_ context.Context, r quota.Request) (quota.Result, error) {
		got = r
		return quota.Result{Allowed: true, Decisions: []quota.Decision{apiFree()}}, nil
	}})
	body := `{"attributes":{"plan":"free","apiKey":"ak_1"},"cost":1}`

	status, answer := s.post(t, check, body)
	assert.Equal(t, 200, status)
	assert.Equal(t, `{"allowed":true,"decisions":[{"policyId":"api-free","allowed":true,"limit":"20",`+
		`"remaining":"19","resetAfter":"0.600s","source":"STORE"}],"headers":[`+
		`{"name":"RateLimit-Policy","value":"\"api-free\";q=100;w=60;weir-burst=20"},`+
		`{"name":"RateLimit","value":"\"api-free\";r=19;t=12"}]}`, answer)
	assert.Equal(t, quota.Request{
		Attributes: map[string]string{"plan": "free", "apiKey": "ak_1"}, Cost: quota.Token,
	}, got)

	_, charset := s.post(t, check, body, "Content-Type", "application/json; charset=utf-8")
	assert.Equal(t, answer, charset)
}

func TestDenialIsAnAnswer(t *testing.T) {
	d := apiFree()
	d.Allowed, d.Reason, d.Remaining, d.RetryAfter = false, quota.ReasonLimit, 0, 4001*time.Millisecond
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		return quota.Result{Decisions: []quota.Decision{d}, Revision: 7, Replayed: true}, nil
	}})
	status, answer := s.post(t, check, `{}`)
	assert.Equal(t, 200, status)
	assert.Equal(t, `{"allowed":false,"decisions":[{"policyId":"api-free","allowed":false,"limit":"20",`+
		`"remaining":"0","retryAfter":"4.001s","resetAfter":"0.600s","source":"STORE","reason":"LIMIT_EXCEEDED"}],`+
		`"headers":[{"name":"RateLimit-Policy","value":"\"api-free\";q=100;w=60;weir-burst=20"},`+
		`{"name":"RateLimit","value":"\"api-free\";r=0;t=5"},{"name":"Retry-After","value":"5"}],`+
		`"retryAfter":"4.001s","revision":"7","replayed":true}`, answer)
}

func TestEverySourceAndReasonInJSON(t *testing.T) {
	var d quota.Decision
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		return quota.Result{Decisions: []quota.Decision{d}}, nil
	}})
	for source, want := range map[quota.Source]string{
		quota.SourceNone: "NONE", quota.SourceStore: "STORE", quota.SourceLease: "LEASE", quota.SourceFallback: "FALLBACK",
	} {
		d = quota.Decision{Source: source}
		_, answer := s.post(t, check, `{}`)
		assert.Contains(t, answer, `"source":"`+want+`"`)
	}
	for _, reason := range []quota.Reason{
		quota.ReasonLimit, quota.ReasonNeverFits, quota.ReasonStoreUnavailable, quota.ReasonMissingKey,
	} {
		d = quota.Decision{Reason: reason}
		_, answer := s.post(t, check, `{}`)
		assert.Contains(t, answer, `"reason":"`+reason.String()+`"`)
		assert.Equal(t, reason == quota.ReasonNeverFits, strings.Contains(answer, `"neverFits":true`))
	}
}

func TestShadowAndUnlimitedInJSON(t *testing.T) {
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		return quota.Result{Allowed: true, Decisions: []quota.Decision{
			{PolicyID: "dry", Shadow: true, Reason: quota.ReasonLimit, Source: quota.SourceStore, Limit: 5},
			{PolicyID: "free", Allowed: true, Unlimited: true},
		}}, nil
	}})
	_, answer := s.post(t, check, `{}`)
	assert.Equal(t, `{"allowed":true,"decisions":[`+
		`{"policyId":"dry","allowed":true,"limit":"5","remaining":"0","source":"STORE","reason":"LIMIT_EXCEEDED","shadow":true,"shadowDenied":true},`+
		`{"policyId":"free","allowed":true,"source":"NONE","unlimited":true}]}`, answer)
}

func TestCostDefaultsToOneAndZeroAsks(t *testing.T) {
	var got quota.Tokens
	s := serve(t, &fakeLimiter{check: func(_ context.Context, r quota.Request) (quota.Result, error) {
		got = r.Cost
		return quota.Result{Allowed: true}, nil
	}})
	for body, want := range map[string]quota.Tokens{
		`{}`: quota.Token, `{"cost":0}`: 0, `{"cost":"7"}`: 7 * quota.Token, `{"cost":1099511627776}`: quota.MaxTokens,
	} {
		for _, procedure := range []string{check, peek} {
			status, _ := s.post(t, procedure, body)
			require.Equal(t, 200, status)
			assert.Equal(t, want, got, body)
		}
	}
}

func TestRequestIDFromBodyAndHeader(t *testing.T) {
	var got string
	s := serve(t, &fakeLimiter{check: func(_ context.Context, r quota.Request) (quota.Result, error) {
		got = r.RequestID
		return quota.Result{Allowed: true}, nil
	}})
	const header = "Idempotency-Key"
	for _, tc := range []struct {
		name, body string
		headers    []string
		want       string
	}{
		{"none", `{}`, nil, ""},
		{"body", `{"requestId":"a"}`, nil, "a"},
		{"bare header", `{}`, []string{header, "8e03978e"}, "8e03978e"},
		{"quoted header", `{}`, []string{header, `"8e\"03"`}, `8e"03`},
		{"both alike", `{"requestId":"a"}`, []string{header, `"a"`}, "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, answer := s.post(t, check, tc.body, tc.headers...)
			require.Equal(t, 200, status, answer)
			assert.Equal(t, tc.want, got)
		})
	}
	for _, tc := range []struct {
		name, body string
		headers    []string
		want       string
	}{
		{"both differ", `{"requestId":"a"}`, []string{header, "b"}, "differs from the Idempotency-Key header"},
		{"open quote", `{}`, []string{header, `"a`}, "not a quoted string"},
		{"not a string", `{}`, []string{header, `"a" b`}, "not a quoted string"},
		{"empty", `{}`, []string{header, `""`}, "leave the header out"},
		{"twice", `{}`, []string{header, "a", header, "b"}, "sent 2 times"},
		{"long", `{}`, []string{header, strings.Repeat("a", 256)}, "256 bytes long; use at most 255"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, answer := s.post(t, check, tc.body, tc.headers...)
			assert.Equal(t, 400, status)
			assert.Contains(t, answer, tc.want)
		})
	}
}

func TestCheckBatchEachOnItsOwn(t *testing.T) {
	s := serve(t, &fakeLimiter{check: func(_ context.Context, r quota.Request) (quota.Result, error) {
		switch r.Attributes["n"] {
		case "1":
			return quota.Result{}, nil
		case "3":
			return quota.Result{}, fmt.Errorf("redis 10.0.0.1: %w", quota.ErrUnavailable)
		}
		return quota.Result{Allowed: true, Decisions: []quota.Decision{{PolicyID: r.RequestID, Unlimited: true, Allowed: true}}}, nil
	}})
	status, answer := s.post(t, checkBatch, `{"checks":[{"attributes":{"n":"0"},"requestId":"own"},{"attributes":{"n":"1"}},`+
		`{"cost":-1},{"attributes":{"n":"3"}},{"attributes":{"n":"4"}}]}`, "Idempotency-Key", "k")
	require.Equal(t, 200, status, answer)
	assert.Equal(t, `{"results":[`+
		`{"response":{"allowed":true,"decisions":[{"policyId":"own","allowed":true,"source":"NONE","unlimited":true}]}},`+
		`{"response":{"allowed":false,"headers":[{"name":"Retry-After","value":"1"}]}},`+
		`{"error":{"code":"invalid_argument","message":"cost: -1 is negative; a cost is 0 or more, use Refund to give tokens back"}},`+
		`{"error":{"code":"unavailable","message":"a store or a peer did not answer"}},`+
		`{"response":{"allowed":true,"decisions":[{"policyId":"k#4","allowed":true,"source":"NONE","unlimited":true}]}}]}`, answer)
	assert.Contains(t, s.log.String(), "10.0.0.1", "what is not sent is logged")
}

func TestCheckBatchSize(t *testing.T) {
	s := serve(t, &fakeLimiter{})
	status, answer := s.post(t, checkBatch, `{}`)
	assert.Equal(t, 400, status)
	assert.Contains(t, answer, "checks: empty; send at least one")

	many := func(n int) string { return `{"checks":[` + strings.Repeat(`{},`, n-1) + `{}]}` }
	status, answer = s.post(t, checkBatch, many(rpc.MaxBatch))
	assert.Equal(t, 200, status)
	assert.Equal(t, rpc.MaxBatch, strings.Count(answer, `"allowed":true`))

	status, answer = s.post(t, checkBatch, many(rpc.MaxBatch+1))
	assert.Equal(t, 400, status)
	assert.Contains(t, answer, "checks: 1001 of them; send at most 1000 and split the rest")
}

func TestExplainJSON(t *testing.T) {
	d := apiFree()
	s := serve(t, &fakeLimiter{explain: func(context.Context, quota.Request) (quota.Explanation, error) {
		return quota.Explanation{Allowed: true, Revision: 3, Policies: []quota.PolicyExplanation{
			{
				PolicyID: "api-free", Matched: true, Decision: d, Bucket: "rl:{0}:api-free:k:00", Stripe: 0,
				Share: quota.Share{Capacity: 8000, Refill: 40000}, Version: 12, ShareAge: 2 * time.Second,
			},
			{PolicyID: "login", WhyNot: `route is absent; the policy wants "POST /auth/login"`, Scope: quota.Regional},
		}}, nil
	}})
	status, answer := s.post(t, explain, `{"attributes":{"plan":"free"}}`)
	require.Equal(t, 200, status)
	assert.Equal(t, `{"allowed":true,"policies":[{"policyId":"api-free","matched":true,"decision":{"policyId":"api-free",`+
		`"allowed":true,"limit":"20","remaining":"19","resetAfter":"0.600s","source":"STORE"},"scope":"global",`+
		`"bucketKey":"rl:{0}:api-free:k:00","stripe":0,"share":{"capacityMillitokens":"8000","refillMillitokens":"40000"},`+
		`"shareVersion":"12","shareAge":"2s"},{"policyId":"login","matched":false,`+
		`"whyNot":"route is absent; the policy wants \"POST /auth/login\"","scope":"regional"}],"revision":"3"}`, answer)
}

func TestRefund(t *testing.T) {
	var got quota.RefundRequest
	s := serve(t, &fakeLimiter{refund: func(_ context.Context, r quota.RefundRequest) ([]string, error) {
		got = r
		return []string{"api-free"}, nil
	}})
	status, answer := s.post(t, refund, `{"attributes":{"plan":"free"},"amount":3,"policies":["api-free"]}`)
	require.Equal(t, 200, status)
	assert.Equal(t, `{"policies":["api-free"]}`, answer)
	assert.Equal(t, quota.RefundRequest{
		Attributes: map[string]string{"plan": "free"}, Amount: 3 * quota.Token, Policies: []string{"api-free"},
	}, got)
	for _, amount := range []string{"0", "-5", "4611686018427387904"} {
		status, answer = s.post(t, refund, `{"amount":"`+amount+`"}`)
		assert.Equal(t, 400, status)
		assert.Contains(t, answer, "amount: "+amount)
	}
}
