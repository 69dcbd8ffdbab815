package policystore

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// Role is what the holder of an API token may do. Each includes those before
// it, except RoleRegion, which is for the nodes of one region and nothing else.
type Role string

// The roles.
const (
	RoleViewer Role = "viewer"
	RoleEditor Role = "editor"
	RoleAdmin  Role = "admin"
	RoleRegion Role = "region"
)

// Includes reports whether a holder of r may do what needs the other role.
func (r Role) Includes(needed Role) bool {
	if r == needed {
		return r.valid()
	}
	rank := map[Role]int{RoleViewer: 1, RoleEditor: 2, RoleAdmin: 3}
	return rank[needed] > 0 && rank[r] > rank[needed]
}

func (r Role) valid() bool {
	return r == RoleViewer || r == RoleEditor || r == RoleAdmin || r == RoleRegion
}

// TokenHash is all that is kept of the secret of a token. Secrets are random
// and long, so that a fast hash is enough, and since a hash is looked up and
// not compared, the time that takes tells nothing about any secret.
type TokenHash [sha256.Size]byte

// HashToken returns the hash of a secret.
func HashToken(secret string) TokenHash { return sha256.Sum256([]byte(secret)) }

// Token is what is known of an API token. The secret is not.
type Token struct {
	// ID is its public name.
	ID   string
	Role Role
	// Region is the only one that a token of RoleRegion speaks for; empty for others.
	Region quota.Region
	// Author and Created say who made it and when.
	Author  string
	Created time.Time
	// Expires ends it; zero means never.
	Expires time.Time
	// Revoked is when it was revoked; zero when it was not.
	Revoked time.Time
}

// Valid reports whether the token can be used.
func (t Token) Valid(now time.Time) bool {
	return t.Revoked.IsZero() && (t.Expires.IsZero() || now.Before(t.Expires))
}

// Tokens keeps API tokens. It belongs to the stores but not to Store: most of
// those who read policies have no business here.
type Tokens interface {
	// AddToken keeps a new token, by the author of the edit; Created and Revoked
	// are set by the store. ErrConflict when the id or the secret is known already.
	AddToken(ctx context.Context, by Edit, t Token, hash TokenHash) error
	// RevokeToken ends a token for good; ErrNotFound when there is none, or it was revoked.
	RevokeToken(ctx context.Context, by Edit, id string) error
	// FindToken returns the token with the secret, only if it can be used;
	// else ErrNotFound, without saying why.
	FindToken(ctx context.Context, hash TokenHash) (Token, error)
	// ListTokens lists tokens, also revoked and expired ones, by id, after an id,
	// at most limit of them (zero means DefaultPage).
	ListTokens(ctx context.Context, after string, limit int) ([]Token, error)
}

// The actions on tokens that are recorded.
const (
	ActionAddToken    Action = "add-token"
	ActionRevokeToken Action = "revoke-token"
)

// CheckToken validates a new token and returns what is to be kept. It is pure.
func CheckToken(by Edit, t Token, now time.Time) (Token, error) {
	if err := by.check(); err != nil {
		return Token{}, err
	}
	now = now.UTC().Truncate(time.Microsecond)
	t.Author, t.Created, t.Revoked = by.Author, now, time.Time{}
	if !t.Expires.IsZero() {
		t.Expires = t.Expires.UTC().Truncate(time.Microsecond)
	}
	switch {
	case !quota.ValidPolicyID(t.ID) || strings.ContainsAny(t.ID, ":/"):
		return Token{}, invalidf("%q is not a token id: use letters, digits and _.- only, at most %d", t.ID, quota.MaxPolicyID)
	case !t.Role.valid():
		return Token{}, invalidf("%q is not a role: use viewer, editor, admin or region", t.Role)
	case t.Role == RoleRegion && !quota.ValidRegion(t.Region):
		return Token{}, invalidf("a token of role region needs the name of its region")
	case t.Role != RoleRegion && t.Region != "":
		return Token{}, invalidf("only a token of role region has a region")
	case !t.Valid(now):
		return Token{}, invalidf("the token has expired already")
	}
	return t, nil
}

// CheckEdit validates who changes something and why.
func CheckEdit(by Edit) error { return by.check() }

// NoToken is the error for a token that does not exist or cannot be used. It
// never holds anything of the secret.
func NoToken() error { return fmt.Errorf("%w: no such token", quota.ErrNotFound) }

// DescribeToken is the audit detail of a token.
func DescribeToken(verb string, t Token) string {
	s := verb + " token " + t.ID + " of role " + string(t.Role)
	if t.Region != "" {
		s += " for " + string(t.Region)
	}
	return s
}
