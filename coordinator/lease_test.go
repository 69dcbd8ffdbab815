package coordinator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/coordinator"
	"github.com/weirhq/weir/coordinator/memory"
	"github.com/weirhq/weir/quota"
)

const leaseTTL = 10 * time.Second

// leaseWait is the specification's TTL*(1+rho)/(1-rho) + margin, rounded up.
const leaseWait = leaseTTL + leaseTTL/999 + 501*time.Millisecond

func strictly(p *quota.Policy) *quota.Policy {
	p.Split.OnPartition = quota.Strict
	return p
}

// ninetyIn is a log of ninety.
func ninetyIn(window time.Duration) *quota.Policy {
	return &quota.Policy{ID: "log", Algorithm: quota.SlidingLog, Limit: quota.Limit{Capacity: 90 * quota.Token, Period: window}}
}

// leaseWorld is a machine, its ledger and regions that answer at once when asked.
type leaseWorld struct {
	*testing.T
	now      time.Time
	ledger   *memory.Ledger
	epoch    quota.Epoch
	machine  *coordinator.Machine
	policies []*quota.Policy
	revision int64
	regions  map[quota.Region]*leaseRegion
}

// leaseRegion holds records and a lease as the stores do, by a clock that is right.
type leaseRegion struct {
	name    quota.Region
	gen     string
	epoch   quota.Epoch
	records map[quota.ID]quota.Grant
	until   time.Time
	demand  float64
	hold    quota.Tokens
	lapses  int
}

func newLeaseWorld(t *testing.T, policies ...*quota.Policy) *leaseWorld {
	w := &leaseWorld{
		T: t, now: time.Unix(1_700_000_000, 0), ledger: memory.NewComplete(), policies: policies, revision: 1,
		regions: map[quota.Region]*leaseRegion{},
	}
	for _, name := range three {
		w.regions[name] = &leaseRegion{name: name, gen: "gen-" + string(name), records: map[quota.ID]quota.Grant{}}
	}
	w.lead()
	return w
}

// lead lets a new coordinator take over.
func (w *leaseWorld) lead() {
	w.Helper()
	s, err := w.ledger.Load(w.Context(), w.epoch)
	require.NoError(w, err)
	w.epoch = s.Epoch
	w.machine = coordinator.NewMachine(w.now, time.Minute, three, s)
	w.machine.SetLeaseTTL(leaseTTL)
	w.publish()
}

func (w *leaseWorld) publish() {
	w.Helper()
	require.NoError(w, w.machine.SetPolicies(w.now, w.revision, w.policies))
	w.commit()
}

// commit checks what every commit must keep: P within U, and the sum of U within the limit.
func (w *leaseWorld) commit() {
	w.Helper()
	b := w.machine.Pending()
	require.NoError(w, w.ledger.Commit(w.Context(), w.epoch, b))
	w.machine.Committed(b)
	for i := range b.Rows {
		require.True(w, b.Rows[i].Permanent().Within(b.Rows[i].Bound()), "P is above U: %+v", b.Rows[i])
		require.True(w, b.Rows[i].Perm.Within(b.Rows[i].Sent), "the permanent part is above the share: %+v", b.Rows[i])
	}
	for _, q := range w.machine.Status(w.now).Quotas {
		var sum, used quota.Share
		for _, s := range q.Regions {
			sum = sum.Add(s.Bound)
			u := w.regions[s.Region].effective(q.ID, w.now)
			require.True(w, u.Within(s.Bound), "%s uses %v of %v, its bound is %v", s.Region, u, q.ID, s.Bound)
			used = used.Add(u)
		}
		require.True(w, sum.Within(q.Limit.Share()), "bounds of %v sum to %v", q.ID, sum)
		require.True(w, used.Within(q.Limit.Share()), "shares of %v in use sum to %v", q.ID, used)
	}
}

// effective is what a region may use: the share, or what is permanent without a lease.
func (r *leaseRegion) effective(id quota.ID, now time.Time) quota.Share {
	g := r.records[id]
	if !r.until.After(now) {
		return g.Share.Min(g.Permanent)
	}
	return g.Share
}

