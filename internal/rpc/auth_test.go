package rpc_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/memory"
	"github.com/weirhq/weir/quota"
)

const bootstrap = rpc.Secret("bootstrap-0123456789-0123456789-0123456789")

// clock is a clock that stands still until told otherwise.
type clock struct{ offset atomic.Int64 }

func (c *clock) Now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) Advance(d time.Duration) { c.offset.Add(int64(d)) }

// authBundle is a policyBundle with authentication, whose client is the
// bootstrap administrator, and a token of each role.
type authBundle struct {
	*policyBundle
	clock  *clock
	tokens map[policystore.Role]rpc.Secret
	admin  *rpc.PolicyClient
}

func serveAuth(tb testing.TB, change ...func(*rpc.ServerConfig)) *authBundle {
	tb.Helper()
	b := &authBundle{clock: &clock{}, tokens: make(map[policystore.Role]rpc.Secret)}
	store := memory.New(b.clock.Now)
	b.policyBundle = servePolicies(tb, append([]func(*rpc.ServerConfig){func(c *rpc.ServerConfig) {
		c.Policies.Store = store
		c.Auth = &rpc.AuthConfig{Tokens: store, Bootstrap: bootstrap, Now: b.clock.Now}
		c.Limiter = &fakeLimiter{}
		c.Status = &rpc.StatusConfig{Source: &fakeStatus{leads: true}, Ledger: &fakeLedger{}}
		c.Regions = fakeRegions(func(context.Context, quota.Report) (quota.Instructions, error) { return quota.Instructions{}, nil })
	}}, change...)...)
	b.store = store
	b.admin = b.policyClient(tb, bootstrap)
	for _, role := range []policystore.Role{policystore.RoleViewer, policystore.RoleEditor, policystore.RoleAdmin, policystore.RoleRegion} {
		t := policystore.Token{ID: "t-" + string(role), Role: role}
		if role == policystore.RoleRegion {
			t.Region = "us-east"
		}
		secret, kept, err := b.admin.CreateToken(context.Background(), t, "for tests")
		require.NoError(tb, err)
		require.Equal(tb, rpc.BootstrapID, kept.Author)
		b.tokens[role] = secret
	}
	return b
}

// as returns a client with the token of a role.
func (b *authBundle) as(tb testing.TB, role policystore.Role) *rpc.PolicyClient {
	tb.Helper()
	return b.policyClient(tb, b.tokens[role])
}

