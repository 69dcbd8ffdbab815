package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// StatusClient calls StatusService and LedgerService. It is safe for concurrent use
// and repeats nothing.
type StatusClient struct {
	conn
	status weirv1connect.StatusServiceClient
	ledger weirv1connect.LedgerServiceClient
}

// NewStatusClient does not connect yet.
func NewStatusClient(cfg ClientConfig) (*StatusClient, error) {
	c, err := newConn(cfg)
	if err != nil {
		return nil, err
	}
	options := connect.WithClientOptions(c.options, connect.WithReadMaxBytes(maxAnswerBytes))
	return &StatusClient{
		c,
		weirv1connect.NewStatusServiceClient(c.http, c.url, options),
		weirv1connect.NewLedgerServiceClient(c.http, c.url, options),
	}, nil
}

// Overview is what the leader knows without the single quotas, or what another
// coordinator knows of the leader.
type Overview struct {
	wire
	At                     time.Time
	LeaderName, LeaderURL  string
	LeaderEpoch            quota.Epoch
	BeatAge                time.Duration
	AnsweredBy, Problem    string
	Complete               bool
	Epoch                  quota.Epoch
	Revision               int64
	Ledger                 string
	Regions                []RegionState
	Quotas, Pending        int
	Draining, NotEffective int
	Small                  int
	Fullest                float64
	Unallocated            quota.Tokens
	TrackedKeys            int
	Parked                 quota.Tokens
	OldestPending          time.Duration
}

// RegionState is one region.
type RegionState struct {
	Name                     quota.Region
	LastReport               time.Time
	Age                      time.Duration
	Silent, Leaving, Awaited bool
	Gen                      string
	Epoch                    quota.Epoch
	Revision                 int64
	Pending, Draining        int
	// LeaseLeft is how long the region's lease lasts at most, where there is one (Leased).
	Leased    bool
	LeaseLeft time.Duration
}

// ledgerNames are the states of a ledger, for people.
var ledgerNames = map[weirv1.LedgerState]string{
	weirv1.LedgerState_LEDGER_STATE_COMPLETE:   "complete",
	weirv1.LedgerState_LEDGER_STATE_LOSSY:      "lossy",
	weirv1.LedgerState_LEDGER_STATE_RECOVERING: "recovering",
}

