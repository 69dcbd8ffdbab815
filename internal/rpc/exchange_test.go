package rpc_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// same compares what went in and what came out, every field of it.
func same(t *rapid.T, in, out any) {
	if diff := cmp.Diff(in, out, cmpopts.EquateEmpty(), cmpopts.EquateNaNs()); diff != "" {
		t.Fatalf("lost on the wire (-in +out):\n%s", diff)
	}
}

// anyKey may hold any bytes, unlike rapid's strings, which are valid UTF-8.
func anyKey(t *rapid.T) string {
	return string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "key"))
}

// rapid.Make fills every field by reflection, so a field that is added to these
// types and forgotten here fails the test.

func TestReportRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.Make[quota.Report]().Draw(t, "report")
		for i := range in.Quotas {
			in.Quotas[i].ID.Key = anyKey(t)
		}
		out, err := rpc.ReportOverTheWire(in)
		if err != nil {
			t.Fatal(err)
		}
		same(t, in, out)
	})
}

func TestInstructionsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.Make[quota.Instructions]().Draw(t, "instructions")
		for i := range in.Grants {
			in.Grants[i].ID.Key = anyKey(t)
			in.Grants[i].Algorithm %= quota.Concurrency + 1
		}
		out, unknown, err := rpc.InstructionsOverTheWire(in)
		if err != nil || unknown != 0 {
			t.Fatal(unknown, err)
		}
		same(t, in, out)
	})
}

func TestDecisionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := []quota.Decision{travelling(rapid.Make[quota.Decision]().Draw(t, "decision"))}
		out, err := rpc.DecisionsOverTheWire(in)
		if err != nil {
			t.Fatal(err)
		}
		same(t, in, out)
	})
}

// travelling is d as far as the API says it.
func travelling(d quota.Decision) quota.Decision {
	d.Limits = quota.Limit{}
	d.Source %= quota.SourceFallback + 1
	d.Reason %= quota.ReasonMissingKey + 1
	if d.Unlimited {
		d.Limit, d.Remaining = 0, 0
	}
	return d
}

func TestExplanationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.Make[quota.Explanation]().Draw(t, "explanation")
		for i := range in.Policies {
			p := &in.Policies[i]
			p.Decision = travelling(p.Decision)
			p.Scope %= quota.Regional + 1
			p.Stripe = int(uint16(p.Stripe))
			if p.Bucket == "" {
				p.Stripe = 0
			}
			if p.Version == 0 {
				p.Share, p.ShareAge, p.Leased = quota.Share{}, 0, false
			}
			if !p.Leased {
				p.Permanent, p.LeaseLeft = quota.Share{}, 0
			}
			if !p.Matched || p.WhyNot != "" {
				*p = quota.PolicyExplanation{PolicyID: p.PolicyID, Matched: p.Matched, WhyNot: p.WhyNot, Scope: p.Scope}
			}
		}
		out, err := rpc.ExplanationOverTheWire(in)
		if err != nil {
			t.Fatal(err)
		}
		same(t, in, out)
	})
}