// TestRoleMatrix calls every procedure with every role. A procedure without a
// row here, or without one in the table of access, fails.
func TestRoleMatrix(t *testing.T) {
	const (
		v = policystore.RoleViewer
		e = policystore.RoleEditor
		a = policystore.RoleAdmin
		r = policystore.RoleRegion
	)
	matrix := map[string][]policystore.Role{
		"LimiterService/Check": {v, e, a}, "LimiterService/CheckBatch": {v, e, a}, "LimiterService/Peek": {v, e, a},
		"LimiterService/Explain": {v, e, a}, "LimiterService/Refund": {v, e, a},
		"RegionService/Report": {a, r},
		"PolicyService/Apply":  {e, a}, "PolicyService/Delete": {e, a}, "PolicyService/Rollback": {e, a},
		"PolicyService/SetOverride": {e, a}, "PolicyService/SetOverrides": {e, a},
		"PolicyService/DeleteOverride": {e, a}, "PolicyService/DeleteOverrides": {e, a},
		"PolicyService/Validate": {v, e, a}, "PolicyService/Get": {v, e, a}, "PolicyService/List": {v, e, a},
		"PolicyService/GetRevision": {v, e, a}, "PolicyService/ListRevisions": {v, e, a}, "PolicyService/Diff": {v, e, a},
		"PolicyService/GetOverride": {v, e, a}, "PolicyService/ListOverrides": {v, e, a}, "PolicyService/ListAudit": {v, e, a},
		"PolicyService/WatchPolicies": {v, e, a, r}, "PolicyService/WhoAmI": {v, e, a, r},
		"StatusService/GetStatus": {v, e, a}, "StatusService/ListSplits": {v, e, a},
		"LedgerService/DistrustLedger": {a}, "LedgerService/TrustLedger": {a},
		"TokenService/CreateToken": {a}, "TokenService/ListTokens": {a}, "TokenService/RevokeToken": {a},
	}
	var served []string
	for _, file := range []protoreflect.FileDescriptor{
		weirv1.File_weir_v1_limiter_proto, weirv1.File_weir_v1_policy_proto, weirv1.File_weir_v1_region_proto,
		weirv1.File_weir_v1_status_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				served = append(served, string(service.Name())+"/"+string(service.Methods().Get(j).Name()))
			}
		}
	}
	table := rpc.AccessTable()
	for _, p := range served {
		require.Contains(t, matrix, p, "the new procedure has no row: say who may call it")
		require.Contains(t, table, "/weir.v1."+p)
	}
	require.Len(t, table, len(served))
	require.Len(t, matrix, len(served))

	b := serveAuth(t, func(c *rpc.ServerConfig) { c.Auth.Checks = true })
	for procedure, allowed := range matrix {
		for _, role := range []policystore.Role{v, e, a, r, "bootstrap", "none"} {
			var header []string
			switch role {
			case "bootstrap":
				header = []string{"Authorization", "Bearer " + string(bootstrap)}
			case "none":
			default:
				header = []string{"Authorization", "Bearer " + string(b.tokens[role])}
			}
			// A body that no procedure likes: those who may call are told so.
			body := `{"nonsense":1}`
			if streams(procedure) {
				body = "\x00\x00\x00\x00" + string(rune(len(body))) + body // in an envelope
			}
			reply, err := b.do(http.MethodPost, "/weir.v1."+procedure, body, append(header, "Content-Type", contentType(procedure))...)
			require.NoError(t, err)
			code := codeOf(t, procedure, reply)
			switch {
			case role == "none":
				assert.Equal(t, "unauthenticated", code, procedure)
			case role == "bootstrap", slices.Contains(allowed, role):
				assert.Equal(t, "invalid_argument", code, "%s as %s", procedure, role)
			default:
				assert.Equal(t, "permission_denied", code, "%s as %s", procedure, role)
			}
		}
	}
}

func streams(procedure string) bool { return strings.HasSuffix(procedure, "/WatchPolicies") }

func contentType(procedure string) string {
	if streams(procedure) {
		return "application/connect+json"
	}
	return "application/json"
}

// codeOf reads the code of an error, unary or at the end of a stream.
func codeOf(t *testing.T, procedure string, r reply) string {
	t.Helper()
	body := r.body
	if streams(procedure) {
		require.Equal(t, 200, r.status)
		body = body[5:] // the envelope of the last message
		var end struct {
			Error struct{ Code string }
		}
		require.NoError(t, json.Unmarshal([]byte(body), &end), "%q", body)
		return end.Error.Code
	}
	var e struct{ Code string }
	require.NoError(t, json.Unmarshal([]byte(body), &e), "%s: %q", procedure, body)
	return e.Code
}

func TestChecksAreOpenUnlessTheConfigurationSaysOtherwise(t *testing.T) {
	b := serveAuth(t)
	status, _ := b.post(t, check, `{}`)
	assert.Equal(t, 200, status)
	status, body := b.post(t, apply, `{}`)
	assert.Equal(t, 401, status)
	assert.Contains(t, body, "Authorization: Bearer TOKEN")
	r, err := b.do(http.MethodPost, apply, `{}`)
	require.NoError(t, err)
	assert.Equal(t, "Bearer", r.header.Get("Www-Authenticate"))
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		assert.Equal(t, 200, b.get(t, path).status, path)
	}

	strict := serveAuth(t, func(c *rpc.ServerConfig) { c.Auth.Checks = true })
	status, _ = strict.post(t, check, `{}`)
	assert.Equal(t, 401, status)
	client, err := rpc.NewClient(rpc.ClientConfig{URL: strict.url, Token: strict.tokens[policystore.RoleViewer]})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	_, err = client.Check(t.Context(), quota.Request{})
	require.NoError(t, err)
	conn := strict.grpcConn(t)
	err = conn.Invoke(t.Context(), check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{})
	assert.Equal(t, codes.Unauthenticated, grpcCode(err))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "bearer "+string(bootstrap))
	require.NoError(t, conn.Invoke(ctx, check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{}))
}

