package rpc_test

import (
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// FuzzCheckRequest: whatever arrives, as binary or JSON, is refused as invalid
// or lies within the bounds that the engine relies on.
func FuzzCheckRequest(f *testing.F) {
	seed, err := proto.Marshal(&weirv1.CheckRequest{
		Attributes: map[string]string{"plan": "free", "apiKey": "ak_1"}, Cost: proto.Int64(3), RequestId: "r", Policies: []string{"p"},
	})
	require.NoError(f, err)
	f.Add(seed, false, "")
	f.Add([]byte{0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, false, "k")
	f.Add([]byte(`{"attributes":{"plan":"free"},"cost":"9223372036854775807","requestId":"r"}`), true, "")
	f.Add([]byte(`{"attributes":{"":"\ud800"},"cost":-1}`), true, "\xff")
	f.Fuzz(func(t *testing.T, data []byte, asJSON bool, key string) {
		m := &weirv1.CheckRequest{}
		decode := proto.Unmarshal
		if asJSON {
			decode = rpc.StrictJSON
		}
		if decode(data, m) != nil {
			return
		}
		r, err := rpc.ToRequest(m, key)
		if err != nil {
			if !errors.Is(err, quota.ErrInvalid) {
				t.Fatalf("not invalid: %v", err)
			}
			if !utf8.ValidString(err.Error()) {
				t.Fatalf("the message is not valid UTF-8: %q", err)
			}
			return
		}
		switch {
		case r.Cost < 0 || r.Cost > quota.MaxTokens || r.Cost%quota.Token != 0:
			t.Fatalf("cost %d", r.Cost)
		case len(r.Attributes) > rpc.MaxAttributes, len(r.Policies) > rpc.MaxPolicyFilter,
			len(r.RequestID) > rpc.MaxRequestID, !utf8.ValidString(r.RequestID):
			t.Fatalf("out of bounds: %+v", r)
		}
		for name, value := range r.Attributes {
			if name == "" || len(name) > rpc.MaxAttributeName || len(value) > rpc.MaxAttributeValue {
				t.Fatalf("attribute %q out of bounds", name)
			}
		}
	})
}
