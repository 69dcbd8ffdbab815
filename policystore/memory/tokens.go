package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

var _ policystore.Tokens = (*Store)(nil)

// AddToken keeps a new token.
func (s *Store) AddToken(ctx context.Context, by policystore.Edit, t policystore.Token, hash policystore.TokenHash) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, err := policystore.CheckToken(by, t, s.now())
	if err != nil {
		return err
	}
	for h, other := range s.tokens {
		if h == hash || other.ID == kept.ID {
			return fmt.Errorf("%w: token %s, or its secret, exists already", quota.ErrConflict, kept.ID)
		}
	}
	s.tokens[hash] = kept
	s.recordDoneLocked(by, policystore.ActionAddToken, policystore.DescribeToken("added", kept), kept.Created)
	return nil
}

// RevokeToken ends a token for good.
func (s *Store) RevokeToken(ctx context.Context, by policystore.Edit, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := policystore.CheckEdit(by); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, t := range s.tokens {
		if t.ID == id && t.Revoked.IsZero() {
			t.Revoked = s.now().UTC().Truncate(time.Microsecond)
			s.tokens[hash] = t
			s.recordDoneLocked(by, policystore.ActionRevokeToken, policystore.DescribeToken("revoked", t), t.Revoked)
			return nil
		}
	}
	return policystore.NoToken()
}

var _ policystore.Recorder = (*Store)(nil)

// Record appends a row to the audit log.
func (s *Store) Record(ctx context.Context, by policystore.Edit, action policystore.Action, detail string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := policystore.CheckEdit(by); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordDoneLocked(by, action, detail, s.now().UTC().Truncate(time.Microsecond))
	return nil
}

func (s *Store) recordDoneLocked(by policystore.Edit, action policystore.Action, detail string, at time.Time) {
	s.recordLocked(policystore.AuditEntry{
		Time: at, Author: by.Author, Action: action, Message: by.Message, Revision: s.headLocked().Number, Detail: detail,
	})
}

// FindToken returns the token with the secret, if it can be used.
func (s *Store) FindToken(ctx context.Context, hash policystore.TokenHash) (policystore.Token, error) {
	if err := ctx.Err(); err != nil {
		return policystore.Token{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.tokens[hash]
	if !ok || !t.Valid(s.now()) {
		return policystore.Token{}, policystore.NoToken()
	}
	return t, nil
}

// ListTokens lists tokens by id.
func (s *Store) ListTokens(ctx context.Context, after string, limit int) ([]policystore.Token, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := slices.SortedFunc(maps.Values(s.tokens), func(a, b policystore.Token) int { return cmp.Compare(a.ID, b.ID) })
	start, _ := slices.BinarySearchFunc(all, after+"\x00", func(t policystore.Token, id string) int { return cmp.Compare(t.ID, id) })
	all = all[start:]
	return all[:min(len(all), policystore.PageLimit(limit))], nil
}
