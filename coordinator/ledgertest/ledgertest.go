package ledgertest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/quota"
)

// New makes a fresh, empty ledger that has lost nothing, and returns what opens it
// for one more coordinator.
type New func(t *testing.T) (open func() coordinator.Ledger)

// Run runs the suite, each test on a ledger of its own.
func Run(t *testing.T, newLedger New) {
	for _, tc := range []struct {
		name string
		run  func(*bundle)
	}{
		{"Empty", testEmpty},
		{"EveryFieldIsKept", testEveryField},
		{"RowsAreReplaced", testReplaced},
		{"RowsAreDropped", testDropped},
		{"KeysAreLiteral", testKeys},
		{"Regions", testRegions},
		{"EpochsRise", testEpochs},
		{"EpochAboveTheOneGiven", testAbove},
		{"EarlierEpochIsFenced", testFenced},
		{"EpochThatNeverBeganIsFenced", testFuture},
		{"CommitTwice", testTwice},
		{"CancelledCommitIsWholeOrNothing", testCancelled},
		{"ManyRows", testMany},
		{"NothingIsShared", testNothingIsShared},
		{"OfManyLoadsOneCanCommit", testManyLoads},
		{"CommitsRaceWithLoad", testRace},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.run(&bundle{T: t, open: newLedger(t)})
		})
	}
}

// bundle is what one test works with.
type bundle struct {
	*testing.T
	open func() coordinator.Ledger
}

// load opens the ledger and begins an epoch.
func (b *bundle) load() (coordinator.Ledger, coordinator.Snapshot) {
	b.Helper()
	l := b.open()
	s, err := l.Load(b.Context(), 0)
	require.NoError(b, err)
	require.Positive(b, s.Epoch)
	require.False(b, s.Lossy)
	return l, s
}

func (b *bundle) commit(l coordinator.Ledger, epoch quota.Epoch, batch coordinator.Batch) {
	b.Helper()
	require.NoError(b, l.Commit(b.Context(), epoch, batch))
}

// requireRows looks at the ledger through another coordinator, which ends the epoch.
func (b *bundle) requireRows(want ...coordinator.Row) {
	b.Helper()
	_, s := b.load()
	require.ElementsMatch(b, want, s.Rows)
}

func row(policy string, region quota.Region, version int64) coordinator.Row {
	share := quota.Share{Capacity: quota.Tokens(version) * quota.Token, Refill: quota.Token}
	return coordinator.Row{
		ID: quota.ID{Policy: policy}, Region: region, Algorithm: quota.TokenBucket,
		Limit:   quota.Limit{Capacity: 100 * quota.Token, Refill: 10 * quota.Token, Period: time.Second},
		Version: version, Sent: share, MaxSent: share,
	}
}

func rows(r ...coordinator.Row) coordinator.Batch { return coordinator.Batch{Rows: r} }

func key(r coordinator.Row) coordinator.RowKey { return coordinator.RowKey{ID: r.ID, Region: r.Region} }

func testEmpty(b *bundle) {
	l, s := b.load()
	require.Empty(b, s.Rows)
	require.Empty(b, s.Regions)
	b.commit(l, s.Epoch, coordinator.Batch{})
	b.requireRows()
}

func testEveryField(b *bundle) {
	l, s := b.load()
	distinct := coordinator.Row{
		ID: quota.ID{Policy: "a/b:c.d-e_f", Key: "k"}, Region: "us-east", Algorithm: quota.TokenBucket,
		Limit: quota.Limit{Capacity: 1, Refill: 2, Period: 3 * time.Microsecond},
		Floor: quota.Share{Capacity: 4, Refill: 5}, Version: 7, AckVersion: 6,
		Acked: quota.Share{Capacity: 8, Refill: 9}, Sent: quota.Share{Capacity: 10, Refill: 11},
		MaxSent: quota.Share{Capacity: 12, Refill: 13}, Perm: quota.Share{Capacity: 14, Refill: 15},
		PermAcked: quota.Share{Capacity: 16, Refill: 17}, PermMax: quota.Share{Capacity: 18, Refill: 19}, Drop: true,
	}
	most := quota.Share{Capacity: quota.MaxTokens, Refill: 1 << 60}
	largest := coordinator.Row{
		ID: quota.ID{Policy: "p"}, Region: "eu", Algorithm: quota.SlidingLog,
		Limit: quota.Limit{Capacity: quota.MaxTokens, Refill: quota.MaxTokens, Period: 8760*time.Hour + time.Microsecond},
		Floor: most, Version: math.MaxInt64, AckVersion: math.MaxInt64 - 1, Acked: most, Sent: most, MaxSent: most,
		Perm: most, PermAcked: most, PermMax: most, Reclaimed: true,
	}
	// What a region reported that no policy names.
	smallest := coordinator.Row{ID: quota.ID{Policy: "p"}, Region: "us", Version: 1}
	b.commit(l, s.Epoch, rows(distinct, largest, smallest))
	b.requireRows(distinct, largest, smallest)
}

