package main

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

const onePolicy = `policies: [{ id: mine, key: [ip], algorithm: sliding-log, limit: 1, window: 1s, onStoreFailure: open }]`

// interfering serves policies, and calls before ahead of each change that is to be committed.
func interfering(t *testing.T, store *memory.Store, before func()) string {
	t.Helper()
	s, err := rpc.NewServer(rpc.ServerConfig{
		Registry: prometheus.NewRegistry(),
		Policies: &rpc.PolicyConfig{Store: store, Parse: app.ParsePolicies, Marshal: app.MarshalPolicies},
	})
	require.NoError(t, err)
	var applies atomic.Int64
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A whole set is looked at and then applied, so that each second call commits.
		if strings.HasSuffix(r.URL.Path, "/Apply") && applies.Add(1)%2 == 0 {
			before()
		}
		s.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h.URL
}

func addPolicy(t *testing.T, store *memory.Store, id string) {
	t.Helper()
	policies, err := app.ParsePolicies([]byte(strings.Replace(onePolicy, "mine", id, 1)))
	require.NoError(t, err)
	_, err = store.Apply(t.Context(), policystore.Change{Edit: policystore.Edit{Author: "bob"}, Policies: policies})
	require.NoError(t, err)
}

// A whole set that was looked at when it removed nothing must not remove what
// somebody added a moment later.
func TestApplyLooksAgainWhenSomebodyWasFaster(t *testing.T) {
	t.Parallel()
	store := memory.New(time.Now)
	h := newHome(t, "", nil)
	h.env["WEIR_COORDINATOR"] = interfering(t, store, func() { addPolicy(t, store, "theirs") })
	code, _, stderr := h.weir(onePolicy, "policy", "apply", "-f", "-")
	require.Equal(t, exitUsage, code, stderr)
	require.Contains(t, stderr, "would be removed (theirs)")
	head, err := store.Current(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, head.Number)
	require.NotNil(t, head.Policy("theirs"))
}

func TestApplyGivesUpWhenOthersAreAlwaysFaster(t *testing.T) {
	t.Parallel()
	store := memory.New(time.Now)
	h := newHome(t, "", nil)
	limit := 0
	h.env["WEIR_COORDINATOR"] = interfering(t, store, func() {
		// Always the same policy, so that nothing would be removed.
		limit++
		policies, err := app.ParsePolicies([]byte(onePolicy))
		require.NoError(t, err)
		policies[0].Limit.Capacity = quota.Tokens(limit+1) * quota.Token
		_, err = store.Apply(t.Context(), policystore.Change{Edit: policystore.Edit{Author: "bob"}, Policies: policies})
		require.NoError(t, err)
	})
	code, _, stderr := h.weir(onePolicy, "policy", "apply", "-f", "-")
	require.Equal(t, exitConflict, code, stderr)
	require.Equal(t, maxOvertaken+1, limit)
	require.Contains(t, stderr, "by bob")
}

func TestConflictTextCountsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	text := conflictText(&rpc.ConflictError{Expected: 1, Current: 14, Since: []rpc.Revision{
		{Revision: policystore.Revision{Number: 14, Author: "bob\x1b[31m", Message: "two\nlines"}, Text: "changed login"},
	}})
	require.Contains(t, text, "  revision 14 by bob\ufffd[31m at never: changed login (two lines)\n  and 12 more before\n")
	require.NotContains(t, text, "\x1b")
}

func TestCellIsOneSafeLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "-", cell(" \n\t"))
	require.Equal(t, "a b", cell("a\r\n\tb"))
	require.Equal(t, strings.Repeat("é", maxCell)+"...", cell(strings.Repeat("é", maxCell+1)))
	rapid.Check(t, func(t *rapid.T) {
		got := cell(rapid.String().Draw(t, "text"))
		if got == "" || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x9b }) {
			t.Fatalf("%q", got)
		}
	})
}

// Numbers of the command line mean what they mean in a document.
func TestParseTokens(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quota.Tokens{
		"0": 0, "1": quota.Token, "1000.5": 1000500, "0.001": 1, "1.500": 1500, "1099511627776": quota.MaxTokens,
	} {
		got, err := parseTokens("--capacity", text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", ".", "1.", ".5", "-1", "+1", "1e3", "0x1", "1.0001", "1..2", "1.2.3", " 1", "NaN", "Inf", "٣",
		"1099511627776.001", "1099511627777", "9223372036854775807", strings.Repeat("9", 40),
	} {
		_, err := parseTokens("--capacity", text)
		require.Error(t, err, text)
		code, _ := outcome(err, "")
		require.Equal(t, exitUsage, code)
	}
	rapid.Check(t, func(t *rapid.T) {
		want := quota.Tokens(rapid.Int64Range(0, int64(quota.MaxTokens)).Draw(t, "tokens"))
		got, err := parseTokens("--refill", want.String())
		if err != nil || got != want {
			t.Fatalf("%s: %d, %v", want, got, err)
		}
	})
}

func TestParseExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "24h": now.Add(24 * time.Hour), "7d": now.Add(7 * quota.Day), "1h30m": now.Add(90 * time.Minute),
		"2030-01-31T12:00:01Z": now.Add(time.Second), "2030-01-31T14:00:00+01:00": now.Add(time.Hour),
	} {
		got, err := expiry(text, now)
		require.NoError(t, err, text)
		require.True(t, want.Equal(got), "%s: %s", text, got)
	}
	for _, text := range []string{"0", "0s", "-1h", "soon", "2030-01-31", "2030-01-31T12:00:00Z", "1mo"} {
		_, err := expiry(text, now)
		require.Error(t, err, text)
		code, _ := outcome(err, "")
		require.Equal(t, exitUsage, code)
	}
	far, err := expiry(quota.FormatDuration(math.MaxInt64/1000*1000), now)
	require.NoError(t, err)
	require.True(t, far.After(now), "a long time from now is not past")
}
