package rpc

import (
	"context"
	"fmt"
	"strconv"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func (h *policyHandler) SetOverride(ctx context.Context, m *weirv1.SetOverrideRequest) (*weirv1.SetOverrideResponse, error) {
	var p problems
	p.override("override", m.GetOverride())
	by := h.edit(ctx, m.GetAuthor(), m.GetMessage())
	if err := h.setOverrides(ctx, p, by, []*weirv1.Override{m.GetOverride()}); err != nil {
		return nil, err
	}
	return &weirv1.SetOverrideResponse{
		Warnings: h.overrideWarnings(ctx, func(int) string { return "override" }, []*weirv1.Override{m.GetOverride()}),
	}, nil
}

func (h *policyHandler) SetOverrides(ctx context.Context, m *weirv1.SetOverridesRequest) (*weirv1.SetOverridesResponse, error) {
	var p problems
	for i, o := range m.GetOverrides() {
		p.override("overrides["+strconv.Itoa(i)+"]", o)
	}
	by := h.edit(ctx, m.GetAuthor(), m.GetMessage())
	if err := h.setOverrides(ctx, p, by, m.GetOverrides()); err != nil {
		return nil, err
	}
	at := func(i int) string { return "overrides[" + strconv.Itoa(i) + "]" }
	return &weirv1.SetOverridesResponse{Warnings: h.overrideWarnings(ctx, at, m.GetOverrides())}, nil
}

// overrideWarnings looks at what has been set already: without an answer of the store
// there are none.
func (h *policyHandler) overrideWarnings(ctx context.Context, at func(i int) string, ms []*weirv1.Override) []*weirv1.Problem {
	if h.cfg.WarnOverride == nil {
		return nil
	}
	snapshot, err := h.cfg.Store.Current(ctx)
	if err != nil {
		return nil
	}
	var out []quota.Problem
	for i, o := range toOverrides(ms) {
		p := snapshot.Policy(o.Policy)
		if p == nil {
			continue
		}
		if warning, ok := h.cfg.WarnOverride(p, &o); ok && len(out) < maxWarnings {
			warning.Path = at(i) + "." + warning.Path
			out = append(out, warning)
		}
	}
	return fromProblems(out)
}

func (h *policyHandler) setOverrides(ctx context.Context, p problems, by policystore.Edit, ms []*weirv1.Override) error {
	err := p.err()
	if err == nil {
		err = h.putOverrides(ctx, by, toOverrides(ms))
	}
	h.changes.done(changeSetOverrides, err)
	return err
}

func (h *policyHandler) putOverrides(ctx context.Context, by policystore.Edit, set []quota.Override) error {
	release, err := h.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	beside, err := h.inForceBeside(ctx)
	if err != nil {
		return err
	}
	for _, snapshot := range beside {
		for i := range set {
			p := snapshot.Policy(set[i].Policy)
			if p == nil {
				continue
			}
			if err := quota.CheckOverride(p, &set[i]); err != nil {
				return fmt.Errorf("override %s must also fit revision %d, which is in force in other regions: %w", policystore.IDOf(set[i]), snapshot.Number, err)
			}
		}
	}
	// The newest revision is the store's to check, under its own lock.
	return h.cfg.Store.SetOverrides(ctx, by, set)
}

func (h *policyHandler) GetOverride(ctx context.Context, m *weirv1.GetOverrideRequest) (*weirv1.GetOverrideResponse, error) {
	var p problems
	p.overrideID("id", m.GetId())
	if err := p.err(); err != nil {
		return nil, err
	}
	o, err := h.cfg.Store.Override(ctx, toOverrideID(m.GetId()))
	if err != nil {
		return nil, err
	}
	return &weirv1.GetOverrideResponse{Override: fromOverride(o)}, nil
}

func (h *policyHandler) DeleteOverride(ctx context.Context, m *weirv1.DeleteOverrideRequest) (*weirv1.DeleteOverrideResponse, error) {
	var p problems
	p.overrideID("id", m.GetId())
	by := h.edit(ctx, m.GetAuthor(), m.GetMessage())
	if err := h.deleteOverrides(ctx, p, by, []*weirv1.OverrideID{m.GetId()}); err != nil {
		return nil, err
	}
	return &weirv1.DeleteOverrideResponse{}, nil
}

func (h *policyHandler) DeleteOverrides(ctx context.Context, m *weirv1.DeleteOverridesRequest) (*weirv1.DeleteOverridesResponse, error) {
	var p problems
	for i, id := range m.GetIds() {
		p.overrideID("ids["+strconv.Itoa(i)+"]", id)
	}
	by := h.edit(ctx, m.GetAuthor(), m.GetMessage())
	if err := h.deleteOverrides(ctx, p, by, m.GetIds()); err != nil {
		return nil, err
	}
	return &weirv1.DeleteOverridesResponse{}, nil
}

func (h *policyHandler) deleteOverrides(ctx context.Context, p problems, by policystore.Edit, ms []*weirv1.OverrideID) error {
	err := p.err()
	if err == nil {
		ids := make([]policystore.OverrideID, len(ms))
		for i, m := range ms {
			ids[i] = toOverrideID(m)
		}
		err = h.cfg.Store.DeleteOverrides(ctx, by, ids)
	}
	h.changes.done(changeDeleteOverrides, err)
	return err
}

func (h *policyHandler) ListOverrides(ctx context.Context, m *weirv1.ListOverridesRequest) (*weirv1.ListOverridesResponse, error) {
	var p problems
	size := p.pageSize(m.GetPageSize(), policystore.MaxPage)
	after := p.overrideToken(m.GetPageToken())
	p.optionalID("policy", m.GetPolicy())
	p.search("search", m.GetSearch())
	if err := p.err(); err != nil {
		return nil, err
	}
	list, err := h.cfg.Store.ListOverrides(ctx, policystore.OverrideQuery{
		Policy: m.GetPolicy(), Search: m.GetSearch(), After: after, Limit: size,
	})
	if err != nil {
		return nil, err
	}
	out := &weirv1.ListOverridesResponse{Overrides: fromOverrides(list)}
	if len(list) == size {
		out.NextPageToken = overrideToken(policystore.IDOf(list[size-1]))
	}
	return out, nil
}
