package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirhq/weir/coordinator"
	pgledger "github.com/weirhq/weir/coordinator/postgres"
	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/postgres"
	"github.com/weirhq/weir/quota"
)

// consoleQuotas is how many quotas the console is told: it shows no more.
const consoleQuotas = 50

// candidateStatus serves StatusService from one of several coordinators.
type candidateStatus struct {
	name string
	*coordinator.Candidate
}

func (s candidateStatus) Status() *weirv1.GetStatusResponse {
	return fromOverview(s.name, s.Overview())
}

func (s candidateStatus) Splits(q rpc.SplitSelection) ([]*weirv1.QuotaSplit, bool, error) {
	page, more, err := s.Candidate.Splits(toSplitQuery(q))
	return fromSplits(page), more, err
}

// leader returns the URL of another coordinator that leads.
func (s candidateStatus) leader() string {
	if lead := s.Leadership(); !lead.Leading {
		return lead.URL
	}
	return ""
}

// onlyStatus serves StatusService from the only coordinator.
type onlyStatus struct {
	name, url string
	*coordinator.Coordinator
}

func (s onlyStatus) Status() *weirv1.GetStatusResponse {
	o := coordinator.CandidateOverview{Overview: s.Overview()}
	o.Leadership = coordinator.Leadership{Leading: true, Serving: true, Leader: s.name, URL: s.url, Epoch: o.Epoch}
	return fromOverview(s.name, o)
}

func (s onlyStatus) Splits(q rpc.SplitSelection) ([]*weirv1.QuotaSplit, bool, error) {
	page, more := s.Coordinator.Splits(toSplitQuery(q))
	return fromSplits(page), more, nil
}

var ledgerStates = map[coordinator.LedgerState]weirv1.LedgerState{
	coordinator.LedgerComplete:   weirv1.LedgerState_LEDGER_STATE_COMPLETE,
	coordinator.LedgerLossy:      weirv1.LedgerState_LEDGER_STATE_LOSSY,
	coordinator.LedgerRecovering: weirv1.LedgerState_LEDGER_STATE_RECOVERING,
}

func fromOverview(name string, o coordinator.CandidateOverview) *weirv1.GetStatusResponse {
	m := &weirv1.GetStatusResponse{
		At: timestamppb.New(o.At), AnsweredBy: name, Complete: o.Leadership.Serving,
		Leader: &weirv1.Leadership{
			Name: o.Leadership.Leader, Url: o.Leadership.URL, Epoch: int64(o.Leadership.Epoch),
			BeatAge: durationpb.New(o.Leadership.BeatAge),
		},
	}
	if !o.Leadership.Serving {
		return m
	}
	m.Epoch, m.Revision, m.Ledger = int64(o.Epoch), o.Revision, ledgerStates[o.Ledger]
	for i := range o.Regions {
		m.Regions = append(m.Regions, fromRegion(&o.Regions[i]))
	}
	t := &o.Totals
	m.Totals = &weirv1.SplitTotals{
		Quotas: int32(t.Quotas), Pending: int32(t.Pending), Draining: int32(t.Draining), NotEffective: int32(t.NotEffective),
		Small: int32(t.Small), Fullest: t.Fullest, UnallocatedMillitokens: int64(t.Unallocated),
		OldestPending: durationpb.New(t.OldestGrant), TrackedKeys: int32(t.TrackedKeys), ParkedMillitokens: int64(t.Parked),
	}
	return m
}

func fromRegion(r *coordinator.RegionStatus) *weirv1.RegionStatus {
	m := &weirv1.RegionStatus{
		Region: string(r.Region), Age: durationpb.New(r.Age), Silent: r.Silent, Leaving: r.Leaving, Awaited: r.Awaited,
		Gen: r.Gen, Epoch: int64(r.Epoch), Revision: r.Revision, Pending: int32(r.Pending), Draining: int32(r.Draining),
	}
	if !r.LastReport.IsZero() {
		m.LastReport = timestamppb.New(r.LastReport)
	}
	if r.LeaseLeft != nil {
		m.LeaseLeft = durationpb.New(*r.LeaseLeft)
	}
	return m
}

var splitConditions = map[weirv1.SplitCondition]coordinator.Condition{
	weirv1.SplitCondition_SPLIT_CONDITION_PENDING:       coordinator.Pending,
	weirv1.SplitCondition_SPLIT_CONDITION_DRAINING:      coordinator.Draining,
	weirv1.SplitCondition_SPLIT_CONDITION_NOT_EFFECTIVE: coordinator.NotEffective,
	weirv1.SplitCondition_SPLIT_CONDITION_SMALL:         coordinator.Small,
}

func toSplitQuery(q rpc.SplitSelection) coordinator.SplitQuery {
	out := coordinator.SplitQuery{Policy: q.Policy, Search: q.Search, Region: q.Region, After: q.After, Limit: q.Limit}
	for _, c := range q.Any {
		out.Any = append(out.Any, splitConditions[c])
	}
	return out
}

func fromSplits(page []coordinator.QuotaStatus) []*weirv1.QuotaSplit {
	out := make([]*weirv1.QuotaSplit, 0, len(page))
	now := time.Now()
	for i := range page {
		out = append(out, fromSplit(&page[i], now))
	}
	return out
}

