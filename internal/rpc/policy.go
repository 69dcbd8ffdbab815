package rpc

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// PolicyConfig is what PolicyService is served from. Store, Parse and Marshal
// are mandatory.
type PolicyConfig struct {
	Store policystore.Store
	// Parse reads and validates a document; Marshal writes one that Parse reads
	// back as equal policies.
	Parse   func(document []byte) ([]*quota.Policy, error)
	Marshal func(policies []*quota.Policy) []byte
	// Warn says what a valid document will not do although one may expect it. Nil
	// never warns.
	Warn func(document []byte) []quota.Problem
	// WarnOverride says the same of an override of a policy; the path is that within
	// the override. Nil never warns.
	WarnOverride func(p *quota.Policy, o *quota.Override) (quota.Problem, bool)
	// Instance names what the store's revision numbers and positions count. A
	// node whose numbers are of another instance is sent everything. It is to be
	// random for each process over a store that begins anew, and always the same
	// (empty will do) over a database.
	Instance string
	// Heartbeat is how often a stream without news shows that it lives; zero
	// means DefaultHeartbeat.
	Heartbeat time.Duration
}

// anonymous is the author of changes where nobody says who he is.
const anonymous = "anonymous"

// policyHandler serves PolicyService.
type policyHandler struct {
	cfg     PolicyConfig
	auth    *authenticator // nil when authentication is off
	changes *changeMetrics
	feed    *feed
	// serial is held by the one who changes something: a change is checked
	// against the overrides, and the other way round, before it is committed.
	serial chan struct{}
	// stopping is closed when streams have to end.
	stopping <-chan struct{}
}

var _ weirv1connect.PolicyServiceHandler = (*policyHandler)(nil)

// policyOptions bounds the messages of each procedure.
func policyOptions() connect.HandlerOption {
	return connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
		switch spec.Procedure {
		case weirv1connect.PolicyServiceApplyProcedure, weirv1connect.PolicyServiceValidateProcedure,
			weirv1connect.PolicyServiceSetOverridesProcedure, weirv1connect.PolicyServiceDeleteOverridesProcedure:
			return []connect.HandlerOption{connect.WithReadMaxBytes(maxChangeBytes)}
		case weirv1connect.PolicyServiceWatchPoliciesProcedure:
			// A set goes to every node at the same moment: compressing it for each
			// would cost more than the bytes.
			return []connect.HandlerOption{connect.WithReadMaxBytes(maxReadBytes), connect.WithCompressMinBytes(math.MaxInt)}
		}
		return []connect.HandlerOption{connect.WithReadMaxBytes(maxReadBytes)}
	})
}

// edit says who changes something: the token's holder, or where there are no
// tokens whom the request names.
func (h *policyHandler) edit(ctx context.Context, author, message string) policystore.Edit {
	if p, ok := principalOf(ctx); ok {
		author = p.ID
	} else if author == "" {
		author = anonymous
	}
	return policystore.Edit{Author: author, Message: message}
}

func (h *policyHandler) Apply(ctx context.Context, m *weirv1.ApplyRequest) (*weirv1.ApplyResponse, error) {
	applied, err := h.apply(ctx, m)
	h.changes.applied(changeApply, m.GetDryRun(), applied, err)
	if err != nil {
		return nil, err
	}
	warnings := h.warnings(m.GetDocument())
	return &weirv1.ApplyResponse{
		Revision: fromRevision(applied.Revision), Diff: fromDiff(applied.Diff), Committed: applied.Committed,
		Warnings: warnings[:min(len(warnings), maxWarnings)],
	}, nil
}

// maxWarnings bounds those in the answer to a change.
const maxWarnings = 100

func (h *policyHandler) warnings(document string) []*weirv1.Problem {
	if h.cfg.Warn == nil || document == "" {
		return nil
	}
	return fromProblems(h.cfg.Warn([]byte(document)))
}

func (h *policyHandler) apply(ctx context.Context, m *weirv1.ApplyRequest) (policystore.Applied, error) {
	var p problems
	p.expected(m.ExpectedRevision)
	regions := p.regions(m.GetRegions())
	p.ids("delete", m.GetDelete())
	if !m.GetPatch() && len(m.GetDelete()) > 0 {
		p.add("delete", "only in a patch; a whole set removes what its document leaves out")
	}
	if err := p.err(); err != nil {
		return policystore.Applied{}, err
	}
	c := policystore.Change{
		Edit:    h.edit(ctx, m.GetAuthor(), m.GetMessage()),
		Replace: !m.GetPatch(), Delete: m.GetDelete(), Regions: regions,
		Expect: m.ExpectedRevision, DryRun: m.GetDryRun(),
	}
	if len(c.Delete) == 0 || strings.TrimSpace(m.GetDocument()) != "" {
		var err error
		if c.Policies, err = h.cfg.Parse([]byte(m.GetDocument())); err != nil {
			return policystore.Applied{}, err
		}
	}
	return h.change(ctx, c)
}