func grpcCode(err error) codes.Code { return status.Code(err) }

func TestAuthorIsTheToken(t *testing.T) {
	b := serveAuth(t)
	editor := b.as(t, policystore.RoleEditor)
	out, err := editor.Apply(t.Context(), rpc.Change{Edit: rpc.Edit{Author: "somebody else", Message: "m"}, Document: doc(map[string]int{"a": 1})})
	require.NoError(t, err)
	assert.Equal(t, "t-editor", out.Revision.Author)
	require.NoError(t, editor.SetOverrides(t.Context(), rpc.Edit{Author: "somebody else"}, override("a", 1, "k")))
	rows, err := editor.ListAudit(t.Context(), rpc.Query{Action: "set-overrides"})
	require.NoError(t, err)
	assert.Equal(t, "t-editor", rows.Items[0].Author)
	me, err := editor.WhoAmI(t.Context())
	require.NoError(t, err)
	assert.True(t, me.Authenticated)
	assert.Equal(t, "t-editor", me.ID)
	assert.Equal(t, policystore.RoleEditor, me.Role)
}

func TestRegionTokensSpeakForTheirRegionOnly(t *testing.T) {
	b := serveAuth(t)
	agent, err := rpc.NewRegionClient(rpc.ClientConfig{URL: b.url, Token: b.tokens[policystore.RoleRegion]})
	require.NoError(t, err)
	defer func() { require.NoError(t, agent.Close()) }()
	_, err = agent.Report(t.Context(), quota.Report{Region: "us-east", Gen: "g"})
	require.NoError(t, err)
	_, err = agent.Report(t.Context(), quota.Report{Region: "eu-west", Gen: "g"})
	require.ErrorIs(t, err, quota.ErrForbidden)
	own := b.as(t, policystore.RoleRegion)
	require.ErrorIs(t, own.Watch(t.Context(), "eu-west", nil, func(rpc.PolicyUpdate) error { return nil }), quota.ErrForbidden)
	n := watch(t, own, "us-east", nil)
	n.until(t, "the snapshot", func(n *node) bool { return n.set != nil })
}

func TestTokens(t *testing.T) {
	b := serveAuth(t)
	admin := b.as(t, policystore.RoleAdmin)
	expires := b.clock.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	secret, token, err := admin.CreateToken(t.Context(), policystore.Token{ID: "ci", Role: policystore.RoleEditor, Expires: expires}, "pipeline")
	require.NoError(t, err)
	assert.Regexp(t, `^weir_[A-Za-z0-9_-]{43}$`, string(secret))
	assert.Equal(t, "t-admin", token.Author)
	assert.Equal(t, expires, token.Expires)
	other, _, err := admin.CreateToken(t.Context(), policystore.Token{ID: "cd", Role: policystore.RoleViewer}, "")
	require.NoError(t, err)
	assert.NotEqual(t, secret, other)

	ci := b.policyClient(t, secret)
	me, err := ci.WhoAmI(t.Context())
	require.NoError(t, err)
	assert.Equal(t, expires, me.Expires)
	b.clock.Advance(time.Hour)
	_, err = ci.WhoAmI(t.Context())
	require.ErrorIs(t, err, quota.ErrUnauthenticated, "expired")

	cd := b.policyClient(t, other)
	_, err = cd.WhoAmI(t.Context())
	require.NoError(t, err)
	require.NoError(t, admin.RevokeToken(t.Context(), "cd", "done"))
	_, err = cd.WhoAmI(t.Context())
	require.ErrorIs(t, err, quota.ErrUnauthenticated, "revoked, and at once")
	require.ErrorIs(t, admin.RevokeToken(t.Context(), "cd", ""), quota.ErrNotFound)

	for name, bad := range map[string]policystore.Token{
		"no role":        {ID: "x"},
		"bootstrap's id": {ID: rpc.BootstrapID, Role: policystore.RoleViewer},
		"no region":      {ID: "x", Role: policystore.RoleRegion},
		"odd id":         {ID: "a b", Role: policystore.RoleViewer},
	} {
		_, _, err = admin.CreateToken(t.Context(), bad, "")
		require.ErrorIs(t, err, quota.ErrInvalid, name)
	}
	_, _, err = admin.CreateToken(t.Context(), policystore.Token{ID: "ci", Role: policystore.RoleViewer}, "")
	require.ErrorIs(t, err, quota.ErrConflict)
	list := all(t, rpc.Query{Size: 2}, func(q rpc.Query) (*rpc.Page[policystore.Token], error) { return admin.ListTokens(t.Context(), q) })
	var ids []string
	for _, t := range list {
		ids = append(ids, t.ID)
	}
	assert.Equal(t, []string{"cd", "ci", "t-admin", "t-editor", "t-region", "t-viewer"}, ids)
	assert.False(t, list[0].Revoked.IsZero())
	assert.Contains(t, b.get(t, "/metrics").body, `weir_policy_changes_total{action="create_token",result="committed"} 6`)
}

