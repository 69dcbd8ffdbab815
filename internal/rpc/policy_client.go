package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// maxAnswerBytes bounds what a policy client accepts: a diff of the largest
// documents, or a set of policies.
const maxAnswerBytes = 64 << 20

// PolicyClient calls PolicyService and TokenService. It is safe for concurrent
// use and repeats nothing. Errors wrap the sentinels of package quota; a
// *ConflictError and a *quota.DocumentError come back as such.
type PolicyClient struct {
	conn
	policies weirv1connect.PolicyServiceClient
	tokens   weirv1connect.TokenServiceClient
}

// NewPolicyClient does not connect yet.
func NewPolicyClient(cfg ClientConfig) (*PolicyClient, error) {
	c, err := newConn(cfg)
	if err != nil {
		return nil, err
	}
	options := connect.WithClientOptions(c.options, connect.WithReadMaxBytes(maxAnswerBytes))
	return &PolicyClient{
		c,
		weirv1connect.NewPolicyServiceClient(c.http, c.url, options),
		weirv1connect.NewTokenServiceClient(c.http, c.url, options),
	}, nil
}

// wire is an answer as the API says it.
type wire struct{ message proto.Message }

// JSON is the answer as the API says it.
func (w wire) JSON() ([]byte, error) { return protojson.Marshal(w.message) }

// call makes one bounded call.
func call[Req, Res any](
	ctx context.Context, c *conn, operation string, do func(context.Context, *Req) (*Res, error), m *Req,
) (*Res, error) {
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	res, err := do(bounded, m)
	if err != nil {
		return nil, fail(ctx, operation, err)
	}
	return res, nil
}

// Edit is what every change may say.
type Edit struct {
	// Author counts only where the server knows no callers.
	Author  string
	Message string
}

// Change is a change of the policy set, as in ApplyRequest.
type Change struct {
	Edit
	Document []byte
	Patch    bool
	Delete   []string
	Regions  []quota.Region
	Expect   *int64
	DryRun   bool
}

// Applied is what became of a change.
type Applied struct {
	wire
	Revision  Revision
	Diff      policystore.Diff
	Committed bool
	// Warnings say what the document will not do although one may expect it.
	Warnings []quota.Problem
}

// applying is what the answers to Apply, Delete and Rollback have in common.
type applying interface {
	proto.Message
	GetRevision() *weirv1.Revision
	GetDiff() *weirv1.PolicyDiff
	GetCommitted() bool
}

func newApplied(m applying) (*Applied, error) {
	diff, err := toDiff(m.GetDiff())
	if err != nil {
		return nil, err
	}
	return &Applied{wire: wire{m}, Revision: toRevision(m.GetRevision()), Diff: diff, Committed: m.GetCommitted()}, nil
}

// Apply commits a whole set or a patch.
func (c *PolicyClient) Apply(ctx context.Context, ch Change) (*Applied, error) {
	m, err := call(ctx, &c.conn, "apply policies", c.policies.Apply, &weirv1.ApplyRequest{
		Document: string(ch.Document), Patch: ch.Patch, Delete: ch.Delete, Message: ch.Message, Author: ch.Author,
		DryRun: ch.DryRun, ExpectedRevision: ch.Expect, Regions: fromRegions(ch.Regions),
	})
	if err != nil {
		return nil, err
	}
	applied, err := newApplied(m)
	if err != nil {
		return nil, err
	}
	applied.Warnings = toProblems(m.GetWarnings())
	return applied, nil
}

// Delete removes the policies that the change names in Delete.
func (c *PolicyClient) Delete(ctx context.Context, ch Change) (*Applied, error) {
	m, err := call(ctx, &c.conn, "delete policies", c.policies.Delete, &weirv1.DeleteRequest{
		Ids: ch.Delete, Message: ch.Message, Author: ch.Author,
		DryRun: ch.DryRun, ExpectedRevision: ch.Expect, Regions: fromRegions(ch.Regions),
	})
	if err != nil {
		return nil, err
	}
	return newApplied(m)
}

// Rollback is the wish for a new revision equal to an earlier one.
type Rollback struct {
	Edit
	To     int64
	Expect *int64
	DryRun bool
}

// Rollback commits a new revision equal to an earlier one.
func (c *PolicyClient) Rollback(ctx context.Context, r Rollback) (*Applied, error) {
	m, err := call(ctx, &c.conn, "roll back policies", c.policies.Rollback, &weirv1.RollbackRequest{
		Revision: r.To, Message: r.Message, Author: r.Author, DryRun: r.DryRun, ExpectedRevision: r.Expect,
	})
	if err != nil {
		return nil, err
	}
	return newApplied(m)
}

// Validation is what is wrong with a document.
type Validation struct {
	wire
	// Policies is how many a valid document holds.
	Policies int
	// Err is nil for a valid document.
	Err *quota.DocumentError
	// Warnings say what a valid document will not do although one may expect it.
	Warnings []quota.Problem
}

// Validate reads a document and lists every problem.
func (c *PolicyClient) Validate(ctx context.Context, document []byte) (*Validation, error) {
	m, err := call(ctx, &c.conn, "validate policies", c.policies.Validate, &weirv1.ValidateRequest{Document: string(document)})
	if err != nil {
		return nil, err
	}
	v := &Validation{wire: wire{m}, Policies: int(m.GetPolicies()), Warnings: toProblems(m.GetWarnings())}
	if !m.GetValid() {
		v.Err = &quota.DocumentError{Problems: toProblems(m.GetProblems()), Omitted: int(m.GetOmitted())}
	}
	return v, nil
}

// PolicyInfo is one policy.
type PolicyInfo struct {
	wire
	Policy *quota.Policy
	// Document holds just this policy, in YAML.
	Document string
	Revision int64
}