func testReplaced(b *bundle) {
	l, s := b.load()
	b.commit(l, s.Epoch, rows(row("a", "us", 1), row("a", "eu", 1), row("b", "us", 1)))
	changed := row("a", "us", 2)
	changed.Algorithm, changed.AckVersion, changed.Drop = quota.SlidingLog, 1, true
	changed.Limit = quota.Limit{Capacity: quota.Token, Period: time.Minute}
	changed.Floor, changed.Acked, changed.MaxSent = quota.Share{Capacity: 1}, quota.Share{Capacity: 2}, quota.Share{Refill: 3}
	changed.Perm, changed.PermAcked, changed.PermMax = quota.Share{Capacity: 4}, quota.Share{Refill: 5}, quota.Share{Capacity: 6}
	changed.Reclaimed = true
	b.commit(l, s.Epoch, rows(changed))
	b.requireRows(changed, row("a", "eu", 1), row("b", "us", 1))
}

func testDropped(b *bundle) {
	l, s := b.load()
	b.commit(l, s.Epoch, rows(row("a", "us", 1), row("a", "eu", 1), row("b", "us", 1)))
	b.commit(l, s.Epoch, coordinator.Batch{
		Rows:     []coordinator.Row{row("a", "eu", 2)},
		DropRows: []coordinator.RowKey{key(row("a", "us", 1)), key(row("never", "us", 1))},
	})
	b.requireRows(row("a", "eu", 2), row("b", "us", 1))
}

