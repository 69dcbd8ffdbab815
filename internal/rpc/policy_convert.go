package rpc

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func fromPolicy(p *quota.Policy) *weirv1.Policy {
	m := &weirv1.Policy{
		Id: p.ID, Key: p.Key, Algorithm: p.Algorithm.String(),
		Scope:          p.Scope.String(),
		OnStoreFailure: p.OnStoreFailure.String(),
		StoreDeadline:  optionalDuration(p.StoreDeadline),
		Enforcement:    p.Enforcement.String(),
		MissingKey:     p.MissingKey.String(),
		SubBuckets:     int32(p.SubBuckets),
		LeaseTtl:       optionalDuration(p.LeaseTTL),
		Priority:       int32(p.Priority),
		Shadow:         p.Shadow,
		Unlimited:      p.Unlimited,
		Split: &weirv1.Split{
			Strategy: p.Split.Strategy.String(), OnPartition: p.Split.OnPartition.String(),
			FloorPercent: p.Split.FloorPercent,
		},
	}
	if p.Limit != (quota.Limit{}) {
		m.Limit = fromLimit(p.Limit)
	}
	for _, c := range p.Match {
		m.Match = append(m.Match, &weirv1.Condition{Attribute: c.Attribute, Pattern: c.Pattern})
	}
	if len(p.Split.Weights) > 0 {
		m.Split.Weights = make(map[string]float64, len(p.Split.Weights))
		for region, w := range p.Split.Weights {
			m.Split.Weights[string(region)] = w
		}
	}
	return m
}

func fromPolicies(set []*quota.Policy) []*weirv1.Policy {
	out := make([]*weirv1.Policy, len(set))
	for i, p := range set {
		out[i] = fromPolicy(p)
	}
	return out
}

// toPolicy refuses a name or a field that this version does not know: enforcing
// a part of a policy would be worse than keeping the last good set.
func toPolicy(m *weirv1.Policy) (*quota.Policy, error) {
	n := names{policy: m.GetId()}
	split := m.GetSplit()
	for _, part := range []proto.Message{m, split, m.GetLimit()} {
		n.known(part)
	}
	p := &quota.Policy{
		ID: m.GetId(), Key: slices.Clone(m.GetKey()),
		Algorithm: parseName(&n, "algorithm", m.GetAlgorithm(), quota.TokenBucket, quota.SlidingLog, quota.Concurrency),
		Limit:     toLimit(m.GetLimit()),
		Scope:     parseName(&n, "scope", m.GetScope(), quota.Global, quota.Regional),
		Split: quota.Split{
			Strategy:    parseName(&n, "split.strategy", split.GetStrategy(), quota.SplitByDemand, quota.SplitEqual, quota.SplitExplicit),
			OnPartition: parseName(&n, "split.onPartition", split.GetOnPartition(), quota.Hold, quota.Strict),
		},
		OnStoreFailure: parseName(&n, "onStoreFailure", m.GetOnStoreFailure(), quota.FailLocal, quota.FailOpen, quota.FailClosed),
		StoreDeadline:  m.GetStoreDeadline().AsDuration(),
		Enforcement:    parseName(&n, "enforcement", m.GetEnforcement(), quota.Exact, quota.Leased),
		MissingKey:     parseName(&n, "missingKey", m.GetMissingKey(), quota.MissingSkip, quota.MissingDeny, quota.MissingShared),
		SubBuckets:     int(m.GetSubBuckets()),
		LeaseTTL:       m.GetLeaseTtl().AsDuration(),
		Priority:       int(m.GetPriority()),
		Shadow:         m.GetShadow(),
		Unlimited:      m.GetUnlimited(),
	}
	for _, c := range m.GetMatch() {
		n.known(c)
		p.Match = append(p.Match, quota.Condition{Attribute: c.GetAttribute(), Pattern: c.GetPattern()})
	}
	if split != nil && split.FloorPercent != nil {
		p.Split.FloorPercent = new(split.GetFloorPercent())
	}
	for region, w := range split.GetWeights() {
		if p.Split.Weights == nil {
			p.Split.Weights = make(map[quota.Region]float64, len(split.GetWeights()))
		}
		p.Split.Weights[quota.Region(region)] = w
	}
	return p, n.err
}

func toPolicies(ms []*weirv1.Policy) ([]*quota.Policy, error) {
	out := make([]*quota.Policy, len(ms))
	for i, m := range ms {
		p, err := toPolicy(m)
		if err != nil {
			return nil, err
		}
		out[i] = p
	}
	return out, nil
}