// report returns the answer to a report of a region, which is not applied.
func (w *leaseWorld) report(name quota.Region) quota.Instructions {
	w.Helper()
	r := w.regions[name]
	rep := quota.Report{Region: name, Gen: r.gen, Epoch: r.epoch, SentAt: w.now.UnixMicro(), Revision: w.revision, Full: true}
	for id, g := range r.records {
		q := quota.QuotaReport{
			ID: id, Version: g.Version, Share: g.Share, Permanent: g.Permanent, Period: g.Limit.Period,
			Demand: r.demand, Total: r.demand, Hold: r.hold,
		}
		q.Drained = q.Hold <= g.Share.Capacity
		rep.Quotas = append(rep.Quotas, q)
	}
	require.NoError(w, w.machine.Report(w.now, rep))
	w.commit()
	return w.machine.Instructions(rep)
}

// apply follows an answer.
func (w *leaseWorld) apply(name quota.Region, in quota.Instructions) {
	w.Helper()
	r := w.regions[name]
	if in.Gen != r.gen || in.Epoch < r.epoch {
		return
	}
	r.epoch = in.Epoch
	if in.Lease.TTL > 0 {
		if until := time.UnixMicro(in.Lease.SentAt).Add(in.Lease.TTL); until.After(r.until) {
			if !r.until.After(w.now) {
				r.lapses++
			}
			r.until = until
		}
	}
	for _, g := range in.Grants {
		if g.Version > r.records[g.ID].Version {
			r.records[g.ID] = g
		}
	}
	w.commit()
}

// settle lets the named regions report until nothing is pending for them.
func (w *leaseWorld) settle(names ...quota.Region) {
	w.Helper()
	for range 20 {
		pending := false
		for _, name := range names {
			in := w.report(name)
			pending = pending || len(in.Grants) > 0 || in.Full
			w.apply(name, in)
		}
		if !pending {
			return
		}
	}
	require.Fail(w, "shares do not settle")
}

// pass lets a time pass in which the named regions report each second.
func (w *leaseWorld) pass(d time.Duration, names ...quota.Region) {
	w.Helper()
	for d > 0 {
		step := min(d, time.Second)
		d -= step
		w.now = w.now.Add(step)
		w.machine.Tick(w.now)
		w.commit()
		w.settle(names...)
	}
}

func (w *leaseWorld) bound(id string, name quota.Region) quota.Share {
	w.Helper()
	for _, q := range w.machine.Status(w.now).Quotas {
		for _, s := range q.Regions {
			if q.ID.Policy == id && s.Region == name {
				return s.Bound
			}
		}
	}
	require.Failf(w, "no such share", "%s in %s", id, name)
	return quota.Share{}
}

func (w *leaseWorld) row(id string, name quota.Region) coordinator.Row {
	w.Helper()
	s, err := w.ledger.Load(w.Context(), w.epoch)
	require.NoError(w, err)
	for i := range s.Rows {
		if s.Rows[i].ID.Policy == id && s.Rows[i].Region == name {
			w.epoch = s.Epoch
			w.lead()
			return s.Rows[i]
		}
	}
	require.Failf(w, "no such row", "%s in %s", id, name)
	return coordinator.Row{}
}

// floorOf is the floor of us-east, which is the region that is cut off.
func floorOf(p *quota.Policy) quota.Share { return coordinator.Floor(three, "us-east", p) }

func TestHoldHasNoLeases(t *testing.T) {
	hold := perMinute("api", 900)
	w := newLeaseWorld(t, hold, ninetyIn(5*time.Second))
	w.settle(three...)
	require.Zero(t, w.report("us-east").Lease)
	for _, g := range w.regions["us-east"].records {
		require.Equal(t, g.Share, g.Permanent)
	}
	before := w.bound("api", "us-east")
	w.pass(time.Hour, "eu-west", "ap-south")
	require.Equal(t, before, w.bound("api", "us-east"), "nothing is given away by time")
}

// TestHoldKeepsWhatALogDrains: time frees nothing in hold, not even entries that must
// have left.
func TestHoldKeepsWhatALogDrains(t *testing.T) {
	log := ninetyIn(5 * time.Second)
	w := newLeaseWorld(t, log)
	us, eu := w.regions["us-east"], w.regions["eu-west"]
	us.demand, eu.demand = 0.1, 30
	w.settle(three...)
	us.hold = us.records[quota.ID{Policy: "log"}].Share.Capacity
	w.pass(2*time.Minute, three...) // the split moves, and us-east does not drain
	held := w.bound("log", "us-east")
	require.Greater(t, held.Capacity, us.records[quota.ID{Policy: "log"}].Share.Capacity)
	w.pass(time.Hour, "eu-west", "ap-south")
	require.Equal(t, held, w.bound("log", "us-east"))
}

