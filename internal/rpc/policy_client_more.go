package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// SetOverrides adds or replaces overrides, all or none.
func (c *PolicyClient) SetOverrides(ctx context.Context, by Edit, set ...quota.Override) error {
	_, err := c.SetOverridesWarned(ctx, by, set...)
	return err
}

// SetOverridesWarned is SetOverrides, and returns what the server warns of.
func (c *PolicyClient) SetOverridesWarned(ctx context.Context, by Edit, set ...quota.Override) ([]quota.Problem, error) {
	const operation = "set overrides"
	if len(set) == 1 {
		res, err := call(ctx, &c.conn, operation, c.policies.SetOverride, &weirv1.SetOverrideRequest{
			Override: fromOverride(set[0]), Message: by.Message, Author: by.Author,
		})
		return toProblems(res.GetWarnings()), err
	}
	m := &weirv1.SetOverridesRequest{Message: by.Message, Author: by.Author}
	for _, o := range set {
		m.Overrides = append(m.Overrides, fromOverride(o))
	}
	res, err := call(ctx, &c.conn, operation, c.policies.SetOverrides, m)
	return toProblems(res.GetWarnings()), err
}

// OverrideInfo is one override.
type OverrideInfo struct {
	wire
	quota.Override
}

// GetOverride returns the override of one key.
func (c *PolicyClient) GetOverride(ctx context.Context, policy string, key ...string) (*OverrideInfo, error) {
	m, err := call(ctx, &c.conn, "get override", c.policies.GetOverride, &weirv1.GetOverrideRequest{
		Id: &weirv1.OverrideID{Policy: policy, Key: key},
	})
	if err != nil {
		return nil, err
	}
	return &OverrideInfo{wire{m}, toOverride(m.GetOverride())}, nil
}

// DeleteOverrides removes overrides, all or none.
func (c *PolicyClient) DeleteOverrides(ctx context.Context, by Edit, ids ...policystore.OverrideID) error {
	const operation = "delete overrides"
	if len(ids) == 1 {
		_, err := call(ctx, &c.conn, operation, c.policies.DeleteOverride, &weirv1.DeleteOverrideRequest{
			Id: fromOverrideID(ids[0]), Message: by.Message, Author: by.Author,
		})
		return err
	}
	m := &weirv1.DeleteOverridesRequest{Message: by.Message, Author: by.Author}
	for _, id := range ids {
		m.Ids = append(m.Ids, fromOverrideID(id))
	}
	_, err := call(ctx, &c.conn, operation, c.policies.DeleteOverrides, m)
	return err
}

// ListOverrides lists those in force by policy and key, by Policy and Search.
func (c *PolicyClient) ListOverrides(ctx context.Context, q Query) (*Page[quota.Override], error) {
	m, err := call(ctx, &c.conn, "list overrides", c.policies.ListOverrides, &weirv1.ListOverridesRequest{
		PageSize: int32(q.Size), PageToken: q.Page, Policy: q.Policy, Search: q.Search,
	})
	if err != nil {
		return nil, err
	}
	return &Page[quota.Override]{wire{m}, toOverrides(m.GetOverrides()), m.GetNextPageToken()}, nil
}

// CreateToken makes a token and returns its secret, which is not shown again.
// ID, Role, Region and Expires of the token count.
func (c *PolicyClient) CreateToken(ctx context.Context, t policystore.Token, message string) (Secret, policystore.Token, error) {
	m, err := call(ctx, &c.conn, "create token", c.tokens.CreateToken, &weirv1.CreateTokenRequest{
		Id: t.ID, Role: string(t.Role), Region: string(t.Region), ExpiresAt: optionalTime(t.Expires), Message: message,
	})
	if err != nil {
		return "", policystore.Token{}, err
	}
	return Secret(m.GetSecret()), toToken(m.GetToken()), nil
}

// ListTokens lists tokens by id, also those that cannot be used any more.
func (c *PolicyClient) ListTokens(ctx context.Context, q Query) (*Page[policystore.Token], error) {
	m, err := call(ctx, &c.conn, "list tokens", c.tokens.ListTokens, &weirv1.ListTokensRequest{
		PageSize: int32(q.Size), PageToken: q.Page,
	})
	if err != nil {
		return nil, err
	}
	out := &Page[policystore.Token]{wire: wire{m}, Next: m.GetNextPageToken()}
	for _, t := range m.GetTokens() {
		out.Items = append(out.Items, toToken(t))
	}
	return out, nil
}

