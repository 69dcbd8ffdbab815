package rpc_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

// fakeStatus is a coordinator that leads or does not.
type fakeStatus struct {
	name   string
	leads  bool
	splits []string
	asked  rpc.SplitSelection
}

func (f *fakeStatus) Status() *weirv1.GetStatusResponse {
	return &weirv1.GetStatusResponse{AnsweredBy: f.name, Complete: f.leads, Leader: &weirv1.Leadership{Name: "a"}}
}

func (f *fakeStatus) Splits(q rpc.SplitSelection) (page []*weirv1.QuotaSplit, more bool, err error) {
	f.asked = q
	if !f.leads {
		return nil, false, quota.ErrUnavailable
	}
	for _, id := range f.splits {
		if id <= q.After.Policy {
			continue
		}
		if len(page) == q.Limit {
			return page, true, nil
		}
		page = append(page, &weirv1.QuotaSplit{Id: &weirv1.QuotaID{Policy: id}})
	}
	return page, false, nil
}

// fakeLedger writes down what it is told.
type fakeLedger struct{ said []string }

func (f *fakeLedger) Distrust(_ context.Context, by policystore.Edit) error {
	f.said = append(f.said, "distrust by "+by.Author+": "+by.Message)
	return nil
}

func (f *fakeLedger) Trust(_ context.Context, by policystore.Edit, force bool) error {
	if !force {
		return quota.ErrInvalid
	}
	f.said = append(f.said, "trust by "+by.Author+": "+by.Message)
	return nil
}

// member is a coordinator of several.
type member struct {
	*testServer
	source *fakeStatus
	ledger *fakeLedger
}

const statusAdmin = rpc.Secret("weir-test-administrator-secret-of-some-length")

func newMember(t *testing.T, name string, leads bool, leader func() string, tokens policystore.Tokens) member {
	t.Helper()
	m := member{source: &fakeStatus{name: name, leads: leads, splits: []string{"p1", "p2", "p3"}}, ledger: &fakeLedger{}}
	m.testServer = serve(t, nil, func(c *rpc.ServerConfig) {
		c.Status = &rpc.StatusConfig{Name: name, Source: m.source, Ledger: m.ledger, Leader: leader}
		if tokens != nil {
			c.Auth = &rpc.AuthConfig{Tokens: tokens, Bootstrap: statusAdmin}
		}
	})
	return m
}