// names keeps the first thing about a policy that this version does not know.
type names struct {
	policy string
	err    error
}

func (n *names) failf(format string, args ...any) {
	if n.err == nil {
		n.err = fmt.Errorf("policy %q: %s; the server is newer than this program", n.policy, fmt.Sprintf(format, args...))
	}
}

func (n *names) known(m proto.Message) {
	if r := m.ProtoReflect(); r.IsValid() && len(r.GetUnknown()) > 0 {
		n.failf("%s has a field that is unknown to this version", r.Descriptor().Name())
	}
}

// parseName returns zero for an absent name and for that of the zero value.
func parseName[E interface {
	~uint8
	String() string
}](n *names, field, name string, known ...E) E {
	var zero E
	if name == "" || name == zero.String() {
		return zero
	}
	for _, e := range known {
		if e.String() == name {
			return e
		}
	}
	n.failf("%s %q is unknown to this version", field, name)
	return zero
}

func optionalTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func toTime(m *timestamppb.Timestamp) time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.AsTime()
}

func fromRegions(regions []quota.Region) []string {
	out := make([]string, len(regions))
	for i, r := range regions {
		out[i] = string(r)
	}
	return out
}

func toRegions(names []string) []quota.Region {
	var out []quota.Region
	for _, n := range names {
		out = append(out, quota.Region(n))
	}
	return out
}

func fromRevision(r policystore.Revision) *weirv1.Revision {
	return &weirv1.Revision{
		Number: r.Number, Author: r.Author, Message: r.Message,
		CommittedAt:  optionalTime(r.Time),
		Regions:      fromRegions(r.Regions),
		RestoredFrom: r.RestoredFrom,
		Policies:     int32(r.Policies),
		Summary: &weirv1.ChangeSummary{
			Added: r.Summary.Added, Changed: r.Summary.Changed, Removed: r.Summary.Removed, Text: r.Summary.String(),
		},
	}
}

// Revision is a revision as a client sees it.
type Revision struct {
	policystore.Revision
	// Text says in one line what changed. The ids of the summary are cut where
	// the revision is part of an error; the text counts all.
	Text string
}

func toRevision(m *weirv1.Revision) Revision {
	s := m.GetSummary()
	return Revision{
		Revision: policystore.Revision{
			Number: m.GetNumber(), Author: m.GetAuthor(), Message: m.GetMessage(),
			Time:         toTime(m.GetCommittedAt()),
			Regions:      toRegions(m.GetRegions()),
			RestoredFrom: m.GetRestoredFrom(),
			Policies:     int(m.GetPolicies()),
			Summary:      policystore.Summary{Added: s.GetAdded(), Changed: s.GetChanged(), Removed: s.GetRemoved()},
		},
		Text: s.GetText(),
	}
}

func fromDiff(d policystore.Diff) *weirv1.PolicyDiff {
	m := &weirv1.PolicyDiff{Added: fromPolicies(d.Added), Removed: fromPolicies(d.Removed)}
	for _, c := range d.Changed {
		out := &weirv1.PolicyChange{Id: c.ID, Before: fromPolicy(c.Old), After: fromPolicy(c.New)}
		for _, f := range c.Fields {
			out.Fields = append(out.Fields, &weirv1.FieldChange{Path: f.Path, Before: f.Old, After: f.New})
		}
		m.Changed = append(m.Changed, out)
	}
	return m
}

func toDiff(m *weirv1.PolicyDiff) (policystore.Diff, error) {
	var (
		d   policystore.Diff
		err error
	)
	if d.Added, err = toPolicies(m.GetAdded()); err != nil {
		return d, err
	}
	if d.Removed, err = toPolicies(m.GetRemoved()); err != nil {
		return d, err
	}
	for _, c := range m.GetChanged() {
		out := policystore.PolicyChange{ID: c.GetId()}
		if out.Old, err = toPolicy(c.GetBefore()); err != nil {
			return d, err
		}
		if out.New, err = toPolicy(c.GetAfter()); err != nil {
			return d, err
		}
		for _, f := range c.GetFields() {
			out.Fields = append(out.Fields, policystore.FieldChange{Path: f.GetPath(), Old: f.GetBefore(), New: f.GetAfter()})
		}
		d.Changed = append(d.Changed, out)
	}
	return d, nil
}

