package rpc

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// snapshot returns a revision; nil is the newest.
func (h *policyHandler) snapshot(ctx context.Context, number *int64) (policystore.Snapshot, error) {
	if number == nil {
		return h.cfg.Store.Current(ctx)
	}
	return h.cfg.Store.At(ctx, *number)
}

func (h *policyHandler) Get(ctx context.Context, m *weirv1.GetRequest) (*weirv1.GetResponse, error) {
	var p problems
	p.id("id", m.GetId())
	if err := p.err(); err != nil {
		return nil, err
	}
	snapshot, err := h.snapshot(ctx, m.Revision)
	if err != nil {
		return nil, err
	}
	policy := snapshot.Policy(m.GetId())
	if policy == nil {
		return nil, fmt.Errorf("%w: there is no policy %q in revision %d", quota.ErrNotFound, m.GetId(), snapshot.Number)
	}
	return &weirv1.GetResponse{
		Policy: fromPolicy(policy), Revision: snapshot.Number,
		Document: string(h.cfg.Marshal([]*quota.Policy{policy})),
	}, nil
}

func (h *policyHandler) List(ctx context.Context, m *weirv1.ListRequest) (*weirv1.ListResponse, error) {
	var p problems
	size := p.pageSize(m.GetPageSize(), maxPage)
	p.search("search", m.GetSearch())
	number, after := m.Revision, ""
	if token := p.listToken(m.GetPageToken()); token != nil {
		if number != nil && *number != token.revision {
			p.badPageToken()
		}
		number, after = &token.revision, token.after
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	snapshot, err := h.snapshot(ctx, number)
	if err != nil {
		return nil, err
	}
	out := &weirv1.ListResponse{Revision: fromRevision(snapshot.Revision)}
	for _, policy := range snapshot.Policies {
		if policy.ID <= after || !strings.Contains(policy.ID, m.GetSearch()) {
			continue
		}
		if len(out.Policies) == size {
			out.NextPageToken = listToken{snapshot.Number, out.Policies[size-1].GetId()}.String()
			break
		}
		out.Policies = append(out.Policies, fromPolicy(policy))
	}
	return out, nil
}

func (h *policyHandler) GetRevision(ctx context.Context, m *weirv1.GetRevisionRequest) (*weirv1.GetRevisionResponse, error) {
	var p problems
	if m.GetRegion() != "" {
		p.region("region", m.GetRegion())
		if m.Number != nil {
			p.add("number", "and region exclude each other; send one of them")
		}
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	get := func() (policystore.Snapshot, error) { return h.snapshot(ctx, m.Number) }
	if m.GetRegion() != "" {
		get = func() (policystore.Snapshot, error) { return h.cfg.Store.InForce(ctx, quota.Region(m.GetRegion())) }
	}
	snapshot, err := get()
	if err != nil {
		return nil, err
	}
	return &weirv1.GetRevisionResponse{
		Revision: fromRevision(snapshot.Revision), Document: string(h.cfg.Marshal(snapshot.Policies)),
	}, nil
}

func (h *policyHandler) ListRevisions(ctx context.Context, m *weirv1.ListRevisionsRequest) (*weirv1.ListRevisionsResponse, error) {
	var p problems
	size := p.pageSize(m.GetPageSize(), maxPage)
	before := p.numberToken(m.GetPageToken())
	p.search("author", m.GetAuthor())
	p.search("search", m.GetSearch())
	if err := p.err(); err != nil {
		return nil, err
	}
	list, err := h.cfg.Store.ListRevisions(ctx, policystore.RevisionQuery{
		Before: before, Limit: size, Author: m.GetAuthor(), Search: m.GetSearch(),
	})
	if err != nil {
		return nil, err
	}
	out := &weirv1.ListRevisionsResponse{}
	ids := 0
	for _, r := range list {
		ids += len(r.Summary.Added) + len(r.Summary.Changed) + len(r.Summary.Removed)
		if ids > maxListedIDs && len(out.Revisions) > 0 {
			break
		}
		out.Revisions = append(out.Revisions, fromRevision(r))
	}
	if n := len(out.Revisions); n > 0 && (n == size || n < len(list)) {
		out.NextPageToken = strconv.FormatInt(list[n-1].Number, 10)
	}
	return out, nil
}

func (h *policyHandler) Diff(ctx context.Context, m *weirv1.DiffRequest) (*weirv1.DiffResponse, error) {
	from, err := h.cfg.Store.At(ctx, m.GetFrom())
	if err != nil {
		return nil, err
	}
	to, err := h.snapshot(ctx, m.To)
	if err != nil {
		return nil, err
	}
	return &weirv1.DiffResponse{
		Diff: fromDiff(policystore.Compare(from.Policies, to.Policies)),
		From: fromRevision(from.Revision), To: fromRevision(to.Revision),
	}, nil
}

func (h *policyHandler) ListAudit(ctx context.Context, m *weirv1.ListAuditRequest) (*weirv1.ListAuditResponse, error) {
	var p problems
	size := p.pageSize(m.GetPageSize(), maxPage)
	before := p.numberToken(m.GetPageToken())
	p.search("author", m.GetAuthor())
	p.search("action", m.GetAction())
	p.search("search", m.GetSearch())
	if err := p.err(); err != nil {
		return nil, err
	}
	rows, err := h.cfg.Store.Audit(ctx, policystore.AuditQuery{
		Before: before, Limit: size,
		Author: m.GetAuthor(), Action: policystore.Action(m.GetAction()), Search: m.GetSearch(),
	})
	if err != nil {
		return nil, err
	}
	out := &weirv1.ListAuditResponse{}
	for _, e := range rows {
		out.Entries = append(out.Entries, fromAudit(e))
	}
	if len(rows) == size {
		out.NextPageToken = strconv.FormatInt(rows[size-1].Number, 10)
	}
	return out, nil
}

func fromAudit(e policystore.AuditEntry) *weirv1.AuditEntry {
	return &weirv1.AuditEntry{
		Number: e.Number, HappenedAt: optionalTime(e.Time), Author: e.Author, Action: string(e.Action),
		Message: e.Message, Revision: e.Revision, Detail: e.Detail,
	}
}

func toAudit(m *weirv1.AuditEntry) policystore.AuditEntry {
	return policystore.AuditEntry{
		Number: m.GetNumber(), Time: toTime(m.GetHappenedAt()), Author: m.GetAuthor(), Action: policystore.Action(m.GetAction()),
		Message: m.GetMessage(), Revision: m.GetRevision(), Detail: m.GetDetail(),
	}
}
