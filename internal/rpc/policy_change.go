package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// manyPolicies is from how many policies on all overrides are listed at once,
// instead of those of each policy.
const manyPolicies = 32

// proposal is a change of the policy set, of either kind.
type proposal struct {
	expect *int64
	dryRun bool
	// plan works out what becomes of the newest revision.
	plan func(head policystore.Snapshot) (policystore.Plan, error)
	// store commits, or only says what a commit would meet.
	store func(expect *int64, dryRun bool) (policystore.Applied, error)
}

func (h *policyHandler) change(ctx context.Context, c policystore.Change) (policystore.Applied, error) {
	return h.commit(ctx, proposal{
		expect: c.Expect, dryRun: c.DryRun,
		plan: func(head policystore.Snapshot) (policystore.Plan, error) {
			return policystore.PlanChange(head, c, time.Now())
		},
		store: func(expect *int64, dryRun bool) (policystore.Applied, error) {
			c := c
			c.Expect, c.DryRun = expect, dryRun
			return h.cfg.Store.Apply(ctx, c)
		},
	})
}

// commit makes sure that nodes can use a set before it is committed: it is
// compiled as they will, with its overrides, and committed only on top of the
// revision that it was worked out from. A caller who expects no revision is not
// bothered with that: the change is worked out again.
func (h *policyHandler) commit(ctx context.Context, p proposal) (policystore.Applied, error) {
	release, err := h.lock(ctx)
	if err != nil {
		return policystore.Applied{}, err
	}
	defer release()
	for {
		head, err := h.cfg.Store.Current(ctx)
		if err != nil {
			return policystore.Applied{}, err
		}
		if policystore.Stale(p.expect, head.Number) {
			// The store knows who changed what since. If it has just got there, go on.
			if _, err := p.store(p.expect, true); err != nil {
				return policystore.Applied{}, err
			}
			continue
		}
		plan, err := p.plan(head)
		if err != nil {
			return policystore.Applied{}, err
		}
		if err := h.compile(ctx, plan); err != nil {
			return policystore.Applied{}, err
		}
		if p.dryRun {
			return policystore.Applied{Revision: head.Revision, Diff: plan.Diff}, nil
		}
		applied, err := p.store(&head.Number, false)
		if _, overtaken := errors.AsType[*policystore.ConflictError](err); overtaken && p.expect == nil && ctx.Err() == nil {
			continue
		}
		return applied, err
	}
}

// lock waits for its turn among the changes of this process.
func (h *policyHandler) lock(ctx context.Context) (release func(), err error) {
	select {
	case h.serial <- struct{}{}:
		return func() { <-h.serial }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// compile refuses a set that a node would refuse. Overrides of policies that
// stay as they are have been checked when they were set.
func (h *policyHandler) compile(ctx context.Context, plan policystore.Plan) error {
	var ids []string
	for _, p := range plan.Diff.Added {
		ids = append(ids, p.ID) // its overrides may be older than itself
	}
	for _, c := range plan.Diff.Changed {
		if fitsDifferently(c.Old, c.New) {
			ids = append(ids, c.ID)
		}
	}
	overrides, err := h.overridesOf(ctx, ids)
	if err != nil {
		return err
	}
	for i := range overrides {
		o := &overrides[i]
		if p := plan.Next.Policy(o.Policy); p != nil {
			if err := quota.CheckOverride(p, o); err != nil {
				return fmt.Errorf("override %s does not fit the changed policy, delete or change it first: %w", policystore.IDOf(*o), err)
			}
		}
	}
	table, err := quota.NewOverrides(overrides, time.Now)
	if err != nil {
		return err
	}
	_, err = quota.Compile(plan.Next.Number, plan.Next.Policies, table)
	return err
}

// fitsDifferently reports whether overrides that fit one version of a policy
// may not fit the other.
func fitsDifferently(a, b *quota.Policy) bool {
	return len(a.Key) != len(b.Key) || a.Algorithm != b.Algorithm || a.Unlimited != b.Unlimited ||
		a.Scope != b.Scope || (a.Limit.Capacity == 0) != (b.Limit.Capacity == 0) || a.Limit.Period != b.Limit.Period
}

func (h *policyHandler) overridesOf(ctx context.Context, ids []string) ([]quota.Override, error) {
	if len(ids) > manyPolicies {
		return listOverrides(ctx, h.cfg.Store, policystore.OverrideQuery{})
	}
	var out []quota.Override
	for _, id := range ids {
		some, err := listOverrides(ctx, h.cfg.Store, policystore.OverrideQuery{Policy: id})
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
	}
	return out, nil
}

// listOverrides lists all that a query selects.
func listOverrides(ctx context.Context, store policystore.Overrides, q policystore.OverrideQuery) ([]quota.Override, error) {
	var all []quota.Override
	q.Limit = policystore.MaxPage
	for {
		page, err := store.ListOverrides(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < q.Limit {
			return all, nil
		}
		q.After = new(policystore.IDOf(page[len(page)-1]))
	}
}

// inForceBeside returns the revisions other than the newest that are in force
// somewhere: while the newest is live in some regions only, the others stay on
// earlier ones.
func (h *policyHandler) inForceBeside(ctx context.Context) ([]policystore.Snapshot, error) {
	head, err := h.cfg.Store.Current(ctx)
	if err != nil || len(head.Regions) == 0 {
		return nil, err
	}
	covered := slices.Clone(head.Regions)
	var out []policystore.Snapshot
	for before := head.Number; before > 1; {
		page, err := h.cfg.Store.ListRevisions(ctx, policystore.RevisionQuery{Before: before})
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			before = r.Number
			everywhere := len(r.Regions) == 0
			if !everywhere && !slices.ContainsFunc(r.Regions, func(x quota.Region) bool { return !slices.Contains(covered, x) }) {
				continue
			}
			snapshot, err := h.cfg.Store.At(ctx, r.Number)
			if err != nil {
				return nil, err
			}
			out = append(out, snapshot)
			if everywhere {
				return out, nil
			}
			covered = append(covered, r.Regions...)
		}
	}
	return out, nil
}