var algorithms = map[string]weirv1.Algorithm{
	quota.TokenBucket.String(): weirv1.Algorithm_ALGORITHM_TOKEN_BUCKET,
	quota.SlidingLog.String():  weirv1.Algorithm_ALGORITHM_SLIDING_LOG,
	quota.Concurrency.String(): weirv1.Algorithm_ALGORITHM_CONCURRENCY,
}

func fromSplit(q *coordinator.QuotaStatus, now time.Time) *weirv1.QuotaSplit {
	m := &weirv1.QuotaSplit{
		Id: &weirv1.QuotaID{Policy: q.ID.Policy, Key: []byte(q.ID.Key)}, Algorithm: algorithms[q.Algorithm],
		Limit: &weirv1.Limit{
			CapacityMillitokens: int64(q.Limit.Capacity), RefillMillitokens: int64(q.Limit.Refill), Period: durationpb.New(q.Limit.Period),
		},
		Removed: q.Removed, Effective: q.Effective, Small: q.Small,
		Allocated: fromShare(q.Allocated), Unallocated: fromShare(q.Unallocated), ParkedMillitokens: int64(q.Parked),
	}
	for i := range q.Regions {
		r := &q.Regions[i]
		share := &weirv1.RegionSplit{
			Region: string(r.Region), DemandPerSecond: r.Demand, Share: fromShare(r.Share), Sent: fromShare(r.Sent),
			Acked: fromShare(r.Acked), Bound: fromShare(r.Bound), Floor: fromShare(r.Floor),
			Version: r.Version, AckVersion: r.AckVersion, Draining: r.Draining,
			Permanent: fromShare(r.Permanent), Reclaimed: r.Reclaimed,
		}
		if !r.PendingSince.IsZero() {
			share.PendingAge = durationpb.New(now.Sub(r.PendingSince))
		}
		if !r.AckedAt.IsZero() {
			share.ShareAge = durationpb.New(now.Sub(r.AckedAt))
		}
		m.Regions = append(m.Regions, share)
	}
	return m
}

func fromShare(s quota.Share) *weirv1.Share {
	return &weirv1.Share{CapacityMillitokens: int64(s.Capacity), RefillMillitokens: int64(s.Refill)}
}

// ledgerKeeper serves LedgerService. What an operator does is in the audit log before
// it is done, so that nothing is done that is not there.
type ledgerKeeper struct {
	ledger *pgledger.Ledger
	audit  policystore.Recorder
	// candidate is nil where there is no coordinator.
	candidate *coordinator.Candidate
}

// Distrust implements rpc.LedgerKeeper.
func (k ledgerKeeper) Distrust(ctx context.Context, by policystore.Edit) error {
	if err := k.audit.Record(ctx, by, policystore.ActionDistrustLedger, "commits may have been lost; nothing grows until every region has reported"); err != nil {
		return err
	}
	if err := k.ledger.Distrust(ctx); err != nil {
		return err
	}
	if k.candidate != nil {
		k.candidate.Reload()
	}
	return nil
}

// Trust implements rpc.LedgerKeeper. Without force it holds for what this coordinator
// knows as the leader: nobody is awaited, and the ledger was not distrusted since.
func (k ledgerKeeper) Trust(ctx context.Context, by policystore.Edit, force bool) error {
	o := k.candidate.Overview()
	if !force {
		if !o.Leadership.Serving {
			return &coordinator.NotLeaderError{URL: o.Leadership.URL}
		}
		if awaited := awaitedOf(o.Regions); len(awaited) > 0 {
			return fmt.Errorf("%s: not all that it holds has been reported; wait for it, take it out of --regions, "+
				"or force it if you know that no traffic is limited there: %w", strings.Join(awaited, ", "), quota.ErrInvalid)
		}
	}
	detail := "the ledger is complete"
	if force {
		detail += "; forced"
	}
	if err := k.audit.Record(ctx, by, policystore.ActionTrustLedger, detail); err != nil {
		return err
	}
	trust := k.ledger.Trust
	if !force {
		trust = func(ctx context.Context) error { return k.ledger.TrustAt(ctx, o.Epoch) }
	}
	if err := trust(ctx); errors.Is(err, quota.ErrFenced) {
		return fmt.Errorf("the ledger has been distrusted or loaded again meanwhile; look at the status, and repeat it: %w", quota.ErrConflict)
	} else if err != nil {
		return err
	}
	k.candidate.Reload()
	return nil
}

// awaitedOf names the regions that the ledger waits for.
func awaitedOf(regions []coordinator.RegionStatus) (names []string) {
	for _, r := range regions {
		if r.Awaited {
			names = append(names, "region "+string(r.Region))
		}
	}
	return names
}

// DistrustLedger distrusts the ledger of a database while no coordinator runs, so that
// the first one to start is careful from the beginning. Nobody checks who the author is.
func DistrustLedger(ctx context.Context, cfg PostgresConfig, by policystore.Edit) error {
	pool, err := cfg.poolOf(ctx, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pendingMigrations(ctx, pool); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	by.Author = cmp.Or(by.Author, "anonymous")
	return ledgerKeeper{
		ledger: pgledger.NewLedger(pgledger.Config{Pool: pool, Logger: log}),
		audit:  postgres.New(postgres.Config{Pool: pool, Logger: log}),
	}.Distrust(ctx, by)
}