// While the store of tokens is away, whoever was known goes on, for a while.
func TestKnownTokensOutliveTheStore(t *testing.T) {
	store := &flaky{}
	b := serveAuth(t, func(c *rpc.ServerConfig) {
		store.Store, _ = c.Policies.Store.(*memory.Store)
		c.Auth.Tokens = store
	})
	known, stranger := b.as(t, policystore.RoleEditor), b.as(t, policystore.RoleViewer)
	_, err := known.WhoAmI(t.Context())
	require.NoError(t, err)
	store.away.Store(true)
	b.clock.Advance(10 * time.Minute)
	_, err = known.WhoAmI(t.Context())
	require.NoError(t, err)
	_, err = stranger.WhoAmI(t.Context())
	require.ErrorIs(t, err, quota.ErrUnavailable)
	_, err = b.admin.WhoAmI(t.Context())
	require.NoError(t, err, "the bootstrap administrator needs no store")
	b.clock.Advance(6 * time.Minute)
	_, err = known.WhoAmI(t.Context())
	require.ErrorIs(t, err, quota.ErrUnavailable)
	store.away.Store(false)
	_, err = known.WhoAmI(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2, counter(t, b, "unavailable"))
}

func TestRevocationEndsStreams(t *testing.T) {
	b := serveAuth(t)
	n := watch(t, b.as(t, policystore.RoleRegion), "us-east", nil)
	n.until(t, "the snapshot", func(n *node) bool { return n.set != nil })
	require.NoError(t, b.admin.RevokeToken(t.Context(), "t-region", "stolen"))
	<-n.done
	require.ErrorIs(t, n.err, quota.ErrUnauthenticated)
}

// A secret is in the answer to CreateToken and nowhere else.
func TestTokensAreNeverShown(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	b := serveAuth(t, func(c *rpc.ServerConfig) { c.TracerProvider = provider })
	guess := rpc.NewSecret()
	for _, token := range []rpc.Secret{bootstrap, b.tokens[policystore.RoleEditor], b.tokens[policystore.RoleViewer], guess, "weir_malformed-secret"} {
		c := b.policyClient(t, token)
		_, _ = c.WhoAmI(t.Context())
		_, _ = c.Apply(t.Context(), rpc.Change{Document: doc(map[string]int{"a": 1})})
		_, _ = c.Apply(t.Context(), rpc.Change{Document: []byte("x")})
		_ = c.Watch(t.Context(), "a b", nil, nil)
		_, _, _ = c.CreateToken(t.Context(), policystore.Token{ID: "t-admin", Role: policystore.RoleViewer}, "")
		_ = c.RevokeToken(t.Context(), "nobody", "")
	}
	rows, err := b.admin.ListAudit(t.Context(), rpc.Query{})
	require.NoError(t, err)
	list, err := b.admin.ListTokens(t.Context(), rpc.Query{})
	require.NoError(t, err)
	var shown strings.Builder
	shown.WriteString(b.log.String())
	for _, span := range recorder.Ended() {
		fmt.Fprintf(&shown, "%s %v %v %v\n", span.Name(), span.Attributes(), span.Events(), span.Status())
	}
	fmt.Fprintf(&shown, "%+v %+v %s\n", rows.Items, list.Items, b.get(t, "/metrics").body)
	config := rpc.ClientConfig{Token: guess}
	fmt.Fprintf(&shown, "%v %+v %#v %s\n", config, config, config, must(json.Marshal(config.Token)))
	require.NotEmpty(t, recorder.Ended())
	require.Contains(t, shown.String(), "a token was refused")
	for _, token := range []rpc.Secret{bootstrap, guess, b.tokens[policystore.RoleEditor], b.tokens[policystore.RoleRegion], "malformed-secret"} {
		assert.NotContains(t, shown.String(), string(token))
		hash := policystore.HashToken(string(token))
		assert.NotContains(t, shown.String(), hex.EncodeToString(hash[:]))
	}
}

