package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/postgres"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/quota"
)

var fuzzRegions = []quota.Region{"ap", "eu", "us"}

// fuzz is coordinators of several epochs on one database, all of which go on, and
// regions that answer to any of them. All follows from the seed but for what
// the database does with statements that meet.
type fuzz struct {
	*testing.T
	rng     *rand.Rand
	pool    *pgxpool.Pool
	now     time.Time
	nodes   []*node // the last one leads
	regions []*fuzzRegion
	// loaded is what the leader has read; fenced counts refused commits.
	loaded         map[coordinator.RowKey]coordinator.Row
	fenced, grants int
	// noFence is a ledger that lets earlier epochs commit. The checks must notice.
	noFence bool
}

// node is a coordinator without clock.
type node struct {
	machine *coordinator.Machine
	ledger  *postgres.Ledger
	epoch   quota.Epoch
	// held is a batch that a paused process is about to commit.
	held *coordinator.Batch
}

type fuzzRegion struct {
	name   quota.Region
	epoch  quota.Epoch
	sent   int64
	demand float64
	shares map[quota.ID]quota.Grant
}

func fuzzPolicies() []*quota.Policy {
	log := &quota.Policy{
		ID: "log", Scope: quota.Global, Algorithm: quota.SlidingLog, Limit: quota.Limit{Capacity: 300 * quota.Token, Period: time.Minute},
	}
	return append(split(), log)
}

// takeOver lets a new coordinator lead. Those before it are not told.
func (f *fuzz) takeOver() {
	n := &node{ledger: postgres.NewLedger(postgres.Config{Pool: f.pool})}
	racing := make(chan error, 1)
	var batch coordinator.Batch
	var old *node
	if len(f.nodes) > 0 && f.rng.IntN(2) == 0 { // the predecessor is just committing
		old = f.nodes[len(f.nodes)-1]
		batch = old.machine.Pending()
		go func() { racing <- old.ledger.Commit(f.Context(), old.epoch, batch) }()
	}
	s := load(f.T, n.ledger, 0)
	require.False(f, s.Lossy)
	n.epoch, n.machine = s.Epoch, coordinator.NewMachine(f.now, time.Second, fuzzRegions, s)
	require.NoError(f, n.machine.SetPolicies(f.now, 1, fuzzPolicies()))
	f.loaded = map[coordinator.RowKey]coordinator.Row{}
	for _, r := range s.Rows {
		f.loaded[coordinator.RowKey{ID: r.ID, Region: r.Region}] = r
	}
	f.nodes = append(f.nodes, n)
	if old != nil {
		f.concluded(old, batch, <-racing)
	}
	if len(f.nodes) > 3 {
		f.nodes = f.nodes[1:]
	}
}

func (f *fuzz) concluded(n *node, b coordinator.Batch, err error) {
	switch {
	case err == nil:
		n.machine.Committed(b)
		return
	case errors.Is(err, quota.ErrFenced):
		f.fenced++
		require.NotSame(f, n, f.nodes[len(f.nodes)-1], "the leader is fenced")
		if f.noFence {
			f.commitAnyway(n, b)
			n.machine.Committed(b)
			return
		}
	default:
		require.NoError(f, err)
	}
	n.machine.Failed(b)
}

// commitAnyway puts the ledger's epoch back for one commit.
func (f *fuzz) commitAnyway(n *node, b coordinator.Batch) {
	var epoch quota.Epoch
	var sequence int64
	require.NoError(f, f.pool.QueryRow(f.Context(), `SELECT epoch, sequence FROM ledger_state`).Scan(&epoch, &sequence))
	set := func(epoch quota.Epoch, sequence int64) {
		_, err := f.pool.Exec(f.Context(), `UPDATE ledger_state SET epoch = $1, sequence = $2`, epoch, sequence)
		require.NoError(f, err)
	}
	// Another ledger of the same epoch, which expects nothing of its numbers.
	set(n.epoch-1, 0)
	again := postgres.NewLedger(postgres.Config{Pool: f.pool})
	require.Equal(f, n.epoch, load(f.T, again, 0).Epoch)
	require.NoError(f, again.Commit(f.Context(), n.epoch, b))
	set(epoch, sequence)
}

