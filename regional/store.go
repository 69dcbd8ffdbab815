package regional

import (
	"context"
	"time"

	"github.com/weirhq/weir/quota"
)

// Store decides attempts atomically, one stripe at a time, by its own clock.
// All methods may be called concurrently.
type Store interface {
	// Acquire charges every entry of the attempt, or none. It may answer after
	// the caller has stopped waiting; the engine then settles what it charged.
	// An error means that the outcome is unknown. Errors of interest:
	// quota.ErrUninitialised, quota.ErrOverloaded, quota.ErrUnavailable.
	Acquire(ctx context.Context, a quota.Attempt) (quota.Outcome, error)
	// Refund gives tokens back. It never lifts a level above its capacity.
	Refund(ctx context.Context, stripe int, refunds []quota.Refund) error
}

// Dataset is the region's shared state as its agent sees it: region records,
// share records, and the demand that the nodes add up.
type Dataset interface {
	State(ctx context.Context) (quota.DatasetState, error)
	// Initialise writes a region record with gen on each stripe that has none,
	// and leaves the others as they are. A dataset that is not fresh may have
	// lost what it had spent: its stripes start empty-handed and admit nothing
	// under split limits for a short while. With the stripes in disagreement
	// about gen, all of them start anew under it.
	Initialise(ctx context.Context, gen string, fresh bool) error
	// Apply writes grants that are newer than what each stripe holds and raises
	// the epoch, on every stripe. With no grants it only raises the epoch. It
	// fails with quota.ErrFenced when the dataset has another gen or a newer epoch.
	// Grants of tracked keys are applied before those of policies.
	Apply(ctx context.Context, epoch quota.Epoch, gen string, grants []quota.Grant) error
	// Held reports what every stripe has applied of these policies: the lowest
	// version where they differ, version zero where a record is missing. Drained
	// and Hold follow from the instant of the record's last shrink, so that they
	// survive a change of agent. Policies without a record are left out or
	// reported with version zero.
	Held(ctx context.Context, policyIDs []string) ([]quota.QuotaReport, error)
	// Clocks returns the clock of every stripe, in microseconds.
	Clocks(ctx context.Context) ([]int64, error)
	// Renew extends the lease of every stripe to ttl after what its clock showed when
	// the report was sent, and never shortens it. Where the lease was over, the lapse
	// first enters the share records of these policies; lapsed says that there had
	// been a lease before. It is refused as Apply is.
	Renew(ctx context.Context, epoch quota.Epoch, gen string, sent []int64, ttl time.Duration, policyIDs []string) (lapsed bool, err error)
	// LeaseLeft returns how long the region's lease lasts yet, zero when it is over.
	LeaseLeft(ctx context.Context) (time.Duration, error)
	// HeldKeys reports what is applied of tracked keys; those without a share of their
	// own are left out. Of a log, Hold is the larger of its share and its entries, and
	// Drained whether that is the share.
	HeldKeys(ctx context.Context, ids []quota.ID) ([]quota.QuotaReport, error)
	// TrackedKeys lists the keys that have a share of their own.
	TrackedKeys(ctx context.Context) ([]quota.ID, error)
	AddDemand(ctx context.Context, demands []quota.Demand) error
	// TakeDemand returns what was added since the last take and starts a new window.
	TakeDemand(ctx context.Context) (quota.DemandWindow, error)
	// HoldAgent takes or prolongs the agent lock for node. A ttl of zero lets it go.
	HoldAgent(ctx context.Context, node string, ttl time.Duration) (bool, error)
}

// Coordinator is the far side of the region's only outward link.
type Coordinator interface {
	Report(ctx context.Context, r quota.Report) (quota.Instructions, error)
}
