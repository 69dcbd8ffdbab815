package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// mapping is the error table as callers see it.
var mapping = []struct {
	sentinel error
	http     int
	connect  string
	grpc     codes.Code
	sent     bool // the text goes out
}{
	{quota.ErrInvalid, 400, "invalid_argument", codes.InvalidArgument, true},
	{quota.ErrNotFound, 404, "not_found", codes.NotFound, true},
	{quota.ErrConflict, 409, "aborted", codes.Aborted, true},
	{quota.ErrFenced, 400, "failed_precondition", codes.FailedPrecondition, false},
	{quota.ErrOverloaded, 429, "resource_exhausted", codes.ResourceExhausted, false},
	{quota.ErrUninitialised, 503, "unavailable", codes.Unavailable, false},
	{quota.ErrUnavailable, 503, "unavailable", codes.Unavailable, false},
	{context.DeadlineExceeded, 504, "deadline_exceeded", codes.DeadlineExceeded, false},
	{context.Canceled, 499, "canceled", codes.Canceled, false},
	{errors.New("secret 10.0.0.1"), 500, "internal", codes.Internal, false},
}

func TestErrorTable(t *testing.T) {
	var fail error
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		return quota.Result{}, fail
	}})
	conn := s.grpcConn(t)
	client, err := rpc.NewClient(rpc.ClientConfig{URL: s.url})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	for _, m := range mapping {
		t.Run(m.sentinel.Error(), func(t *testing.T) {
			fail = fmt.Errorf("asking 10.0.0.1: %w", m.sentinel)
			code, body := s.post(t, check, `{}`)
			assert.Equal(t, m.http, code)
			assert.Contains(t, body, `"code":"`+m.connect+`"`)
			assert.Equal(t, m.sent, strings.Contains(body, "10.0.0.1"), body)

			err := conn.Invoke(t.Context(), check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{})
			assert.Equal(t, m.grpc, status.Code(err))

			_, err = client.Check(t.Context(), quota.Request{})
			require.Error(t, err)
			want := m.sentinel
			if m.grpc == codes.Canceled {
				// Who still waits for the answer has not cancelled anything: it was not served.
				want = quota.ErrUnavailable
			}
			if m.grpc != codes.Internal {
				assert.ErrorIs(t, err, want, "the client recovers the sentinel")
			}
		})
	}
}

func TestInternalErrorsHideBehindAnID(t *testing.T) {
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		return quota.Result{}, errors.New("password hunter2 refused")
	}})
	_, body := s.post(t, check, `{}`)
	assert.NotContains(t, body, "hunter2")
	id := regexp.MustCompile(`internal error ([0-9a-f]{16})`).FindStringSubmatch(body)
	require.Len(t, id, 2, body)
	assert.Contains(t, s.log.String(), id[1])
	assert.Contains(t, s.log.String(), "hunter2")
}

func TestOverloadSaysWhenToComeBack(t *testing.T) {
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		return quota.Result{}, quota.ErrOverloaded
	}})
	r, err := s.do(http.MethodPost, check, `{}`)
	require.NoError(t, err)
	assert.Equal(t, "1", r.header.Get("Retry-After"))

	err = s.grpcConn(t).Invoke(t.Context(), check, &weirv1.CheckRequest{}, &weirv1.CheckResponse{})
	var retry *errdetails.RetryInfo
	var info *errdetails.ErrorInfo
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.ErrorInfo:
			info = d
		}
	}
	assert.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
	assert.Equal(t, "OVERLOADED", info.GetReason())
}