// commit writes what is pending, or what was pending when the process was paused.
func (f *fuzz) commit(n *node) {
	var b coordinator.Batch
	if n.held != nil {
		b, n.held = *n.held, nil
	} else if b = n.machine.Pending(); f.rng.IntN(6) == 0 && !b.Empty() {
		n.held = &b
		return
	}
	if !b.Empty() {
		f.concluded(n, b, n.ledger.Commit(f.Context(), n.epoch, b))
	}
}

func (f *fuzz) exchange(n *node, r *fuzzRegion) {
	if n.held != nil {
		return // it is paused
	}
	r.sent++
	rep := quota.Report{Region: r.name, Gen: "gen-" + string(r.name), Epoch: r.epoch, SentAt: r.sent, Revision: 1, Full: true}
	for _, p := range fuzzPolicies() {
		id := quota.ID{Policy: p.ID}
		q := quota.QuotaReport{ID: id, Demand: r.demand, Total: r.demand, Drained: true, Share: coordinator.Floor(fuzzRegions, r.name, p), Period: p.Limit.Period}
		if g, ok := r.shares[id]; ok {
			q.Version, q.Share, q.Period = g.Version, g.Share, g.Limit.Period
		}
		rep.Quotas = append(rep.Quotas, q)
	}
	if err := n.machine.Report(f.now, rep); err != nil {
		require.ErrorIs(f, err, quota.ErrFenced)
		return
	}
	f.commit(n)
	if n.held != nil || f.rng.IntN(10) == 0 {
		return // no answer, or a lost one
	}
	answer := n.machine.Instructions(rep)
	if answer.Epoch < r.epoch {
		return
	}
	r.epoch = answer.Epoch
	for _, g := range answer.Grants {
		if g.Version > r.shares[g.ID].Version {
			r.shares[g.ID] = g
			f.grants++
		}
	}
}

func (f *fuzz) step() error {
	f.now = f.now.Add(time.Duration(f.rng.Int64N(int64(700 * time.Millisecond))))
	n := f.nodes[len(f.nodes)-1]
	if f.rng.IntN(4) == 0 {
		n = f.nodes[f.rng.IntN(len(f.nodes))]
	}
	switch p := f.rng.IntN(100); {
	case p < 6:
		f.takeOver()
	case p < 20:
		f.regions[f.rng.IntN(len(f.regions))].demand = f.rng.Float64() * 200
	case p < 30:
		n.machine.Tick(f.now)
		f.commit(n)
	case n.held != nil:
		f.commit(n)
	default:
		f.exchange(n, f.regions[f.rng.IntN(len(f.regions))])
	}
	return f.check()
}

// check looks at the state that is committed, and at what the regions hold.
func (f *fuzz) check() error {
	limits := map[string]quota.Share{}
	for _, p := range fuzzPolicies() {
		limits[p.ID] = p.Limit.Share()
	}
	found, err := f.pool.Query(f.Context(), `SELECT policy, sum(greatest(acked_capacity, max_sent_capacity))::bigint, sum(greatest(acked_refill, max_sent_refill))::bigint
		FROM ledger GROUP BY policy`)
	require.NoError(f, err)
	var (
		policy string
		sum    quota.Share
	)
	_, err = pgx.ForEachRow(found, []any{&policy, &sum.Capacity, &sum.Refill}, func() error {
		if !sum.Within(limits[policy]) {
			return fmt.Errorf("%s: the ledger gives %+v of %+v", policy, sum, limits[policy])
		}
		return nil
	})
	if err != nil {
		return err
	}
	for id, most := range limits {
		var held quota.Share
		for _, r := range f.regions {
			held = held.Add(r.shares[quota.ID{Policy: id}].Share)
		}
		if !held.Within(most) {
			return fmt.Errorf("%s: regions hold %+v of %+v", id, held, most)
		}
	}
	return f.checkRows()
}