// The comparison of secrets takes no notice of how far they agree.
func TestConstantTimeCompare(t *testing.T) {
	source, err := os.ReadFile("auth.go")
	require.NoError(t, err)
	assert.Contains(t, string(source), "subtle.ConstantTimeCompare(hash[:], a.bootstrap[:])")
	assert.NotRegexp(t, `(==|!=) *(string\()?[a-z.]*(secret|Bootstrap)\b`, string(source))
}

func TestThrottleIsPerAddressAndBounded(t *testing.T) {
	c := &clock{}
	throttle := rpc.NewThrottle(c.Now)
	for _, same := range [][2]string{
		{"192.0.2.1:1", "192.0.2.1:2"},
		{"192.0.2.2:1", "[::ffff:192.0.2.2]:2"},
		{"[2001:db8::1]:1", "[2001:db8::ffff:2]:2"},
		{"[fe80::1%eth0]:1", "[fe80::1%eth1]:1"},
		{"nonsense", "@"},
	} {
		for range 10 {
			require.True(t, throttle.Spend(same[0]))
		}
		require.False(t, throttle.Spend(same[1]), same[1])
	}
	require.True(t, throttle.Spend("[2001:db8:0:1::1]:1"))
	c.Advance(6 * time.Second)
	require.True(t, throttle.Spend("192.0.2.1:3"))
	require.False(t, throttle.Spend("192.0.2.1:3"))

	for i := range 30_000 {
		throttle.Spend(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
	}
	require.LessOrEqual(t, throttle.Len(), 10_100)
	c.Advance(2 * time.Minute)
	throttle.Spend("10.9.9.9:1")
	require.Less(t, throttle.Len(), 10)
}

func TestAuthConfig(t *testing.T) {
	for name, auth := range map[string]*rpc.AuthConfig{
		"no store":        {},
		"short bootstrap": {Tokens: memory.New(nil), Bootstrap: "admin"},
	} {
		_, err := rpc.NewServer(rpc.ServerConfig{Registry: prometheus.NewRegistry(), Auth: auth})
		require.ErrorIs(t, err, quota.ErrInvalid, name)
		assert.NotContains(t, err.Error(), "admin\"")
	}
	for name, policies := range map[string]*rpc.PolicyConfig{
		"empty":         {},
		"long instance": {Store: memory.New(nil), Parse: func([]byte) ([]*quota.Policy, error) { return nil, nil }, Marshal: func([]*quota.Policy) []byte { return nil }, Instance: strings.Repeat("x", 65)},
	} {
		_, err := rpc.NewServer(rpc.ServerConfig{Registry: prometheus.NewRegistry(), Policies: policies})
		require.ErrorIs(t, err, quota.ErrInvalid, name)
	}
}

func TestWithoutABootstrapSecretNobodyIsItsAdministrator(t *testing.T) {
	store := memory.New(nil)
	b := servePolicies(t, func(c *rpc.ServerConfig) { c.Auth = &rpc.AuthConfig{Tokens: store} })
	for _, header := range [][]string{nil, {"Authorization", "Bearer "}, {"Authorization", "Bearer bootstrap"}} {
		r, err := b.do(http.MethodPost, apply, `{}`, header...)
		require.NoError(t, err)
		assert.Equal(t, 401, r.status)
	}
}
