package coordinator

import (
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

const (
	// silentAfter is how long a region may not report before its share is left as it is.
	silentAfter = 5 * time.Second
	// messageLife bounds how long a grant can be under way. The record of a
	// removed policy stays in the regions that long, with a share of nothing, so
	// that a late grant meets a newer version.
	messageLife = time.Minute
	// removalGrace is how long a region that has not reported the revision which
	// removed a policy may go on using its share.
	removalGrace = time.Minute
)

// Machine is the coordinator without clock, network or storage: time, reports,
// policies and the results of commits go in; ledger rows and grants come out. The
// same inputs give the same outputs. It is not safe for concurrent use.
type Machine struct {
	interval time.Duration
	regions  []*region
	byName   map[quota.Region]*region

	epoch quota.Epoch
	lossy bool
	// recovering is true until every region that the ledger does not know of has
	// reported all it holds. Nothing is granted meanwhile.
	recovering bool
	// recovered is when that ended, if the regions had followed an earlier leader.
	recovered time.Time
	// configured is true once there are policies: until then, that a quota is
	// not among them means nothing.
	configured bool
	revision   int64

	quotas map[quota.ID]*splitQuota
	order  []*splitQuota // by ID
	next   time.Time
	// base is at least every version of a row that is no more, so that the row
	// that follows it starts above.
	base int64

	dirty   []*row
	dirtyRg []*region
	reports uint64
	// started stands for the last report of a region that never reported.
	started time.Time
	latest  time.Time // of all reports

	// urgent are quotas that regions have asked to be split again, too soon after the last time.
	urgent  []*splitQuota
	borrows Borrows
	// served are the times that regions have waited for what they asked for.
	served []time.Duration
	// flagsLeft counts flagged keys that were not given a split of their own.
	flagsLeft int64
	// restless is until when regions are asked to report more often.
	restless time.Time

	inputs []splitter.Region
	shares []quota.Share
	before []quota.Share

	// leaseTTL is the length of leases; leasing is true when any quota has to do
	// with them. reclaims counts shares that were taken back. See lease.go.
	leaseTTL time.Duration
	leasing  bool
	reclaims uint64
}

// region is what the machine knows of one region.
type region struct {
	name  quota.Region
	index int
	// leaving regions are in the ledger and no longer in the configuration.
	leaving bool
	// gen is the dataset that has last followed this leader; empty when none did.
	gen string
	// known is true when the ledger's rows of the region are complete.
	known bool
	// heard is true when the region has reported all it holds to this epoch.
	heard bool
	// met is the dataset of the first report to this machine, then gen; virgin is
	// true when that first one had never followed any leader.
	met    string
	virgin bool
	// sent is true when a grant may have reached some dataset of the region.
	sent bool
	last time.Time
	// lostAt is when another dataset took the place of the last one.
	lostAt   time.Time
	sentAt   int64
	epoch    quota.Epoch
	revision int64

	outbox   []*row
	draining int
	wanting  int

	dirty, gone bool
	// revoked is true while any row of the region may be Reclaimed.
	revoked bool
}

// splitQuota is one quota and its split.
type splitQuota struct {
	id        quota.ID
	algorithm quota.Algorithm
	limit     quota.Limit
	split     quota.Split
	// removed quotas are in no policy any more, since removedIn.
	removed   bool
	removedIn int64
	// past is true when a region may have spent what nobody knows of any more.
	past      bool
	removedAt time.Time
	// rows, floors and targets have one element per region.
	rows    []row
	floors  []quota.Share
	targets []quota.Share
	// weights are the regions' parts of what was admitted lately, as of weightsAt.
	// inherited is true when the ledger knew of the quota before this machine did.
	weights   []float64
	weightsAt time.Time
	inherited bool
	// parent is the default split of a tracked key's policy.
	parent *splitQuota
	// keys are the tracked keys of a default split.
	keys []*splitQuota
	// busyAt is when a tracked key was last near its limit; leaving is true once it
	// is to go back under the default split.
	busyAt  time.Time
	leaving bool
	// parked are tokens that shrinks have surrendered and no grow has brought along.
	parked quota.Tokens
	// borrowedAt is when a region was last listened to, urgent whether one waits.
	borrowedAt time.Time
	urgent     bool
}

// row is a ledger row with what need not be durable.
type row struct {
	Row
	quota  *splitQuota
	region *region
	// confirmed is true when the region's present dataset is known to hold Version.
	confirmed bool
	// heldGen is the dataset that is known to have a record, of whatever version.
	heldGen string
	// heldUpAt is since when a default share waits for keys to be pinned.
	heldUpAt time.Time
	gift     quota.Tokens
	// floor is the largest that the region may have used without a record since
	// it last acknowledged a share, in the units of the quota's limit.
	floor    quota.Share
	issuedAt time.Time
	ackedAt  time.Time
	// freeAt is when a reclaimed row's bound may become its permanent part.
	freeAt   time.Time
	load     load
	history  history
	appeal   appeal
	changes  uint64
	listed   uint64 // the report that last named the row
	dirty    bool
	inOutbox bool
	draining bool
	wanting  bool
}

func (r *row) exists() bool { return r.Version > 0 }

// settled reports whether the region is known to hold the last version.
func (r *row) settled() bool { return r.Version == 0 || (r.AckVersion == r.Version && r.confirmed) }

// NewMachine returns a machine that continues from a ledger's snapshot. Regions
// that the snapshot knows and the list does not are taken out of service: their
// shares are taken back, and they are forgotten when they have acknowledged that.
func NewMachine(now time.Time, interval time.Duration, regions []quota.Region, s Snapshot) *Machine {
	m := &Machine{
		interval: interval, byName: map[quota.Region]*region{}, quotas: map[quota.ID]*splitQuota{},
		epoch: s.Epoch, lossy: s.Lossy, started: now, next: now.Add(interval), leaseTTL: DefaultLeaseTTL,
	}
	names := slices.Clone(regions)
	for _, r := range s.Regions {
		names = append(names, r.Region)
	}
	for i := range s.Rows {
		names = append(names, s.Rows[i].Region)
	}
	slices.Sort(names)
	for i, name := range slices.Compact(names) {
		r := &region{name: name, index: i, leaving: !slices.Contains(regions, name), known: !s.Lossy, last: now}
		m.regions = append(m.regions, r)
		m.byName[name] = r
	}
	for _, known := range s.Regions {
		r := m.byName[known.Region]
		r.gen, r.met, r.known, r.sent = known.Gen, known.Gen, true, true
		if known.Lost {
			r.lostAt = now
		}
	}
	for i := range s.Rows {
		m.restore(s.Rows[i])
	}
	for _, q := range m.order {
		q.removed = true // until a policy says otherwise
	}
	for _, r := range m.regions {
		// What the limits held at first went to others: a region that joins them is
		// not fresh, and begins with empty buckets.
		r.sent = r.sent || len(s.Rows) > 0
	}
	m.updateRecovering(now)
	if s.Lossy && !m.recovering {
		m.recovered = now // no telling how long ago that really was
	}
	return m
}

func (m *Machine) restore(saved Row) {
	q := m.quota(saved.ID)
	r := &q.rows[m.byName[saved.Region].index]
	r.Row = saved
	r.region.sent = true
	q.algorithm, q.limit, q.inherited = saved.Algorithm, saved.Limit, true
	q.targets[r.region.index] = saved.Sent
	q.floors[r.region.index] = saved.Floor
	m.restoreLease(r, m.started)
	m.base = max(m.base, saved.Version)
}

// quota returns the quota of the id, and makes it when there is none.
func (m *Machine) quota(id quota.ID) *splitQuota {
	if q := m.quotas[id]; q != nil {
		return q
	}
	n := len(m.regions)
	q := &splitQuota{id: id, rows: make([]row, n), floors: make([]quota.Share, n), targets: make([]quota.Share, n)}
	for i := range q.rows {
		q.rows[i] = row{Row: Row{ID: id, Region: m.regions[i].name}, quota: q, region: m.regions[i]}
	}
	m.quotas[id] = q
	if id.Key != "" {
		q.parent = m.quota(quota.ID{Policy: id.Policy})
		q.parent.keys = append(q.parent.keys, q)
		q.busyAt = m.latest
	}
	at, _ := slices.BinarySearchFunc(m.order, id, func(q *splitQuota, id quota.ID) int { return compareIDs(q.id, id) })
	m.order = slices.Insert(m.order, at, q)
	return q
}

// Begin continues under another epoch, which the ledger has begun because a
// region had seen a later one than this machine's.
func (m *Machine) Begin(now time.Time, epoch quota.Epoch) {
	m.epoch = epoch
	for _, r := range m.regions {
		r.heard = false
		if m.recovering && !r.leaving {
			r.known = false
		}
	}
	m.updateRecovering(now)
}

// Recovering reports whether the machine still waits to hear from regions that
// the ledger may have lost.
func (m *Machine) Recovering() bool { return m.recovering }

func (m *Machine) updateRecovering(now time.Time) {
	was := m.recovering
	m.recovering = false
	for _, r := range m.regions {
		m.recovering = m.recovering || (!r.known && !r.leaving)
	}
	if was && !m.recovering {
		if !m.allVirgin() {
			m.recovered = now
		}
		// Known all at once, with the rows that follow: a coordinator that takes over
		// before that has to hear everybody itself.
		for _, r := range m.regions {
			if !r.leaving {
				m.touchRegion(r)
			}
		}
		for _, q := range m.order {
			q.past = !m.recovered.IsZero()
			m.start(q, now)
			m.distrustLeases(q, now)
			m.plan(q, now)
		}
	}
}

// touch notes that a row must be written.
func (m *Machine) touch(r *row) {
	r.changes++
	if !r.dirty {
		r.dirty = true
		m.dirty = append(m.dirty, r)
	}
}

func (m *Machine) touchRegion(r *region) {
	if !r.dirty {
		r.dirty = true
		m.dirtyRg = append(m.dirtyRg, r)
	}
}

// Pending returns what must be committed before what it grants is sent. The
// batch is a copy; the machine may be used while it is written.
func (m *Machine) Pending() Batch {
	var b Batch
	for _, r := range m.dirty {
		b.rows = append(b.rows, stamped{r, r.changes})
		if r.exists() {
			b.Rows = append(b.Rows, r.Row)
		} else {
			b.DropRows = append(b.DropRows, RowKey{r.ID, r.Region})
		}
	}
	for _, r := range m.dirtyRg {
		b.regions = append(b.regions, r)
		if r.gone {
			b.DropRegions = append(b.DropRegions, r.name)
		} else {
			b.Regions = append(b.Regions, RegionRow{r.name, r.gen, !r.lostAt.IsZero()})
		}
		r.dirty = false // a later change makes it dirty again; see Failed
	}
	m.dirtyRg = m.dirtyRg[:0]
	return b
}

// Committed says that the ledger holds the batch, which frees its grants to be sent.
func (m *Machine) Committed(b Batch) {
	for _, s := range b.rows {
		if s.row.changes == s.changes {
			s.row.dirty = false
		}
	}
	m.dirty = slices.DeleteFunc(m.dirty, func(r *row) bool { return !r.dirty })
}

// Failed says that the batch was not committed, or may not have been. It stays pending.
func (m *Machine) Failed(b Batch) {
	for _, r := range b.regions {
		m.touchRegion(r)
	}
}
