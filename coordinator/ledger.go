package coordinator

import (
	"context"

	"github.com/weirhq/weir/quota"
)

// Ledger keeps the upper bounds of what every region may be using. It is the
// only state of a coordinator that must survive it. Its methods are not called
// concurrently by one coordinator.
type Ledger interface {
	// Load begins a new epoch, above every earlier one and above the one given,
	// and returns what was committed under the earlier ones. From then on commits
	// of earlier epochs fail with quota.ErrFenced.
	Load(ctx context.Context, above quota.Epoch) (Snapshot, error)
	// Commit writes the batch whole or not at all. It fails with
	// quota.ErrFenced when a later epoch has begun. After any other error the
	// outcome is unknown; the rows are absolute values, so that the coordinator
	// can write them again.
	Commit(ctx context.Context, epoch quota.Epoch, b Batch) error
}

// Snapshot is what a ledger holds.
type Snapshot struct {
	Epoch quota.Epoch
	// Lossy says that commits of earlier epochs may be missing. Nothing grows
	// then until every configured region without a RegionRow has reported all it holds.
	Lossy   bool
	Regions []RegionRow
	Rows    []Row
}

// RegionRow says that a region is known: its ledger rows are complete.
type RegionRow struct {
	Region quota.Region
	// Gen is the id of the dataset it last reported from.
	Gen string
	// Lost is true while logs may hold entries that the region has forgotten with
	// an earlier dataset.
	Lost bool
}

// Row is what one region may be using of one quota.
type Row struct {
	ID     quota.ID
	Region quota.Region
	// Algorithm and Limit are those that Sent was granted under. All shares of
	// the row count their refill by Limit.Period.
	Algorithm quota.Algorithm
	Limit     quota.Limit
	Floor     quota.Share
	// Version is the last one issued, AckVersion the last one that the region
	// is known to have applied.
	Version, AckVersion int64
	// Acked is the most the region can be using of what it acknowledged: the
	// share, or more while a log drains. Before the first acknowledgement it is
	// the floor.
	Acked quota.Share
	// Sent is the share of Version, MaxSent the maximum of all versions since
	// AckVersion, component by component.
	Sent, MaxSent quota.Share
	// Perm is the permanent part of Sent: what the region may go on using when its
	// lease is over. PermAcked is that of what it acknowledged, PermMax the maximum
	// of all versions since AckVersion, component by component.
	Perm, PermAcked, PermMax quota.Share
	// Reclaimed marks a share that was taken back because the region's lease was
	// over. The region gets no other lease until it has acknowledged Version.
	Reclaimed bool
	// Drop marks a version that removes the region's record.
	Drop bool
}

// Bound returns U: the most that the region can be using or entitled to.
func (r Row) Bound() quota.Share { return r.Acked.Max(r.MaxSent) }

// Permanent returns P: the most that the region can be using once its lease is over
// and what a log admitted under the lease has left its window.
func (r Row) Permanent() quota.Share { return r.PermAcked.Max(r.PermMax) }

// RowKey names a row.
type RowKey struct {
	ID     quota.ID
	Region quota.Region
}

// Batch is what changed since the last commit, as absolute values.
type Batch struct {
	Rows        []Row
	DropRows    []RowKey
	Regions     []RegionRow
	DropRegions []quota.Region

	rows    []stamped
	regions []*region
}

// stamped remembers which state of a row went into a batch.
type stamped struct {
	row     *row
	changes uint64
}

// Empty reports whether there is nothing to write.
func (b Batch) Empty() bool {
	return len(b.Rows)+len(b.DropRows)+len(b.Regions)+len(b.DropRegions) == 0
}