func (m member) client(t *testing.T, token rpc.Secret) *rpc.StatusClient {
	t.Helper()
	c, err := rpc.NewStatusClient(rpc.ClientConfig{URL: m.url, Token: token, Timeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A coordinator that does not lead answers with what the leader knows, in the name of
// the caller: with the caller's token.
func TestFollowerAsksTheLeader(t *testing.T) {
	tokens := memory.New(time.Now)
	secret := rpc.NewSecret()
	require.NoError(t, tokens.AddToken(t.Context(), policystore.Edit{Author: "t"},
		policystore.Token{ID: "looks", Role: policystore.RoleViewer}, policystore.HashToken(string(secret))))
	leader := newMember(t, "a", true, func() string { return "" }, tokens)
	follower := newMember(t, "b", false, func() string { return leader.url }, tokens)

	c := follower.client(t, secret)
	o, err := c.Status(t.Context())
	require.NoError(t, err)
	require.True(t, o.Complete)
	require.Equal(t, "a", o.AnsweredBy)
	page, err := c.Splits(t.Context(), rpc.SplitFilter{Policy: "p", Region: "eu-west", Any: []string{"small", "pending"}}, rpc.Query{Size: 2, Search: "x"})
	require.NoError(t, err)
	require.Len(t, page.Items, 2)
	require.Equal(t, rpc.SplitSelection{
		Policy: "p", Search: "x", Region: "eu-west", Limit: 2,
		Any: []weirv1.SplitCondition{weirv1.SplitCondition_SPLIT_CONDITION_SMALL, weirv1.SplitCondition_SPLIT_CONDITION_PENDING},
	}, leader.source.asked)
	page, err = c.Splits(t.Context(), rpc.SplitFilter{}, rpc.Query{Size: 2, Page: page.Next})
	require.NoError(t, err)
	require.Len(t, page.Items, 1)
	require.Equal(t, "p3", page.Items[0].ID.Policy)
	require.Empty(t, page.Next)

	// What needs more than a viewer is refused before anything is passed on.
	require.ErrorIs(t, c.DistrustLedger(t.Context(), policystore.Edit{Message: "m"}), quota.ErrForbidden)
	admin := follower.client(t, statusAdmin)
	require.NoError(t, admin.DistrustLedger(t.Context(), policystore.Edit{Message: "m"}))
	require.NoError(t, admin.TrustLedger(t.Context(), policystore.Edit{Message: "m"}, true))
	require.Equal(t, []string{"distrust by bootstrap: m", "trust by bootstrap: m"}, leader.ledger.said)
	require.Empty(t, follower.ledger.said)
	require.ErrorIs(t, admin.TrustLedger(t.Context(), policystore.Edit{Message: "m"}, false), quota.ErrInvalid)
	_, err = follower.client(t, "").Status(t.Context())
	require.ErrorIs(t, err, quota.ErrUnauthenticated)
}

// Without a leader that answers, a coordinator says what it knows, and how to go on.
func TestFollowerWithoutItsLeader(t *testing.T) {
	gone := "http://127.0.0.1:1"
	for name, tc := range map[string]struct {
		leader func() string
		want   string
	}{
		"does not answer": {func() string { return gone }, "the leader, " + gone + ", did not answer"},
		"unknown":         {func() string { return "" }, "cannot tell who leads"},
		"only one":        {nil, "is the only one"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t, "b", false, tc.leader, nil)
			c := m.client(t, "")
			o, err := c.Status(t.Context())
			require.NoError(t, err)
			require.False(t, o.Complete)
			require.Equal(t, "b", o.AnsweredBy)
			require.Equal(t, "a", o.LeaderName)
			require.Contains(t, o.Problem, tc.want)
			_, err = c.Splits(t.Context(), rpc.SplitFilter{}, rpc.Query{})
			require.ErrorIs(t, err, quota.ErrUnavailable)
			require.ErrorContains(t, err, tc.want)

			// The database can be written to without a leader; only the leader knows whom it waits for.
			require.ErrorIs(t, c.TrustLedger(t.Context(), policystore.Edit{Message: "m"}, false), quota.ErrUnavailable)
			require.NoError(t, c.TrustLedger(t.Context(), policystore.Edit{Message: "m"}, true))
			require.NoError(t, c.DistrustLedger(t.Context(), policystore.Edit{Message: "m", Author: "ann"}))
			require.Equal(t, []string{"trust by anonymous: m", "distrust by ann: m"}, m.ledger.said)
		})
	}
}

// Two coordinators that take each other for the leader do not send a call in circles.
func TestForwardedOnce(t *testing.T) {
	var second member
	first := newMember(t, "a", false, func() string { return second.url }, nil)
	second = newMember(t, "b", false, func() string { return first.url }, nil)
	o, err := first.client(t, "").Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, "b", o.AnsweredBy, "as far as the other one knows")
	require.Contains(t, o.Problem, "though a takes it for the leader")
	_, err = first.client(t, "").Splits(t.Context(), rpc.SplitFilter{}, rpc.Query{})
	require.ErrorIs(t, err, quota.ErrUnavailable)
}

func TestSplitsAreValidated(t *testing.T) {
	m := newMember(t, "a", true, nil, nil)
	for body, want := range map[string]string{
		`{"pageSize":-1}`:       "page_size",
		`{"pageToken":"*"}`:     "page_token",
		`{"pageToken":"AAAA"}`:  "page_token",
		`{"policy":"a b"}`:      "policy",
		`{"region":"a/b"}`:      "region",
		`{"any":[0]}`:           "any",
		`{"any":[77]}`:          "any",
		`{"search":"\u0000"}`:   "search",
		`{"unknown":"\u0000"}`:  "unknown",
		`{"any":["SOMETHING"]}`: "SOMETHING",
	} {
		status, answer := m.post(t, "/weir.v1.StatusService/ListSplits", body)
		require.Equal(t, http.StatusBadRequest, status, body)
		require.Contains(t, answer, want)
	}
}
