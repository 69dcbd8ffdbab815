package policystore

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// Page sizes of every listing.
const (
	// DefaultPage is what a limit of zero means.
	DefaultPage = 100
	// MaxPage is the most that one call returns, whatever it asks for.
	MaxPage = 10_000
)

// PageLimit returns the number of rows to list for a requested limit.
func PageLimit(limit int) int {
	if limit <= 0 {
		return DefaultPage
	}
	return min(limit, MaxPage)
}

// Revision describes one committed state of the whole policy set.
type Revision struct {
	Number  int64
	Author  string
	Message string
	// Time is when it was committed, in UTC with microseconds, never before
	// that of an earlier revision.
	Time time.Time
	// Regions are where the revision is live, sorted; none means everywhere.
	// The other regions stay on the newest revision that is live for them.
	Regions []quota.Region
	// RestoredFrom is the revision that a rollback made this one equal to;
	// zero for ordinary changes (and a rollback to the empty set).
	RestoredFrom int64
	// Summary is what changed since the revision before.
	Summary Summary
	// Policies is the size of the set.
	Policies int
}

// LiveIn reports whether the revision is live in the region.
func (r Revision) LiveIn(region quota.Region) bool {
	return len(r.Regions) == 0 || slices.Contains(r.Regions, region)
}

// Clone returns a deep copy.
func (r Revision) Clone() Revision {
	r.Regions = slices.Clone(r.Regions)
	r.Summary = Summary{
		Added:   slices.Clone(r.Summary.Added),
		Changed: slices.Clone(r.Summary.Changed),
		Removed: slices.Clone(r.Summary.Removed),
	}
	return r
}

// Snapshot is a revision with its policies, sorted by id.
type Snapshot struct {
	Revision
	Policies []*quota.Policy
}

// Policy returns the policy with the id, or nil.
func (s Snapshot) Policy(id string) *quota.Policy {
	i, ok := slices.BinarySearchFunc(s.Policies, id, func(p *quota.Policy, id string) int {
		return cmp.Compare(p.ID, id)
	})
	if !ok {
		return nil
	}
	return s.Policies[i]
}

// Clone returns a deep copy.
func (s Snapshot) Clone() Snapshot {
	return Snapshot{Revision: s.Revision.Clone(), Policies: ClonePolicies(s.Policies)}
}

// Position is how far a store has got.
type Position struct {
	// Revision is the number of the newest revision.
	Revision int64
	// Overrides is the position of the newest override change.
	Overrides int64
}

// RevisionQuery selects revisions. All texts are taken literally.
type RevisionQuery struct {
	// Before lists only lower numbers; zero starts at the newest. The number of
	// the last revision of a page asks for the next page.
	Before int64
	// Limit is the size of the page; zero means DefaultPage.
	Limit int
	// Author, when set, is matched exactly.
	Author string
	// Search, when set, must occur in the message, in this case.
	Search string
}

// Action names what an audit row records.
type Action string

// The actions that are recorded.
const (
	ActionApply           Action = "apply"
	ActionRollback        Action = "rollback"
	ActionSetOverrides    Action = "set-overrides"
	ActionDeleteOverrides Action = "delete-overrides"
	ActionDistrustLedger  Action = "distrust-ledger"
	ActionTrustLedger     Action = "trust-ledger"
)

// AuditEntry is one row of the audit log.
type AuditEntry struct {
	// Number counts the rows from 1.
	Number  int64
	Time    time.Time
	Author  string
	Action  Action
	Message string
	// Revision is the revision committed, or for overrides the one in force.
	Revision int64
	// Detail says in one line what changed.
	Detail string
}

// AuditQuery selects audit rows, with the rules of RevisionQuery. Search looks in
// messages and details.
type AuditQuery struct {
	Before int64
	Limit  int
	Author string
	Action Action
	Search string
}