func TestStrictGrantsTheFloorForGood(t *testing.T) {
	p := strictly(perMinute("api", 900))
	w := newLeaseWorld(t, p)
	w.settle(three...)
	in := w.report("us-east")
	require.Equal(t, quota.Lease{SentAt: w.now.UnixMicro(), TTL: leaseTTL}, in.Lease)
	g := w.regions["us-east"].records[quota.ID{Policy: "api"}]
	require.Equal(t, floorOf(p), g.Permanent)
	require.True(t, g.Permanent.Within(g.Share))
	require.NotEqual(t, g.Share, g.Permanent)
}

// TestASilentRegionIsReclaimed follows one bucket through silence and return.
func TestASilentRegionIsReclaimed(t *testing.T) {
	p := strictly(perMinute("api", 900))
	w := newLeaseWorld(t, p)
	w.regions["eu-west"].demand = 14 // nearly all there is
	w.settle(three...)
	full := w.bound("api", "us-east")
	silentSince := w.now

	w.pass(leaseTTL, "eu-west", "ap-south")
	require.Equal(t, full, w.bound("api", "us-east"), "the lease is not over yet")
	due := w.machine.Next()
	require.WithinRange(t, due, silentSince.Add(leaseWait-5*time.Millisecond), silentSince.Add(leaseWait))
	w.now = due.Add(-time.Nanosecond)
	w.machine.Tick(w.now)
	require.Equal(t, full, w.bound("api", "us-east"))
	w.now = due
	w.machine.Tick(w.now)
	w.commit()
	floor := floorOf(p)
	require.Equal(t, floor, w.bound("api", "us-east"))
	w.settle("eu-west", "ap-south")
	used := w.bound("api", "us-east").Add(w.bound("api", "eu-west")).Add(w.bound("api", "ap-south"))
	require.Equal(t, p.Limit.Share(), used, "the others have what it left")

	// It returns: first it is told its new share, and only then gets a lease.
	in := w.report("us-east")
	require.Zero(t, in.Lease)
	require.Len(t, in.Grants, 1)
	require.Equal(t, floor, in.Grants[0].Share)
	require.Equal(t, floor, in.Grants[0].Permanent)
	require.Zero(t, w.report("us-east").Lease, "an answer that was lost has changed nothing")
	w.apply("us-east", in)
	in = w.report("us-east")
	require.Equal(t, leaseTTL, in.Lease.TTL)
	w.apply("us-east", in)
	require.Equal(t, 2, w.regions["us-east"].lapses, "one at the start")
	w.regions["us-east"].demand, w.regions["eu-west"].demand = 10, 1
	w.pass(2*time.Minute, three...)
	require.True(t, full.Within(w.bound("api", "us-east")), "demand brings the share back")
}

// TestALogIsFreedOneWindowLater: entries that the share admitted stay for a window.
func TestALogIsFreedOneWindowLater(t *testing.T) {
	p := strictly(ninetyIn(20 * time.Second))
	w := newLeaseWorld(t, p)
	w.settle(three...)
	full := w.bound("log", "us-east")
	w.pass(leaseWait, "eu-west", "ap-south")
	require.Zero(t, w.report("us-east").Lease, "no lease is renewed from the end of the old one on")
	w.pass(21100*time.Millisecond, "eu-west", "ap-south")
	require.Equal(t, full, w.bound("log", "us-east"))
	w.pass(100*time.Millisecond, "eu-west", "ap-south")
	require.Equal(t, floorOf(p), w.bound("log", "us-east"), "w(1+rho)/(1-rho) and 1.1 s later")
}

// TestALogWaitsAgainUnderTheNextLeader: how long it has waited is in no ledger.
func TestALogWaitsAgainUnderTheNextLeader(t *testing.T) {
	p := strictly(ninetyIn(20 * time.Second))
	w := newLeaseWorld(t, p)
	w.settle(three...)
	full := w.bound("log", "us-east")
	w.pass(leaseWait+15*time.Second, "eu-west", "ap-south")
	w.lead()
	w.settle("eu-west", "ap-south")
	w.pass(31*time.Second, "eu-west", "ap-south")
	require.Equal(t, full, w.bound("log", "us-east"))
	w.pass(time.Second, "eu-west", "ap-south")
	require.Equal(t, floorOf(p), w.bound("log", "us-east"))
}

