package rpc

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// AuthConfig switches authentication on.
type AuthConfig struct {
	// Tokens keeps the API tokens. It is mandatory.
	Tokens policystore.Tokens
	// Bootstrap, when set, is the secret of an administrator who is in no store:
	// the one who makes the first token. At least MinBootstrap bytes.
	Bootstrap Secret
	// Checks asks for a token, of any role but region, also from those who call
	// LimiterService. Without it that service is open.
	Checks bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// MinBootstrap is the least length of a bootstrap secret, in bytes: long enough
// that nobody guesses it. NewSecret makes one.
const MinBootstrap = 32

// BootstrapID is in whose name the bootstrap administrator changes things.
const BootstrapID = "bootstrap"

const (
	// tokenTTL is how long a token is believed without asking the store again,
	// and so how long a revoked one may still be used on another coordinator.
	tokenTTL = 2 * time.Second
	// tokenGrace is how long a token that was good is believed while the store
	// is away, so that regions go on reporting.
	tokenGrace = 15 * time.Minute
	// tokenRetry is how often the store is asked for one token while it is away.
	tokenRetry   = time.Second
	tokenTimeout = 2 * time.Second
	// maxKnown bounds the tokens that are remembered as good.
	maxKnown = 10_000
	// suspectLookups is how many tokens from throttled addresses are looked up
	// at a time, over all addresses.
	suspectLookups = 4
	// maxAuthorization bounds the header, in bytes.
	maxAuthorization = 1024
)

// principal is who calls. Where authentication is off there is none.
type principal struct {
	policystore.Token
	hash policystore.TokenHash
}

type principalKey struct{}

func principalOf(ctx context.Context) (principal, bool) {
	p, ok := ctx.Value(principalKey{}).(principal)
	return p, ok
}

// mayActFor refuses a token of role region that speaks for another region.
func mayActFor(ctx context.Context, region quota.Region) error {
	p, ok := principalOf(ctx)
	if ok && p.Role == policystore.RoleRegion && p.Region != region {
		return fmt.Errorf("%w: token %s speaks for region %s only", quota.ErrForbidden, p.ID, p.Region)
	}
	return nil
}

// authenticator knows callers by their tokens. A secret is hashed at once;
// nothing keeps, logs or compares the secret itself.
type authenticator struct {
	cfg       AuthConfig
	bootstrap policystore.TokenHash
	throttle  *throttle
	suspects  chan struct{}
	metrics   *authMetrics
	errors    errorMapper
	rpc       *metrics

	mu    sync.Mutex
	known map[policystore.TokenHash]knownToken
}

// knownToken is a token that the store knew.
type knownToken struct {
	token policystore.Token
	// confirmed is when the store last knew it, fresh until when it is not asked again.
	confirmed, fresh time.Time
}

func newAuthenticator(cfg AuthConfig, m *authMetrics, rpc *metrics, mapper errorMapper) (*authenticator, error) {
	if cfg.Tokens == nil {
		return nil, fmt.Errorf("rpc: AuthConfig.Tokens is missing: %w", quota.ErrInvalid)
	}
	if n := len(cfg.Bootstrap); n > 0 && n < MinBootstrap {
		return nil, fmt.Errorf("rpc: the bootstrap token has %d bytes; use at least %d random ones: %w", n, MinBootstrap, quota.ErrInvalid)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &authenticator{
		cfg: cfg, throttle: newThrottle(cfg.Now), suspects: make(chan struct{}, suspectLookups),
		metrics: m, rpc: rpc, errors: mapper, known: make(map[policystore.TokenHash]knownToken),
	}
	if cfg.Bootstrap != "" {
		a.bootstrap = policystore.HashToken(string(cfg.Bootstrap))
		a.cfg.Bootstrap = "" // from here on only the hash is needed
	} // else it stays zero, which is the hash of nothing
	return a, nil
}

// gate is a connect.RequestGateFunc: it decides before the message is read, so
// that a stranger cannot make the server read or parse anything.
func (a *authenticator) gate(ctx context.Context, spec connect.Spec, peer connect.Peer, header http.Header) (context.Context, error) {
	needed, ok := accessTable[spec.Procedure]
	if ok && needed.check && !a.cfg.Checks {
		return ctx, nil
	}
	p, err := a.authenticate(ctx, peer.Addr, header)
	if err == nil && (!ok || !needed.allows(p.Role)) {
		a.metrics.failure(failForbidden)
		err = fmt.Errorf("%w: token %s has the role %s, which may not call %s", quota.ErrForbidden, p.ID, p.Role, spec.Procedure)
	}
	if err != nil {
		markReached(ctx)
		ce := a.errors.encode(ctx, spec.Procedure, err)
		if ce.Code() == connect.CodeUnauthenticated {
			ce.Meta().Set("WWW-Authenticate", "Bearer")
		}
		a.rpc.refused(spec.Procedure, ce.Code().String())
		return nil, ce
	}
	return context.WithValue(ctx, principalKey{}, p), nil
}

// authenticate finds out who calls. What costs a lookup is counted against the
// caller's address when it fails; from an address with too many failures only
// tokens that are known, or find one of few places, are looked up at all.
func (a *authenticator) authenticate(ctx context.Context, addr string, header http.Header) (principal, error) {
	secret, ok := bearer(header)
	if !ok {
		a.metrics.failure(failMissing)
		return principal{}, fmt.Errorf("%w: send the header \"Authorization: Bearer TOKEN\"", quota.ErrUnauthenticated)
	}
	hash := policystore.HashToken(secret)
	if a.isBootstrap(hash) {
		return principal{policystore.Token{ID: BootstrapID, Role: policystore.RoleAdmin}, hash}, nil
	}
	if !wellFormed(secret) {
		return principal{}, a.failed(ctx, addr, failMalformed)
	}
	if _, known := a.recall(hash); !known && !a.throttle.ok(addr) {
		select {
		case a.suspects <- struct{}{}:
			defer func() { <-a.suspects }()
		default:
			a.metrics.failure(failThrottled)
			return principal{}, errThrottled
		}
	}
	token, err := a.find(ctx, hash)
	switch {
	case errors.Is(err, quota.ErrNotFound):
		return principal{}, a.failed(ctx, addr, failUnknown)
	case err != nil:
		a.metrics.failure(failUnavailable)
		return principal{}, err
	}
	return principal{token, hash}, nil
}

// isBootstrap takes the same time whatever the difference.
func (a *authenticator) isBootstrap(hash policystore.TokenHash) bool {
	return subtle.ConstantTimeCompare(hash[:], a.bootstrap[:]) == 1
}

// failed counts a bad token against its address.
func (a *authenticator) failed(ctx context.Context, addr, reason string) error {
	if !a.throttle.spend(addr) {
		a.metrics.failure(failThrottled)
		return errThrottled
	}
	a.metrics.failure(reason)
	// Bounded by the throttle. Neither the token nor its hash is shown.
	a.errors.log.WarnContext(ctx, "a token was refused", "address", addressKey(addr), "reason", reason)
	return fmt.Errorf("%w: the token is not known, has expired, or was revoked", quota.ErrUnauthenticated)
}

// confirm reports whether a caller that was known still is.
func (a *authenticator) confirm(ctx context.Context, p principal) error {
	if a.isBootstrap(p.hash) {
		return nil
	}
	_, err := a.find(ctx, p.hash)
	if errors.Is(err, quota.ErrNotFound) {
		return fmt.Errorf("%w: the token has expired or was revoked", quota.ErrUnauthenticated)
	}
	return err
}

// find looks a token up. While the store is away, one that it knew lately is
// still believed.
func (a *authenticator) find(ctx context.Context, hash policystore.TokenHash) (policystore.Token, error) {
	now := a.cfg.Now()
	k, known := a.recall(hash)
	if known && now.Before(k.fresh) {
		return usable(k.token, now)
	}
	bounded, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	token, err := a.cfg.Tokens.FindToken(bounded, hash)
	switch {
	case err == nil:
		a.remember(hash, knownToken{token, now, now.Add(tokenTTL)})
		return token, nil
	case errors.Is(err, quota.ErrNotFound):
		a.forget(hash)
		return policystore.Token{}, err
	case ctx.Err() != nil:
		return policystore.Token{}, ctx.Err()
	case known && now.Sub(k.confirmed) < tokenGrace:
		k.fresh = now.Add(tokenRetry)
		a.remember(hash, k)
		return usable(k.token, now)
	}
	return policystore.Token{}, fmt.Errorf("look up token: %w: %w", quota.ErrUnavailable, err)
}

func usable(t policystore.Token, now time.Time) (policystore.Token, error) {
	if !t.Valid(now) {
		return policystore.Token{}, policystore.NoToken()
	}
	return t, nil
}

func (a *authenticator) recall(hash policystore.TokenHash) (knownToken, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k, ok := a.known[hash]
	return k, ok
}

func (a *authenticator) remember(hash policystore.TokenHash, k knownToken) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.known[hash]; !ok && len(a.known) >= maxKnown {
		for victim := range a.known { // any of them: it costs one lookup
			delete(a.known, victim)
			break
		}
	}
	a.known[hash] = k
}

func (a *authenticator) forget(hash policystore.TokenHash) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, hash)
}

// forgetID makes a revocation hold at once on this server.
func (a *authenticator) forgetID(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for hash, k := range a.known {
		if k.token.ID == id {
			delete(a.known, hash)
		}
	}
}

// bearer returns the secret of an Authorization header.
func bearer(header http.Header) (string, bool) {
	value := header.Get("Authorization")
	scheme, secret, ok := strings.Cut(value, " ")
	secret = strings.TrimSpace(secret)
	if !ok || !strings.EqualFold(scheme, "Bearer") || secret == "" || len(value) > maxAuthorization {
		return "", false
	}
	return secret, true
}