func (h *policyHandler) Delete(ctx context.Context, m *weirv1.DeleteRequest) (*weirv1.DeleteResponse, error) {
	applied, err := h.remove(ctx, m)
	h.changes.applied(changeDelete, m.GetDryRun(), applied, err)
	if err != nil {
		return nil, err
	}
	return &weirv1.DeleteResponse{
		Revision: fromRevision(applied.Revision), Diff: fromDiff(applied.Diff), Committed: applied.Committed,
	}, nil
}

func (h *policyHandler) remove(ctx context.Context, m *weirv1.DeleteRequest) (policystore.Applied, error) {
	var p problems
	p.expected(m.ExpectedRevision)
	regions := p.regions(m.GetRegions())
	p.ids("ids", m.GetIds())
	if len(m.GetIds()) == 0 {
		p.add("ids", "empty; name the policies to remove")
	}
	if err := p.err(); err != nil {
		return policystore.Applied{}, err
	}
	return h.change(ctx, policystore.Change{
		Edit: h.edit(ctx, m.GetAuthor(), m.GetMessage()), Delete: m.GetIds(), Regions: regions,
		Expect: m.ExpectedRevision, DryRun: m.GetDryRun(),
	})
}

func (h *policyHandler) Rollback(ctx context.Context, m *weirv1.RollbackRequest) (*weirv1.RollbackResponse, error) {
	applied, err := h.rollback(ctx, m)
	h.changes.applied(changeRollback, m.GetDryRun(), applied, err)
	if err != nil {
		return nil, err
	}
	return &weirv1.RollbackResponse{
		Revision: fromRevision(applied.Revision), Diff: fromDiff(applied.Diff), Committed: applied.Committed,
	}, nil
}

func (h *policyHandler) rollback(ctx context.Context, m *weirv1.RollbackRequest) (policystore.Applied, error) {
	var p problems
	p.expected(m.ExpectedRevision)
	if err := p.err(); err != nil {
		return policystore.Applied{}, err
	}
	r := policystore.Rollback{
		Edit: h.edit(ctx, m.GetAuthor(), m.GetMessage()), To: m.GetRevision(),
		Expect: m.ExpectedRevision, DryRun: m.GetDryRun(),
	}
	target, err := h.cfg.Store.At(ctx, r.To)
	if err != nil {
		return policystore.Applied{}, err
	}
	return h.commit(ctx, proposal{
		expect: r.Expect, dryRun: r.DryRun,
		plan: func(head policystore.Snapshot) (policystore.Plan, error) {
			return policystore.PlanRollback(head, target, r, time.Now())
		},
		store: func(expect *int64, dryRun bool) (policystore.Applied, error) {
			r := r
			r.Expect, r.DryRun = expect, dryRun
			return h.cfg.Store.Rollback(ctx, r)
		},
	})
}

func (h *policyHandler) Validate(_ context.Context, m *weirv1.ValidateRequest) (*weirv1.ValidateResponse, error) {
	policies, err := h.cfg.Parse([]byte(m.GetDocument()))
	if doc, ok := errors.AsType[*quota.DocumentError](err); ok {
		return &weirv1.ValidateResponse{
			Valid: new(false), Problems: fromProblems(doc.Problems), Omitted: int32(doc.Omitted),
		}, nil
	}
	if err == nil {
		// What only the whole set can show, such as an id that is there twice.
		_, err = quota.Compile(0, policies, nil)
	}
	if err != nil {
		return nil, err
	}
	return &weirv1.ValidateResponse{Valid: new(true), Policies: int32(len(policies)), Warnings: h.warnings(m.GetDocument())}, nil
}

func (h *policyHandler) WhoAmI(ctx context.Context, _ *weirv1.WhoAmIRequest) (*weirv1.WhoAmIResponse, error) {
	p, ok := principalOf(ctx)
	out := &weirv1.WhoAmIResponse{Authenticated: &ok}
	if ok {
		out.Id, out.Role, out.Region = p.ID, string(p.Role), string(p.Region)
		out.ExpiresAt = optionalTime(p.Expires)
	}
	return out, nil
}

func (p *problems) ids(field string, ids []string) {
	for i, id := range ids {
		p.id(field+"["+strconv.Itoa(i)+"]", id)
	}
}
