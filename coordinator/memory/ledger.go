package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// Ledger is a coordinator.Ledger in memory. It is safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	lossy   bool
	epoch   quota.Epoch
	rows    map[coordinator.RowKey]coordinator.Row
	regions map[quota.Region]coordinator.RegionRow
}

// New returns an empty ledger. What it does not hold may have been lost with an
// earlier process. Its epochs begin above the time of day in milliseconds, so that
// no two processes have one in common: regions may still be sent what an earlier
// process granted, and must be able to tell.
func New() *Ledger { return NewAfter(quota.Epoch(time.Now().UnixMilli())) }

// NewAfter is New with epochs that begin above the one given.
func NewAfter(epoch quota.Epoch) *Ledger {
	return &Ledger{
		lossy:   true,
		epoch:   epoch,
		rows:    map[coordinator.RowKey]coordinator.Row{},
		regions: map[quota.Region]coordinator.RegionRow{},
	}
}

// NewComplete returns an empty ledger for regions that never had another
// coordinator: all of it starts in one process, with empty stores.
func NewComplete() *Ledger {
	l := NewAfter(0)
	l.lossy = false
	return l
}

// Load implements coordinator.Ledger.
func (l *Ledger) Load(_ context.Context, above quota.Epoch) (coordinator.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch = max(l.epoch, above) + 1
	s := coordinator.Snapshot{Epoch: l.epoch, Lossy: l.lossy}
	for _, r := range l.regions {
		s.Regions = append(s.Regions, r)
	}
	slices.SortFunc(s.Regions, func(a, b coordinator.RegionRow) int { return cmp.Compare(a.Region, b.Region) })
	for _, row := range l.rows {
		s.Rows = append(s.Rows, row)
	}
	slices.SortFunc(s.Rows, func(a, b coordinator.Row) int {
		return cmp.Or(cmp.Compare(a.ID.Policy, b.ID.Policy), cmp.Compare(a.ID.Key, b.ID.Key), cmp.Compare(a.Region, b.Region))
	})
	return s, nil
}

// Commit implements coordinator.Ledger.
func (l *Ledger) Commit(_ context.Context, epoch quota.Epoch, b coordinator.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch != l.epoch {
		return fmt.Errorf("commit of epoch %d, the ledger is at %d: %w", epoch, l.epoch, quota.ErrFenced)
	}
	for i := range b.Rows {
		l.rows[coordinator.RowKey{ID: b.Rows[i].ID, Region: b.Rows[i].Region}] = b.Rows[i]
	}
	for _, key := range b.DropRows {
		delete(l.rows, key)
	}
	for _, r := range b.Regions {
		l.regions[r.Region] = r
	}
	for _, name := range b.DropRegions {
		delete(l.regions, name)
	}
	return nil
}
