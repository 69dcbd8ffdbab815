package policystore

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weirhq/weir/quota"
)

// Bounds of what accompanies a change, in bytes.
const (
	MaxAuthor  = 256
	MaxMessage = 4096
)

// Edit says who changes something and why.
type Edit struct {
	// Author is required.
	Author  string
	Message string
}

// Change is a change of the policy set.
type Change struct {
	Edit
	// Replace makes Policies the whole set; otherwise the change is a patch
	// that adds or replaces Policies and removes those named in Delete.
	Replace  bool
	Policies []*quota.Policy
	// Delete names policies to remove; each must exist. Only in a patch.
	Delete []string
	// Expect, when set, is the revision that the change was made for.
	Expect *int64
	// Regions makes the new revision live in these regions only; none means
	// everywhere. While such a revision is the newest, a patch must be for the
	// same regions; a whole set or a rollback ends the rollout.
	Regions []quota.Region
	// DryRun computes the outcome and commits nothing.
	DryRun bool
}

// Rollback is the wish for a new revision equal to an earlier one. Rolling back
// to a revision that is live in some regions only promotes it to all.
type Rollback struct {
	Edit
	// To is the revision to return to; zero is the empty set.
	To int64
	// Expect and DryRun are as in Change.
	Expect *int64
	DryRun bool
}

// Applied is the outcome of a change.
type Applied struct {
	// Revision is the new revision, or the current one when nothing was committed.
	Revision Revision
	// Diff is what the change does, or in a dry run would do, to the current set.
	Diff Diff
	// Committed is false in a dry run and when there was nothing to change.
	Committed bool
}

// Plan is what a store has to commit, all or nothing.
type Plan struct {
	// Next is the new revision, meaningful when Commit is set.
	Next Snapshot
	Diff Diff
	// Commit is false in a dry run and when there is nothing to change.
	Commit bool
	Audit  AuditEntry
}

// PlanChange works out what a change makes of the newest revision. It is pure;
// the store calls it under its lock. The policies of the plan are copies or
// belong to head. A change whose Expect is not head is the store's to refuse
// beforehand (see Stale), since only the store knows the revisions between.
func PlanChange(head Snapshot, c Change, now time.Time) (Plan, error) {
	if err := c.check(); err != nil {
		return Plan{}, err
	}
	regions := slices.Compact(slices.Sorted(slices.Values(c.Regions)))
	if !c.Replace && len(head.Regions) > 0 && !slices.Equal(regions, head.Regions) {
		return Plan{}, &RolloutError{Revision: head.Revision.Clone()}
	}
	next, err := c.result(head)
	if err != nil {
		return Plan{}, err
	}
	return plan(head, next, now, Revision{Author: c.Author, Message: c.Message, Regions: regions}, ActionApply, c.DryRun), nil
}

// PlanRollback works out what a rollback to the target makes of the newest
// revision, with the rules of PlanChange.
func PlanRollback(head, target Snapshot, r Rollback, now time.Time) (Plan, error) {
	if err := r.Edit.check(); err != nil {
		return Plan{}, err
	}
	rev := Revision{Author: r.Author, Message: r.Message, RestoredFrom: target.Number}
	return plan(head, ClonePolicies(target.Policies), now, rev, ActionRollback, r.DryRun), nil
}

// Stale reports whether a change that expects a revision has been overtaken.
func Stale(expect *int64, head int64) bool { return expect != nil && *expect != head }

func plan(head Snapshot, next []*quota.Policy, now time.Time, rev Revision, action Action, dryRun bool) Plan {
	d := Compare(head.Policies, next)
	rev.Number = head.Number + 1
	rev.Time = now.UTC().Truncate(time.Microsecond)
	if rev.Time.Before(head.Time) {
		rev.Time = head.Time
	}
	rev.Summary = d.Summary()
	rev.Policies = len(next)
	changes := !d.Empty() || !slices.Equal(rev.Regions, head.Regions)
	return Plan{
		Next:   Snapshot{Revision: rev, Policies: next},
		Diff:   d,
		Commit: changes && !dryRun,
		Audit: AuditEntry{
			Time: rev.Time, Author: rev.Author, Action: action, Message: rev.Message,
			Revision: rev.Number, Detail: detail(rev),
		},
	}
}