// TestDrainNeverGoesUnderWhatIsPermanent: a region that comes back while its log
// drains lowers the bound to what it holds, and not below.
func TestDrainNeverGoesUnderWhatIsPermanent(t *testing.T) {
	p := strictly(ninetyIn(20 * time.Second))
	w := newLeaseWorld(t, p)
	w.settle(three...)
	us := w.regions["us-east"]
	full := w.bound("log", "us-east")
	w.pass(leaseWait, "eu-west", "ap-south")
	us.hold = full.Capacity - 5*quota.Token
	w.settle("us-east")
	require.Equal(t, us.hold, w.bound("log", "us-east").Capacity)
	us.hold = 0
	w.settle("us-east")
	require.Equal(t, floorOf(p), w.bound("log", "us-east"))
}

// TestReclaimedStaysReclaimedForTheNextLeader: who takes over knows from the ledger
// that the region must not get a lease yet, and waits again before it frees anything.
func TestReclaimedStaysReclaimedForTheNextLeader(t *testing.T) {
	p := strictly(perMinute("api", 900))
	w := newLeaseWorld(t, p)
	w.settle(three...)
	w.pass(leaseTTL-time.Second, "eu-west", "ap-south")
	w.lead()
	w.settle("eu-west", "ap-south")
	full := w.bound("api", "us-east")
	w.pass(leaseTTL, "eu-west", "ap-south")
	require.Equal(t, full, w.bound("api", "us-east"), "the last reply may have been that of the leader before")
	w.pass(time.Second, "eu-west", "ap-south")
	require.True(t, w.row("api", "us-east").Reclaimed)
	w.settle("eu-west", "ap-south")
	in := w.report("us-east") // of an earlier epoch
	require.Zero(t, in.Lease)
	w.apply("us-east", in)
	in = w.report("us-east")
	require.Zero(t, in.Lease)
	w.apply("us-east", in)
	require.Equal(t, leaseTTL, w.report("us-east").Lease.TTL)
	require.False(t, w.row("api", "us-east").Reclaimed)
}

// TestLostDataGetsTheReclaimedShare: a region that loses its data while its share is
// reclaimed is sent the smaller share, never the one it had.
func TestLostDataGetsTheReclaimedShare(t *testing.T) {
	p := strictly(perMinute("api", 900))
	w := newLeaseWorld(t, p)
	w.settle(three...)
	w.pass(leaseWait, "eu-west", "ap-south")
	us := w.regions["us-east"]
	us.gen, us.epoch, us.records = "another", 0, map[quota.ID]quota.Grant{}
	for range 4 {
		in := w.report("us-east")
		for _, g := range in.Grants {
			require.Equal(t, floorOf(p), g.Share)
		}
		if len(us.records) == 0 {
			require.Zero(t, in.Lease)
		}
		w.apply("us-east", in)
	}
	require.Len(t, us.records, 1)
	require.True(t, us.until.After(w.now))
}

// TestStrictCanBecomeHoldAndBack: the permanent part is that of the version a region
// holds, whatever the policy says meanwhile.
func TestStrictCanBecomeHoldAndBack(t *testing.T) {
	id := quota.ID{Policy: "api"}
	hold := perMinute("api", 900)
	w := newLeaseWorld(t, hold)
	w.settle(three...)
	full := w.bound("api", "us-east")
	w.policies, w.revision = []*quota.Policy{strictly(perMinute("api", 900))}, 2
	w.publish()
	w.settle("eu-west", "ap-south")
	w.pass(2*leaseWait, "eu-west", "ap-south")
	require.Equal(t, full, w.bound("api", "us-east"), "it was never told that anything depends on a lease")
	w.settle("us-east")
	require.Equal(t, floorOf(w.policies[0]), w.regions["us-east"].records[id].Permanent)

	w.policies, w.revision = []*quota.Policy{hold}, 3
	w.publish()
	require.Equal(t, leaseTTL, w.report("us-east").Lease.TTL, "it still holds a share that depends on a lease")
	w.settle(three...)
	require.Equal(t, w.regions["us-east"].records[id].Share, w.regions["us-east"].records[id].Permanent)
	w.machine.Tick(w.now)
	require.Zero(t, w.report("us-east").Lease)
	w.pass(2*leaseWait, "eu-west", "ap-south")
	require.Equal(t, full, w.bound("api", "us-east"))
}