// Get returns a policy of a revision; nil is the newest.
func (c *PolicyClient) Get(ctx context.Context, id string, revision *int64) (*PolicyInfo, error) {
	m, err := call(ctx, &c.conn, "get policy", c.policies.Get, &weirv1.GetRequest{Id: id, Revision: revision})
	if err != nil {
		return nil, err
	}
	p, err := toPolicy(m.GetPolicy())
	if err != nil {
		return nil, err
	}
	return &PolicyInfo{wire{m}, p, m.GetDocument(), m.GetRevision()}, nil
}

// Page is a part of a list.
type Page[T any] struct {
	wire
	Items []T
	// Next asks for the next page; empty on the last one.
	Next string
}

// Query selects a page. Which of its fields count depends on the list.
type Query struct {
	// Size zero leaves it to the server. Page is Page.Next of the page before.
	Size int
	Page string
	// Search is taken literally; Author, Action and Policy are matched exactly.
	Search, Author, Action, Policy string
	// Revision to list the policies of; nil is the newest.
	Revision *int64
}

// List lists policies, by Search and Revision.
func (c *PolicyClient) List(ctx context.Context, q Query) (*Page[*quota.Policy], error) {
	m, err := call(ctx, &c.conn, "list policies", c.policies.List, &weirv1.ListRequest{
		PageSize: int32(q.Size), PageToken: q.Page, Search: q.Search, Revision: q.Revision,
	})
	if err != nil {
		return nil, err
	}
	policies, err := toPolicies(m.GetPolicies())
	if err != nil {
		return nil, err
	}
	return &Page[*quota.Policy]{wire{m}, policies, m.GetNextPageToken()}, nil
}

// RevisionDocument is a revision with its whole document, in YAML.
type RevisionDocument struct {
	wire
	Revision Revision
	Document string
}

// GetRevision returns a revision; nil is the newest.
func (c *PolicyClient) GetRevision(ctx context.Context, number *int64) (*RevisionDocument, error) {
	return c.getRevision(ctx, &weirv1.GetRevisionRequest{Number: number})
}

// InForce returns the revision that is in force in a region.
func (c *PolicyClient) InForce(ctx context.Context, region quota.Region) (*RevisionDocument, error) {
	return c.getRevision(ctx, &weirv1.GetRevisionRequest{Region: string(region)})
}

func (c *PolicyClient) getRevision(ctx context.Context, r *weirv1.GetRevisionRequest) (*RevisionDocument, error) {
	m, err := call(ctx, &c.conn, "get revision", c.policies.GetRevision, r)
	if err != nil {
		return nil, err
	}
	return &RevisionDocument{wire{m}, toRevision(m.GetRevision()), m.GetDocument()}, nil
}

// ListRevisions lists the history, newest first, by Author and Search.
func (c *PolicyClient) ListRevisions(ctx context.Context, q Query) (*Page[Revision], error) {
	m, err := call(ctx, &c.conn, "list revisions", c.policies.ListRevisions, &weirv1.ListRevisionsRequest{
		PageSize: int32(q.Size), PageToken: q.Page, Author: q.Author, Search: q.Search,
	})
	if err != nil {
		return nil, err
	}
	out := &Page[Revision]{wire: wire{m}, Next: m.GetNextPageToken()}
	for _, r := range m.GetRevisions() {
		out.Items = append(out.Items, toRevision(r))
	}
	return out, nil
}

// Difference is the difference of two revisions.
type Difference struct {
	wire
	Diff     policystore.Diff
	From, To Revision
}

// Diff compares two revisions; a nil to is the newest.
func (c *PolicyClient) Diff(ctx context.Context, from int64, to *int64) (*Difference, error) {
	m, err := call(ctx, &c.conn, "compare revisions", c.policies.Diff, &weirv1.DiffRequest{From: from, To: to})
	if err != nil {
		return nil, err
	}
	diff, err := toDiff(m.GetDiff())
	if err != nil {
		return nil, err
	}
	return &Difference{wire{m}, diff, toRevision(m.GetFrom()), toRevision(m.GetTo())}, nil
}

// ListAudit lists the audit log, newest first, by Author, Action and Search.
func (c *PolicyClient) ListAudit(ctx context.Context, q Query) (*Page[policystore.AuditEntry], error) {
	m, err := call(ctx, &c.conn, "list audit log", c.policies.ListAudit, &weirv1.ListAuditRequest{
		PageSize: int32(q.Size), PageToken: q.Page, Author: q.Author, Action: q.Action, Search: q.Search,
	})
	if err != nil {
		return nil, err
	}
	out := &Page[policystore.AuditEntry]{wire: wire{m}, Next: m.GetNextPageToken()}
	for _, e := range m.GetEntries() {
		out.Items = append(out.Items, toAudit(e))
	}
	return out, nil
}

// Identity is whom the server takes the caller for.
type Identity struct {
	wire
	// Authenticated is false when the server lets everybody do everything.
	Authenticated bool
	ID            string
	Role          policystore.Role
	Region        quota.Region
	Expires       time.Time
}

// WhoAmI says whom the server takes the caller for.
func (c *PolicyClient) WhoAmI(ctx context.Context) (*Identity, error) {
	m, err := call(ctx, &c.conn, "ask who I am", c.policies.WhoAmI, &weirv1.WhoAmIRequest{})
	if err != nil {
		return nil, err
	}
	return &Identity{
		wire{m}, m.GetAuthenticated(), m.GetId(),
		policystore.Role(m.GetRole()), quota.Region(m.GetRegion()), toTime(m.GetExpiresAt()),
	}, nil
}