func detail(r Revision) string {
	var b strings.Builder
	b.WriteString(r.Summary.String())
	if len(r.Regions) > 0 {
		b.WriteString("; live in")
		for _, region := range r.Regions {
			b.WriteString(" " + string(region))
		}
		b.WriteString(" only")
	}
	return b.String()
}

// result is the set after the change, sorted by id.
func (c Change) result(head Snapshot) ([]*quota.Policy, error) {
	set := make(map[string]*quota.Policy, len(head.Policies)+len(c.Policies))
	if !c.Replace {
		maps.Copy(set, byID(head.Policies))
	}
	for _, id := range c.Delete {
		if _, ok := set[id]; !ok {
			return nil, notFoundf("policy %q is not in revision %d, so it cannot be deleted", id, head.Number)
		}
		delete(set, id)
	}
	for _, p := range c.Policies {
		set[p.ID] = ClonePolicy(p)
	}
	return slices.SortedFunc(maps.Values(set), comparePolicies), nil
}

// check refuses what no store could keep. That the policies make sense is for
// whoever made them from a document to check.
func (c Change) check() error {
	if err := c.Edit.check(); err != nil {
		return err
	}
	if c.Replace && len(c.Delete) > 0 {
		return invalidf("a change that replaces the whole set cannot also delete: leave the policies out of the set")
	}
	seen := make(map[string]bool, len(c.Policies)+len(c.Delete))
	for i, p := range c.Policies {
		if p == nil {
			return invalidf("policies[%d] is nil", i)
		}
		if err := checkPolicy(p); err != nil {
			return err
		}
		if seen[p.ID] {
			return invalidf("policy %q is in the change twice", p.ID)
		}
		seen[p.ID] = true
	}
	for _, id := range c.Delete {
		if seen[id] {
			return invalidf("policy %q is in the change twice", id)
		}
		seen[id] = true
	}
	for _, r := range c.Regions {
		if !quota.ValidRegion(r) {
			return invalidf("%q is not a region name", r)
		}
	}
	return nil
}

func checkPolicy(p *quota.Policy) error {
	if !quota.ValidPolicyID(p.ID) {
		return invalidf("%q is not a policy id", p.ID)
	}
	if _, err := EncodePolicy(p); err != nil {
		return err
	}
	return nil
}

func (e Edit) check() error {
	if err := checkText("author", e.Author, MaxAuthor, false); err != nil {
		return err
	}
	if e.Message == "" {
		return nil
	}
	return checkText("message", e.Message, MaxMessage, true)
}

// checkText bounds what is kept and shown as text. Line breaks and tabs are for
// messages only, other control characters for nobody.
func checkText(what, s string, limit int, lines bool) error {
	switch {
	case strings.TrimSpace(s) == "":
		return invalidf("%s is empty", what)
	case len(s) > limit:
		return invalidf("%s has %d bytes, at most %d are allowed", what, len(s), limit)
	case !utf8.ValidString(s):
		return invalidf("%s is not valid UTF-8", what)
	}
	for _, r := range s {
		if unicode.IsControl(r) && !(lines && (r == '\n' || r == '\t' || r == '\r')) {
			return invalidf("%s holds the control character %U", what, r)
		}
	}
	return nil
}

// NewConflict builds the error for a stale change. since are the revisions after
// the expected one, newest first.
func NewConflict(expect, head int64, since []Revision) *ConflictError {
	e := &ConflictError{Expected: expect, Current: head}
	for _, r := range since[:min(len(since), MaxConflictRevisions)] {
		e.Since = append(e.Since, r.Clone())
	}
	slices.SortFunc(e.Since, func(a, b Revision) int { return cmp.Compare(b.Number, a.Number) })
	return e
}