// Cases 82 and 85, and the bounds of a request: the field and the remedy are named.
func TestInvalidRequests(t *testing.T) {
	s := serve(t, &fakeLimiter{})
	attributes := func(n int) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = fmt.Sprintf(`"a%d":"v"`, i)
		}
		return `{"attributes":{` + strings.Join(parts, ",") + `}}`
	}
	for _, tc := range []struct{ name, body, want string }{
		{"negative cost", `{"cost":-5}`, "cost: -5 is negative; a cost is 0 or more, use Refund to give tokens back"},
		{"cost 2^62", `{"cost":"4611686018427387904"}`, "cost: 4611686018427387904 is more than any limit can hold; use at most 1099511627776"},
		{"cost 2^63", `{"cost":"9223372036854775808"}`, "cost"},
		{"cost 2^64-1", `{"cost":18446744073709551615}`, "cost"},
		{"cost NaN", `{"cost":"NaN"}`, "cost"},
		{"cost infinite", `{"cost":"Infinity"}`, "cost"},
		{"cost 1e400", `{"cost":1e400}`, "cost"},
		{"cost with a fraction", `{"cost":1.5}`, "cost"},
		{"attributes", attributes(65), "attributes: 65 of them; send at most 64"},
		{"name missing", `{"attributes":{"":"x"}}`, "attributes: a name is empty"},
		{"name long", `{"attributes":{"` + strings.Repeat("n", 129) + `":"x"}}`, "has 129 bytes; use at most 128"},
		{"value long", `{"attributes":{"ip":"` + strings.Repeat("v", 4097) + `"}}`, "4097 bytes long; use at most 4096, or send a hash of it"},
		{"request id", `{"requestId":"` + strings.Repeat("r", 256) + `"}`, "request_id: 256 bytes long; use at most 255"},
		{"policies", `{"policies":["a",""]}`, "policies[1]: not a policy id"},
		{"many policies", `{"policies":["` + strings.Repeat(`a","`, 64) + `a"]}`, "policies: 65 of them; name at most 64"},
		{"unknown field", `{"attribs":{"plan":"free"}}`, `unknown field \"attribs\"`},
		{"unknown enum", `{"headerOptions":{"profile":"DRAFT_10"}}`, "DRAFT_10"},
		{"malformed", `{"cost":`, "unexpected"},
		{"no object", `[]`, "unexpected token ["},
		{"empty body", ``, "send a JSON object"},
		{"bad UTF-8", "{\"attributes\":{\"a\":\"\xff\"}}", "UTF-8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body := s.post(t, check, tc.body)
			assert.Equal(t, 400, code)
			assert.Contains(t, body, `"code":"invalid_argument"`)
			assert.Contains(t, strings.ReplaceAll(body, "\u00a0", " "), tc.want)
		})
	}
	ok, _ := s.post(t, check, attributes(64))
	assert.Equal(t, 200, ok)
}

func TestInvalidRequestsCarryFieldViolations(t *testing.T) {
	s := serve(t, &fakeLimiter{})
	err := s.grpcConn(t).Invoke(t.Context(), check, &weirv1.CheckRequest{
		Cost: proto.Int64(-1), RequestId: strings.Repeat("r", 300),
		Attributes: map[string]string{"secret": strings.Repeat("hunter2", 1000)},
	}, &weirv1.CheckResponse{})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.NotContains(t, err.Error(), "hunter2", "a value may be a secret")
	fields := map[string]bool{}
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields[v.GetField()] = true
			}
		}
	}
	assert.Equal(t, map[string]bool{"cost": true, "request_id": true, `attributes["secret"]`: true}, fields)
}

// The number 2^64-1 as a binary int64 is -1; 2^63 is the most negative one.
func TestBinaryCostOverflows(t *testing.T) {
	s := serve(t, &fakeLimiter{})
	conn := s.grpcConn(t)
	for _, raw := range [][]byte{
		{0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		{0x10, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},
	} {
		m := &weirv1.CheckRequest{}
		require.NoError(t, proto.Unmarshal(raw, m))
		err := conn.Invoke(t.Context(), check, m, &weirv1.CheckResponse{})
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, "is negative")
	}
}

func TestPanicIsInternalAndTheServerLives(t *testing.T) {
	boom := true
	s := serve(t, &fakeLimiter{check: func(context.Context, quota.Request) (quota.Result, error) {
		if boom {
			panic("hunter2")
		}
		return quota.Result{Allowed: true}, nil
	}})
	code, body := s.post(t, check, `{}`)
	assert.Equal(t, 500, code)
	assert.NotContains(t, body, "hunter2")
	assert.Contains(t, s.log.String(), "hunter2")
	boom = false
	code, _ = s.post(t, check, `{}`)
	assert.Equal(t, 200, code)
	n, err := testutil.GatherAndCount(s.registry, "weir_rpc_panics_total")
	require.NoError(t, err)
	assert.Equal(t, 1, n)
}

func TestOversizedBody(t *testing.T) {
	s := serve(t, &fakeLimiter{})
	big := `{"requestId":"` + strings.Repeat("r", 1<<20) + `"}`
	code, body := s.post(t, check, big)
	assert.Equal(t, 429, code)
	assert.Contains(t, body, `"code":"resource_exhausted"`)
	assert.Contains(t, s.get(t, "/metrics").body, "weir_rpc_rejected_requests_total 1")

	err := s.grpcConn(t).Invoke(t.Context(), check, &weirv1.CheckRequest{RequestId: big}, &weirv1.CheckResponse{})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestBadUTF8InBinary(t *testing.T) {
	s := serve(t, &fakeLimiter{})
	// attributes: { "a": 0xff }
	raw := "\x0a\x06\x0a\x01a\x12\x01\xff"
	r, err := s.do(http.MethodPost, check, raw, "Content-Type", "application/proto")
	require.NoError(t, err)
	assert.Equal(t, 400, r.status)
}