// Status returns the overview.
func (c *StatusClient) Status(ctx context.Context) (*Overview, error) {
	m, err := call(ctx, &c.conn, "get status", c.status.GetStatus, &weirv1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	t := m.GetTotals()
	o := &Overview{
		wire: wire{m}, At: toTime(m.GetAt()),
		LeaderName: m.GetLeader().GetName(), LeaderURL: m.GetLeader().GetUrl(), LeaderEpoch: quota.Epoch(m.GetLeader().GetEpoch()),
		BeatAge: m.GetLeader().GetBeatAge().AsDuration(), AnsweredBy: m.GetAnsweredBy(), Problem: m.GetProblem(),
		Complete: m.GetComplete(), Epoch: quota.Epoch(m.GetEpoch()), Revision: m.GetRevision(), Ledger: ledgerNames[m.GetLedger()],
		Quotas: int(t.GetQuotas()), Pending: int(t.GetPending()), Draining: int(t.GetDraining()),
		NotEffective: int(t.GetNotEffective()), Small: int(t.GetSmall()), Fullest: t.GetFullest(),
		Unallocated: quota.Tokens(t.GetUnallocatedMillitokens()),
		TrackedKeys: int(t.GetTrackedKeys()), Parked: quota.Tokens(t.GetParkedMillitokens()),
		OldestPending: t.GetOldestPending().AsDuration(),
	}
	for _, r := range m.GetRegions() {
		o.Regions = append(o.Regions, RegionState{
			Name: quota.Region(r.GetRegion()), LastReport: toTime(r.GetLastReport()), Age: r.GetAge().AsDuration(),
			Silent: r.GetSilent(), Leaving: r.GetLeaving(), Awaited: r.GetAwaited(), Gen: r.GetGen(),
			Epoch: quota.Epoch(r.GetEpoch()), Revision: r.GetRevision(), Pending: int(r.GetPending()), Draining: int(r.GetDraining()),
			Leased: r.GetLeaseLeft() != nil, LeaseLeft: r.GetLeaseLeft().AsDuration(),
		})
	}
	return o, nil
}

// SplitState is one quota and its split.
type SplitState struct {
	ID                        quota.ID
	Algorithm                 quota.Algorithm
	Limit                     quota.Limit
	Removed, Effective, Small bool
	Allocated, Unallocated    quota.Share
	Parked                    quota.Tokens
	Regions                   []ShareState
}

// ShareState is one region's part of a quota.
type ShareState struct {
	Region                      quota.Region
	Demand                      float64
	Share, Sent, Acked, Bound   quota.Share
	Floor, Permanent            quota.Share
	Version, AckVersion         int64
	PendingAge, ShareAge        time.Duration
	Pending, Draining, AgeKnown bool
	Reclaimed                   bool
}

// SplitConditions are the names of the states that ListSplits can look for.
func SplitConditions() []string { return []string{"pending", "draining", "not-effective", "small"} }

// SplitFilter selects splits. Any holds some of SplitConditions.
type SplitFilter struct {
	Policy string
	Region quota.Region
	Any    []string
}

var splitConditions = map[string]weirv1.SplitCondition{
	"pending":       weirv1.SplitCondition_SPLIT_CONDITION_PENDING,
	"draining":      weirv1.SplitCondition_SPLIT_CONDITION_DRAINING,
	"not-effective": weirv1.SplitCondition_SPLIT_CONDITION_NOT_EFFECTIVE,
	"small":         weirv1.SplitCondition_SPLIT_CONDITION_SMALL,
}

// Splits lists splits by policy and key, by Search of the query and the filter.
func (c *StatusClient) Splits(ctx context.Context, f SplitFilter, q Query) (*Page[SplitState], error) {
	req := &weirv1.ListSplitsRequest{
		PageSize: int32(q.Size), PageToken: q.Page, Search: q.Search, Policy: f.Policy, Region: string(f.Region),
	}
	for _, name := range f.Any {
		req.Any = append(req.Any, splitConditions[name])
	}
	m, err := call(ctx, &c.conn, "list splits", c.status.ListSplits, req)
	if err != nil {
		return nil, err
	}
	out := &Page[SplitState]{wire: wire{m}, Next: m.GetNextPageToken()}
	for _, s := range m.GetSplits() {
		out.Items = append(out.Items, toSplitState(s))
	}
	return out, nil
}

func toSplitState(m *weirv1.QuotaSplit) SplitState {
	algorithm, _ := toAlgorithm(m.GetAlgorithm()) // one that is not known here has no name
	s := SplitState{
		ID: toID(m.GetId()), Algorithm: algorithm, Limit: toLimit(m.GetLimit()),
		Removed: m.GetRemoved(), Effective: m.GetEffective(), Small: m.GetSmall(),
		Allocated: toShare(m.GetAllocated()), Unallocated: toShare(m.GetUnallocated()), Parked: quota.Tokens(m.GetParkedMillitokens()),
	}
	for _, r := range m.GetRegions() {
		s.Regions = append(s.Regions, ShareState{
			Region: quota.Region(r.GetRegion()), Demand: r.GetDemandPerSecond(),
			Share: toShare(r.GetShare()), Sent: toShare(r.GetSent()), Acked: toShare(r.GetAcked()),
			Bound: toShare(r.GetBound()), Floor: toShare(r.GetFloor()),
			Version: r.GetVersion(), AckVersion: r.GetAckVersion(),
			PendingAge: r.GetPendingAge().AsDuration(), Pending: r.GetPendingAge() != nil,
			ShareAge: r.GetShareAge().AsDuration(), AgeKnown: r.GetShareAge() != nil, Draining: r.GetDraining(),
			Permanent: toShare(r.GetPermanent()), Reclaimed: r.GetReclaimed(),
		})
	}
	return s
}

// DistrustLedger says that the ledger may have lost commits.
func (c *StatusClient) DistrustLedger(ctx context.Context, by policystore.Edit) error {
	_, err := call(ctx, &c.conn, "distrust the ledger", c.ledger.DistrustLedger,
		&weirv1.DistrustLedgerRequest{Message: by.Message, Author: by.Author})
	return err
}

// TrustLedger says that the ledger is complete again.
func (c *StatusClient) TrustLedger(ctx context.Context, by policystore.Edit, force bool) error {
	_, err := call(ctx, &c.conn, "trust the ledger", c.ledger.TrustLedger,
		&weirv1.TrustLedgerRequest{Message: by.Message, Author: by.Author, Force: force})
	return err
}