// checkRows: what an earlier epoch wrote is as the leader has read it.
func (f *fuzz) checkRows() error {
	leader := f.nodes[len(f.nodes)-1].epoch
	found, err := f.pool.Query(f.Context(), `SELECT policy, region, epoch, version, ack_version, acked_capacity, acked_refill,
		sent_capacity, sent_refill, max_sent_capacity, max_sent_refill,
		perm_capacity, perm_refill, perm_acked_capacity, perm_acked_refill, perm_max_capacity, perm_max_refill FROM ledger`)
	require.NoError(f, err)
	var (
		r     coordinator.Row
		epoch quota.Epoch
	)
	_, err = pgx.ForEachRow(found, []any{
		&r.ID.Policy, &r.Region, &epoch, &r.Version, &r.AckVersion, &r.Acked.Capacity, &r.Acked.Refill,
		&r.Sent.Capacity, &r.Sent.Refill, &r.MaxSent.Capacity, &r.MaxSent.Refill,
		&r.Perm.Capacity, &r.Perm.Refill, &r.PermAcked.Capacity, &r.PermAcked.Refill, &r.PermMax.Capacity, &r.PermMax.Refill,
	}, func() error {
		want := f.loaded[coordinator.RowKey{ID: r.ID, Region: r.Region}]
		want.Algorithm, want.Limit, want.Floor, want.Drop = 0, quota.Limit{}, quota.Share{}, false
		if epoch != leader && want != r {
			return fmt.Errorf("%s of %s: epoch %d wrote after %d had begun", r.ID.Policy, r.Region, epoch, leader)
		}
		return nil
	})
	return err
}

func schedules(n int) int {
	if s, err := strconv.Atoi(os.Getenv("WEIR_FUZZ_SCHEDULES")); err == nil {
		return s
	}
	return n
}

// play runs one schedule on an empty ledger and returns what the checks found.
func play(t *testing.T, p *pgxpool.Pool, seed uint64, noFence bool) (*fuzz, error) {
	t.Helper()
	_, err := p.Exec(t.Context(), `TRUNCATE ledger, ledger_regions; UPDATE ledger_state SET epoch = 0, sequence = 0`)
	require.NoError(t, err)
	f := &fuzz{T: t, rng: rand.New(rand.NewPCG(seed, 3)), pool: p, now: time.Unix(1_700_000_000, 0), noFence: noFence}
	for _, name := range fuzzRegions {
		f.regions = append(f.regions, &fuzzRegion{name: name, shares: map[quota.ID]quota.Grant{}, demand: f.rng.Float64() * 200})
	}
	f.takeOver()
	for range 150 {
		if err := f.step(); err != nil {
			return f, err
		}
	}
	return f, nil
}

// TestNoScheduleOfLeadersBreaksTheLimit: coordinators of several epochs report,
// commit, pause and commit later, on a real database.
func TestNoScheduleOfLeadersBreaksTheLimit(t *testing.T) {
	t.Parallel()
	p := pool(t, testenv.Postgres(t))
	n := schedules(15)
	var fenced, grants int
	for seed := range uint64(n) {
		f, err := play(t, p, seed, false)
		require.NoError(t, err, "seed %d", seed)
		fenced, grants = fenced+f.fenced, grants+f.grants
	}
	require.Greater(t, fenced, n, "too quiet to see anything")
	require.Greater(t, grants, 10*n)
	t.Logf("%d commits fenced, %d grants applied", fenced, grants)
}

func TestTheSchedulesNoticeAMissingFence(t *testing.T) {
	t.Parallel()
	p := pool(t, testenv.Postgres(t))
	for seed := range uint64(schedules(15)) {
		if _, err := play(t, p, seed, true); err != nil {
			t.Logf("noticed by schedule %d: %v", seed, err)
			return
		}
	}
	t.Error("no schedule notices it")
}