func regionServer(t *testing.T, f fakeRegions) (*testServer, *rpc.RegionClient) {
	t.Helper()
	s := serve(t, nil, func(c *rpc.ServerConfig) { c.Limiter, c.Regions = nil, f })
	// Long enough for the largest message under the race detector.
	client, err := rpc.NewRegionClient(rpc.ClientConfig{URL: s.url, Timeout: 30 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return s, client
}

func TestRegionClient(t *testing.T) {
	limit := quota.Limit{Capacity: 1000, Refill: 2000, Period: time.Minute}
	in := quota.Report{
		Region: "us-east", Gen: "g1", Epoch: 3, SentAt: 17, Revision: 9, Full: true,
		Quotas: []quota.QuotaReport{{
			ID: quota.ID{Policy: "p", Key: "00000000000000ff:t:~0123456789abcdef:p"}, Version: 4, Share: limit.Share(), Period: time.Minute,
			Demand: 1.5, Total: 2.5, Admitted: 0.5, Drained: true, Hold: 5, Surrendered: 6, Urgent: true,
		}},
	}
	want := quota.Instructions{
		Epoch: 3, Gen: "g1", Fresh: true, Full: true, NextReport: time.Second,
		Grants: []quota.Grant{{
			ID: quota.ID{Policy: "p", Key: "\xff\x00"}, Version: 5, Share: limit.Share(), Permanent: limit.Share(),
			Gift: 7, Algorithm: quota.SlidingLog, Limit: limit, Floor: limit.Share(), Drop: true,
		}},
	}
	var got quota.Report
	_, client := regionServer(t, func(_ context.Context, r quota.Report) (quota.Instructions, error) {
		got = r
		return want, nil
	})
	instructions, err := client.Report(t.Context(), in)
	require.NoError(t, err)
	assert.Equal(t, in, got)
	assert.Equal(t, want, instructions)
}

// The largest report that an agent makes passes, though it is larger than what
// LimiterService takes: forty thousand lines of keys, of the longest names and numbers.
func TestRegionClientLargeReport(t *testing.T) {
	n := 0
	_, client := regionServer(t, func(_ context.Context, r quota.Report) (quota.Instructions, error) {
		n = len(r.Quotas)
		return quota.Instructions{}, nil
	})
	r := quota.Report{Region: "us-east", Full: true, Quotas: make([]quota.QuotaReport, 40_000)}
	policy, tenant := strings.Repeat("p", quota.MaxPolicyID), strings.Repeat("t", 32)
	most := quota.Share{Capacity: quota.MaxTokens, Refill: quota.MaxTokens}
	for i := range r.Quotas {
		r.Quotas[i] = quota.QuotaReport{
			ID:      quota.ID{Policy: policy, Key: fmt.Sprintf("%016x:t:%s:%s:k:%016x", i, tenant, policy, i)},
			Version: math.MaxInt64, Share: most, Period: 365*24*time.Hour - 1, Demand: 1, Total: 1, Admitted: 1,
			Hold: quota.MaxTokens, Surrendered: quota.MaxTokens, Urgent: true,
		}
		if n := len(r.Quotas[i].ID.Key); n != quota.MaxTrackedKey {
			t.Fatalf("a key of %d bytes, not the longest", n)
		}
	}
	_, err := client.Report(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, 40_000, n)
}

// Case 85: numbers that no region can mean are refused.
func TestReportValidation(t *testing.T) {
	s, client := regionServer(t, func(context.Context, quota.Report) (quota.Instructions, error) {
		t.Error("reached the coordinator")
		return quota.Instructions{}, nil
	})
	base := func(change func(*quota.QuotaReport)) quota.Report {
		q := quota.QuotaReport{ID: quota.ID{Policy: "p"}}
		change(&q)
		return quota.Report{Region: "us-east", Quotas: []quota.QuotaReport{q}}
	}
	for field, r := range map[string]quota.Report{
		"region: ":                      {},
		"epoch: -1":                     {Region: "r", Epoch: -1},
		"quotas[0].id.policy":           base(func(q *quota.QuotaReport) { q.ID.Policy = "" }),
		"quotas[0].id.key":              base(func(q *quota.QuotaReport) { q.ID.Key = "00000000000000ff:other" }),
		"quotas[0].version":             base(func(q *quota.QuotaReport) { q.Version = -1 }),
		"quotas[0].share.capacity":      base(func(q *quota.QuotaReport) { q.Share.Capacity = -1 }),
		"quotas[0].share.refill":        base(func(q *quota.QuotaReport) { q.Share.Refill = 1 << 62 }),
		"quotas[0].hold":                base(func(q *quota.QuotaReport) { q.Hold = -1 }),
		"quotas[0].surrendered":         base(func(q *quota.QuotaReport) { q.Surrendered = -1 }),
		"quotas[0].demand_per_second":   base(func(q *quota.QuotaReport) { q.Demand = math.NaN() }),
		"quotas[0].total_per_second":    base(func(q *quota.QuotaReport) { q.Total = math.Inf(1) }),
		"quotas[0].admitted_per_second": base(func(q *quota.QuotaReport) { q.Admitted = -5 }),
		"quotas[0].period":              base(func(q *quota.QuotaReport) { q.Period = -1 }),
	} {
		_, err := client.Report(t.Context(), r)
		require.ErrorIs(t, err, quota.ErrInvalid, field)
		assert.ErrorContains(t, err, field)
	}
	status, body := s.post(t, report, `{"region":"r","quotas":[{"id":{"policy":"p"},"demandPerSecond":"NaN"}]}`)
	assert.Equal(t, 400, status)
	assert.Contains(t, body, "demand_per_second: NaN is outside")
}