// RevokeToken ends a token for good.
func (c *PolicyClient) RevokeToken(ctx context.Context, id, message string) error {
	_, err := call(ctx, &c.conn, "revoke token", c.tokens.RevokeToken, &weirv1.RevokeTokenRequest{Id: id, Message: message})
	return err
}

// WatchPosition is how far a node has got.
type WatchPosition struct {
	Instance            string
	Revision, Overrides int64
}

// PolicyUpdate brings a node from the position before to its own. Its parts
// belong together: a set is compiled with the overrides of the same update.
type PolicyUpdate struct {
	Position WatchPosition
	// Set is the revision now in force; nil when it is the one that the node has.
	Set *policystore.Snapshot
	// Reset puts Overrides in place of all that the node has.
	Reset     bool
	Overrides []quota.Override
	// Changes of overrides come after them, in order. Their positions are not told.
	Changes []policystore.OverrideChange
}

// Empty reports whether the update only confirms that the node is up to date.
func (u *PolicyUpdate) Empty() bool { return u.Set == nil && !u.Reset && len(u.Changes) == 0 }

// Missed heartbeats after which a stream is taken for dead.
const missedHeartbeats = 3

// errStalled ends a stream on which nothing came for too long.
var errStalled = fmt.Errorf("%w: the server has gone silent", quota.ErrUnavailable)

// Watch follows what is in force in a region, from a position that a node has
// got to, or from nothing, until ctx ends, the stream breaks or use returns an
// error; it returns why, never nil. It does not connect again: the caller does, from the
// position of the last update, after a pause of its own. use is called in turn
// with every update, also with empty ones, which show that what the node has is
// still the newest.
func (c *PolicyClient) Watch(ctx context.Context, region quota.Region, known *WatchPosition, use func(PolicyUpdate) error) error {
	const operation = "watch policies"
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := c.timeout
	silence := time.AfterFunc(patience, func() { cancel(errStalled) })
	defer silence.Stop()

	r := &weirv1.WatchPoliciesRequest{Region: string(region)}
	if known != nil {
		r.Known = &weirv1.WatchPosition{Instance: known.Instance, Revision: known.Revision, Overrides: known.Overrides}
	}
	broken := func(err error) error {
		if cause := context.Cause(bounded); ctx.Err() == nil && errors.Is(cause, errStalled) {
			return fmt.Errorf("%s: %w", operation, errStalled)
		}
		if err == nil {
			return fmt.Errorf("%s: %w: the stream has ended", operation, quota.ErrUnavailable)
		}
		return fail(ctx, operation, err)
	}
	stream, err := c.policies.WatchPolicies(bounded, r)
	if err != nil {
		return broken(err)
	}
	defer func() { _ = stream.Close() }() // it is broken or of no more use
	var update PolicyUpdate
	for stream.Receive() {
		m := stream.Msg()
		if interval := m.GetHeartbeat().GetInterval().AsDuration(); interval > 0 {
			patience = max(missedHeartbeats*interval, time.Second)
		}
		silence.Stop() // using an update may take its time
		if err := update.add(m); err != nil {
			return fmt.Errorf("%s: %w", operation, err)
		}
		if at := m.GetPosition(); at != nil {
			update.Position = WatchPosition{at.GetInstance(), at.GetRevision(), at.GetOverrides()}
			if err := use(update); err != nil {
				return err
			}
			update = PolicyUpdate{}
		}
		silence.Reset(patience)
	}
	return broken(stream.Err())
}

func (u *PolicyUpdate) add(m *weirv1.WatchPoliciesResponse) error {
	switch e := m.GetEvent().(type) {
	case *weirv1.WatchPoliciesResponse_Policies:
		policies, err := toPolicies(e.Policies.GetPolicies())
		if err != nil {
			return err
		}
		u.Set = &policystore.Snapshot{Revision: toRevision(e.Policies.GetRevision()).Revision, Policies: policies}
	case *weirv1.WatchPoliciesResponse_Overrides:
		if e.Overrides.GetFirst() {
			u.Reset, u.Overrides, u.Changes = true, nil, nil
		}
		u.Overrides = append(u.Overrides, toOverrides(e.Overrides.GetOverrides())...)
	case *weirv1.WatchPoliciesResponse_Changes:
		u.Changes = append(u.Changes, toOverrideChanges(e.Changes.GetChanges())...)
	}
	return nil
}