func testKeys(b *bundle) {
	l, s := b.load()
	var all []coordinator.Row
	for _, k := range []string{"", " ", "\x00", "\xff\xfe", `';--\`, "ü", "u\u0308", "k", "K", "k\x00"} {
		r := row("a", "us", 1)
		r.ID.Key = k
		all = append(all, r)
	}
	b.commit(l, s.Epoch, rows(all...))
	b.commit(l, s.Epoch, coordinator.Batch{DropRows: []coordinator.RowKey{key(all[2])}})
	b.requireRows(append(all[:2:2], all[3:]...)...)
}

func testRegions(b *bundle) {
	l, s := b.load()
	us, eu, ap := coordinator.RegionRow{Region: "us", Gen: "g1"}, coordinator.RegionRow{Region: "eu", Gen: "g2", Lost: true}, coordinator.RegionRow{Region: "ap"}
	b.commit(l, s.Epoch, coordinator.Batch{Regions: []coordinator.RegionRow{us, eu, ap}})
	l, s = b.load()
	require.ElementsMatch(b, []coordinator.RegionRow{us, eu, ap}, s.Regions)

	us.Lost, us.Gen, eu.Lost = true, "g3", false
	b.commit(l, s.Epoch, coordinator.Batch{Regions: []coordinator.RegionRow{us, eu}, DropRegions: []quota.Region{"ap", "never"}})
	_, s = b.load()
	require.ElementsMatch(b, []coordinator.RegionRow{us, eu}, s.Regions)
}

func testEpochs(b *bundle) {
	l := b.open()
	var last quota.Epoch
	for range 3 { // the same coordinator and others
		for _, l := range []coordinator.Ledger{l, b.open()} {
			s, err := l.Load(b.Context(), 0)
			require.NoError(b, err)
			require.Greater(b, s.Epoch, last)
			last = s.Epoch
		}
	}
}

func testAbove(b *bundle) {
	l, s := b.load()
	b.commit(l, s.Epoch, rows(row("a", "us", 1)))
	above := s.Epoch + 1000
	s, err := l.Load(b.Context(), above)
	require.NoError(b, err)
	require.Greater(b, s.Epoch, above)
	require.Equal(b, []coordinator.Row{row("a", "us", 1)}, s.Rows)
	b.commit(l, s.Epoch, rows(row("a", "us", 2)))
}

func testFenced(b *bundle) {
	old, s1 := b.load()
	b.commit(old, s1.Epoch, rows(row("a", "us", 1)))
	next, s2 := b.load()
	require.Equal(b, []coordinator.Row{row("a", "us", 1)}, s2.Rows)

	require.ErrorIs(b, old.Commit(b.Context(), s1.Epoch, coordinator.Batch{
		Rows:     []coordinator.Row{row("a", "us", 2), row("b", "us", 1)},
		DropRows: []coordinator.RowKey{key(row("a", "us", 1))},
		Regions:  []coordinator.RegionRow{{Region: "us", Gen: "g"}},
	}), quota.ErrFenced)
	// Nor can it by the epoch of its successor.
	b.commit(next, s2.Epoch, rows(row("a", "eu", 1)))
	require.ErrorIs(b, old.Commit(b.Context(), s1.Epoch, coordinator.Batch{DropRegions: []quota.Region{"us"}}), quota.ErrFenced)
	_, s3 := b.load()
	require.ElementsMatch(b, []coordinator.Row{row("a", "us", 1), row("a", "eu", 1)}, s3.Rows)
	require.Empty(b, s3.Regions)
}

func testFuture(b *bundle) {
	l, s := b.load()
	require.ErrorIs(b, l.Commit(b.Context(), s.Epoch+1, rows(row("a", "us", 1))), quota.ErrFenced)
	b.commit(l, s.Epoch, rows(row("b", "us", 1)))
	b.requireRows(row("b", "us", 1))
}

func testTwice(b *bundle) {
	l, s := b.load()
	b.commit(l, s.Epoch, rows(row("b", "us", 1)))
	batch := coordinator.Batch{
		Rows: []coordinator.Row{row("a", "us", 3)}, DropRows: []coordinator.RowKey{key(row("b", "us", 1))},
		Regions: []coordinator.RegionRow{{Region: "us", Gen: "g"}}, DropRegions: []quota.Region{"eu"},
	}
	b.commit(l, s.Epoch, batch)
	b.commit(l, s.Epoch, batch)
	b.requireRows(row("a", "us", 3))
}

// testCancelled: whatever the outcome, it is that of the whole batch, and the
// coordinator can go on.
func testCancelled(b *bundle) {
	l, s := b.load()
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	err := l.Commit(ctx, s.Epoch, rows(row("a", "us", 1), row("b", "us", 1)))
	if err != nil {
		require.NotErrorIs(b, err, quota.ErrFenced)
	}
	b.commit(l, s.Epoch, rows(row("c", "us", 1)))
	_, after := b.load()
	require.Contains(b, []int{1, 3}, len(after.Rows))
	require.Contains(b, after.Rows, row("c", "us", 1))
}

func testMany(b *bundle) {
	const policies = 1000
	l, s := b.load()
	var all []coordinator.Row
	for i := range policies {
		for _, region := range []quota.Region{"ap", "eu", "us"} {
			all = append(all, row(fmt.Sprintf("p%04d", i), region, int64(i+1)))
		}
	}
	b.commit(l, s.Epoch, rows(all...))
	_, s = b.load()
	require.ElementsMatch(b, all, s.Rows)
}

func testNothingIsShared(b *bundle) {
	l, s := b.load()
	batch := coordinator.Batch{Rows: []coordinator.Row{row("a", "us", 1)}, Regions: []coordinator.RegionRow{{Region: "us", Gen: "g"}}}
	b.commit(l, s.Epoch, batch)
	batch.Rows[0].Version, batch.Regions[0].Gen = 9, "other"
	_, s = b.load()
	require.Equal(b, []coordinator.Row{row("a", "us", 1)}, s.Rows)
	s.Rows[0].Version = 9
	_, s = b.load()
	require.Equal(b, []coordinator.Row{row("a", "us", 1)}, s.Rows)
	require.Equal(b, "g", s.Regions[0].Gen)
}

func testManyLoads(b *bundle) {
	const coordinators = 6
	var (
		wg     sync.WaitGroup
		epochs [coordinators]quota.Epoch
		errs   [coordinators]error
		opened [coordinators]coordinator.Ledger
	)
	for i := range coordinators {
		opened[i] = b.open()
		wg.Go(func() {
			s, err := opened[i].Load(b.Context(), 0)
			epochs[i], errs[i] = s.Epoch, err
		})
	}
	wg.Wait()
	last, owner := quota.Epoch(0), 0
	seen := map[quota.Epoch]bool{}
	for i := range coordinators {
		if errs[i] != nil { // it was overtaken before it had read everything
			require.ErrorIs(b, errs[i], quota.ErrFenced)
			continue
		}
		require.False(b, seen[epochs[i]], "two have epoch %d", epochs[i])
		seen[epochs[i]] = true
		if epochs[i] > last {
			last, owner = epochs[i], i
		}
	}
	for i := range coordinators {
		err := opened[i].Commit(b.Context(), epochs[i], rows(row("a", "us", int64(i+1))))
		if i == owner {
			require.NoError(b, err)
		} else {
			require.ErrorIs(b, err, quota.ErrFenced)
		}
	}
	b.requireRows(row("a", "us", int64(owner+1)))
}

// testRace: what the successor reads is all that its predecessor was told is
// committed, and stays so.
func testRace(b *bundle) {
	old, s := b.load()
	reached := make(chan int64, 1)
	go func() {
		var last int64
		for version := int64(1); ; version++ {
			if err := old.Commit(b.Context(), s.Epoch, rows(row("a", "us", version), row("b", "us", version))); err != nil {
				reached <- last
				return
			}
			last = version
		}
	}()
	_, s1 := b.load()
	last := <-reached
	_, s2 := b.load()
	require.Equal(b, s1.Rows, s2.Rows)
	if last == 0 {
		require.Empty(b, s1.Rows)
		return
	}
	require.Equal(b, []coordinator.Row{row("a", "us", last), row("b", "us", last)}, s1.Rows)
}