func fromOverrideID(id policystore.OverrideID) *weirv1.OverrideID {
	return &weirv1.OverrideID{Policy: id.Policy, Key: id.Key}
}

func toOverrideID(m *weirv1.OverrideID) policystore.OverrideID {
	return policystore.OverrideID{Policy: m.GetPolicy(), Key: m.GetKey()}
}

func fromOverride(o quota.Override) *weirv1.Override {
	m := &weirv1.Override{
		Id:        &weirv1.OverrideID{Policy: o.Policy, Key: o.Key},
		Unlimited: o.Unlimited, ExpiresAt: optionalTime(o.Expires),
	}
	if o.Limit != (quota.Limit{}) {
		m.Limit = fromLimit(o.Limit)
	}
	return m
}

func toOverride(m *weirv1.Override) quota.Override {
	o := quota.Override{
		Policy: m.GetId().GetPolicy(), Key: m.GetId().GetKey(),
		Unlimited: m.GetUnlimited(), Expires: toTime(m.GetExpiresAt()),
	}
	if m.GetLimit() != nil {
		o.Limit = toLimit(m.GetLimit())
	}
	return o
}

// sendable reports whether a key can travel. One that is not UTF-8 can be kept
// by a store, but no request carries it, so that nobody misses it.
func sendable(key []string) bool {
	return !slices.ContainsFunc(key, func(k string) bool { return !utf8.ValidString(k) })
}

func fromOverrides(list []quota.Override) []*weirv1.Override {
	out := make([]*weirv1.Override, 0, len(list))
	for _, o := range list {
		if sendable(o.Key) {
			out = append(out, fromOverride(o))
		}
	}
	return out
}

func toOverrides(ms []*weirv1.Override) []quota.Override {
	out := make([]quota.Override, len(ms))
	for i, m := range ms {
		out[i] = toOverride(m)
	}
	return out
}

func fromOverrideChanges(list []policystore.OverrideChange) *weirv1.OverrideChanges {
	m := &weirv1.OverrideChanges{}
	for _, c := range list {
		if !sendable(c.ID.Key) {
			continue
		}
		out := &weirv1.OverrideChange{Id: fromOverrideID(c.ID)}
		if c.Override != nil {
			out.Override = fromOverride(*c.Override)
		}
		m.Changes = append(m.Changes, out)
	}
	return m
}

// toOverrideChanges leaves out the positions of single changes: a node goes on
// from that of the message.
func toOverrideChanges(ms []*weirv1.OverrideChange) []policystore.OverrideChange {
	out := make([]policystore.OverrideChange, len(ms))
	for i, m := range ms {
		out[i] = policystore.OverrideChange{ID: toOverrideID(m.GetId())}
		if m.GetOverride() != nil {
			out[i].Override = new(toOverride(m.GetOverride()))
		}
	}
	return out
}

func fromProblems(list []quota.Problem) []*weirv1.Problem {
	out := make([]*weirv1.Problem, len(list))
	for i, p := range list {
		out[i] = &weirv1.Problem{
			Path: p.Path, Line: int32(p.Line), Column: int32(p.Column), Reason: p.Reason, Remedy: p.Remedy, Nearest: p.Nearest,
		}
	}
	return out
}

func toProblems(ms []*weirv1.Problem) []quota.Problem {
	out := make([]quota.Problem, len(ms))
	for i, m := range ms {
		out[i] = quota.Problem{
			Path: m.GetPath(), Line: int(m.GetLine()), Column: int(m.GetColumn()),
			Reason: m.GetReason(), Remedy: m.GetRemedy(), Nearest: m.GetNearest(),
		}
	}
	return out
}

func fromToken(t policystore.Token) *weirv1.Token {
	return &weirv1.Token{
		Id: t.ID, Role: string(t.Role), Region: string(t.Region), Author: t.Author,
		CreatedAt: optionalTime(t.Created), ExpiresAt: optionalTime(t.Expires), RevokedAt: optionalTime(t.Revoked),
	}
}

func toToken(m *weirv1.Token) policystore.Token {
	return policystore.Token{
		ID: m.GetId(), Role: policystore.Role(m.GetRole()), Region: quota.Region(m.GetRegion()), Author: m.GetAuthor(),
		Created: toTime(m.GetCreatedAt()), Expires: toTime(m.GetExpiresAt()), Revoked: toTime(m.GetRevokedAt()),
	}
}