// TestFloorsAreFreedByNoTime: a lower floor is one of a version that is acknowledged.
func TestFloorsAreFreedByNoTime(t *testing.T) {
	half, tenth := 50.0, 10.0
	p, lower := strictly(perMinute("api", 900)), strictly(perMinute("api", 900))
	p.Split.FloorPercent, lower.Split.FloorPercent = &half, &tenth
	w := newLeaseWorld(t, p)
	w.settle(three...)
	w.policies, w.revision = []*quota.Policy{lower}, 2
	w.publish()
	w.pass(4*leaseWait, "eu-west", "ap-south")
	require.Equal(t, floorOf(p), w.bound("api", "us-east"))
	w.settle("us-east")
	w.pass(time.Minute, three...)
	require.Equal(t, floorOf(lower), w.regions["us-east"].records[quota.ID{Policy: "api"}].Permanent)
}

// TestALostLedgerGivesNoLeaseOnWhatWasReclaimed: the regions report more than the
// limit, because one was reclaimed and nobody remembers that.
func TestALostLedgerGivesNoLeaseOnWhatWasReclaimed(t *testing.T) {
	p := strictly(perMinute("api", 900))
	w := newLeaseWorld(t, p)
	w.regions["eu-west"].demand = 14
	w.settle(three...)
	w.pass(leaseWait+time.Second, "eu-west", "ap-south")
	w.ledger = memory.NewAfter(1 << 20)
	s, err := w.ledger.Load(t.Context(), 0)
	require.NoError(t, err)
	w.epoch = s.Epoch
	w.machine = coordinator.NewMachine(w.now, time.Minute, three, s)
	w.machine.SetLeaseTTL(leaseTTL)
	require.NoError(t, w.machine.SetPolicies(w.now, 1, w.policies))
	used := func() (sum quota.Share) {
		for _, r := range w.regions {
			sum = sum.Add(r.effective(quota.ID{Policy: "api"}, w.now))
		}
		return sum
	}
	var all quota.Share
	for _, r := range w.regions {
		all = all.Add(r.records[quota.ID{Policy: "api"}].Share)
	}
	require.False(t, all.Within(p.Limit.Share()), "the shares that are held sum to %v", all)
	for i := range 20 {
		for _, name := range three {
			r := w.regions[name]
			rep := quota.Report{Region: name, Gen: r.gen, Epoch: r.epoch, SentAt: w.now.UnixMicro(), Revision: 1, Full: true}
			for id, g := range r.records {
				rep.Quotas = append(rep.Quotas, quota.QuotaReport{
					ID: id, Version: g.Version, Share: g.Share, Permanent: g.Permanent, Period: g.Limit.Period, Drained: true,
				})
			}
			require.NoError(t, w.machine.Report(w.now, rep))
			b := w.machine.Pending()
			require.NoError(t, w.ledger.Commit(t.Context(), w.epoch, b))
			w.machine.Committed(b)
			in := w.machine.Instructions(rep)
			r.epoch = in.Epoch
			if in.Lease.TTL > 0 {
				r.until = w.now.Add(in.Lease.TTL)
			}
			for _, g := range in.Grants {
				r.records[g.ID] = g
			}
			require.True(t, used().Within(p.Limit.Share()), "in use: %v", used())
		}
		w.now = w.now.Add(time.Second)
		w.machine.Tick(w.now)
		if i == 15 {
			require.True(t, w.regions["us-east"].until.After(w.now), "all is acknowledged, so leases are back")
		}
	}
}

func TestLeaseTTLIsChecked(t *testing.T) {
	_, err := coordinator.New(t.Context(), coordinator.Config{Regions: three, Ledger: memory.NewComplete(), LeaseTTL: time.Millisecond})
	require.ErrorIs(t, err, quota.ErrInvalid)
	require.ErrorContains(t, err, fmt.Sprint(coordinator.MinLeaseTTL))
}
