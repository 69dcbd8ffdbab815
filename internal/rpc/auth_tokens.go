package rpc

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"strings"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// A secret is the prefix, by which people and scanners recognise it, and 256
// random bits.
const (
	secretPrefix = "weir_"
	secretBytes  = 32
)

// Secret is the secret of a token. It prints, logs and marshals as hidden.
type Secret string

const hidden = "(hidden)"

func (Secret) String() string { return hidden }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return hidden }

// MarshalText hides the secret from encoders; slog uses it too.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// NewSecret returns a new secret of a token.
func NewSecret() Secret {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return Secret(secretPrefix + base64.RawURLEncoding.EncodeToString(b[:]))
}

// wellFormed reports whether a secret can be one of ours; others are not looked up.
func wellFormed(secret string) bool {
	random, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok || len(random) != base64.RawURLEncoding.EncodedLen(secretBytes) {
		return false
	}
	_, err := base64.RawURLEncoding.DecodeString(random)
	return err == nil
}

// tokenHandler serves TokenService.
type tokenHandler struct {
	auth    *authenticator
	changes *changeMetrics
}

var _ weirv1connect.TokenServiceHandler = (*tokenHandler)(nil)

func (h *tokenHandler) CreateToken(ctx context.Context, m *weirv1.CreateTokenRequest) (*weirv1.CreateTokenResponse, error) {
	var p problems
	p.timestamp("expires_at", m.GetExpiresAt())
	if m.GetId() == BootstrapID {
		p.add("id", "%q is the name of the bootstrap administrator; choose another", BootstrapID)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	secret := string(NewSecret())
	hash := policystore.HashToken(secret)
	err := h.auth.cfg.Tokens.AddToken(ctx, h.edit(ctx, m.GetMessage()), policystore.Token{
		ID: m.GetId(), Role: policystore.Role(m.GetRole()), Region: quota.Region(m.GetRegion()), Expires: toTime(m.GetExpiresAt()),
	}, hash)
	h.changes.done(changeCreateToken, err)
	if err != nil {
		return nil, err
	}
	token, err := h.auth.cfg.Tokens.FindToken(ctx, hash)
	if err != nil {
		return nil, err
	}
	return &weirv1.CreateTokenResponse{Secret: secret, Token: fromToken(token)}, nil
}

func (h *tokenHandler) edit(ctx context.Context, message string) policystore.Edit {
	p, _ := principalOf(ctx)
	return policystore.Edit{Author: p.ID, Message: message}
}

func (h *tokenHandler) ListTokens(ctx context.Context, m *weirv1.ListTokensRequest) (*weirv1.ListTokensResponse, error) {
	var p problems
	size := p.pageSize(m.GetPageSize(), maxPage)
	after := p.idToken(m.GetPageToken())
	if err := p.err(); err != nil {
		return nil, err
	}
	tokens, err := h.auth.cfg.Tokens.ListTokens(ctx, after, size)
	if err != nil {
		return nil, err
	}
	out := &weirv1.ListTokensResponse{}
	for _, t := range tokens {
		out.Tokens = append(out.Tokens, fromToken(t))
	}
	if len(tokens) == size {
		out.NextPageToken = tokens[size-1].ID
	}
	return out, nil
}

func (h *tokenHandler) RevokeToken(ctx context.Context, m *weirv1.RevokeTokenRequest) (*weirv1.RevokeTokenResponse, error) {
	var p problems
	p.id("id", m.GetId())
	if err := p.err(); err != nil {
		return nil, err
	}
	err := h.auth.cfg.Tokens.RevokeToken(ctx, h.edit(ctx, m.GetMessage()), m.GetId())
	h.changes.done(changeRevokeToken, err)
	if err != nil {
		return nil, err
	}
	h.auth.forgetID(m.GetId())
	return &weirv1.RevokeTokenResponse{}, nil
}
