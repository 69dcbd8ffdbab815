package rpc

import (
	"google.golang.org/protobuf/types/known/durationpb"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/quota"
)

func fromShare(s quota.Share) *weirv1.Share {
	return &weirv1.Share{CapacityMillitokens: int64(s.Capacity), RefillMillitokens: int64(s.Refill)}
}

func toShare(m *weirv1.Share) quota.Share {
	return quota.Share{
		Capacity: quota.Tokens(m.GetCapacityMillitokens()),
		Refill:   quota.Tokens(m.GetRefillMillitokens()),
	}
}

func fromID(id quota.ID) *weirv1.QuotaID {
	return &weirv1.QuotaID{Policy: id.Policy, Key: []byte(id.Key)}
}

func toID(m *weirv1.QuotaID) quota.ID {
	return quota.ID{Policy: m.GetPolicy(), Key: string(m.GetKey())}
}

func fromLimit(l quota.Limit) *weirv1.Limit {
	return &weirv1.Limit{
		CapacityMillitokens: int64(l.Capacity),
		RefillMillitokens:   int64(l.Refill),
		Period:              durationpb.New(l.Period),
	}
}

func toLimit(m *weirv1.Limit) quota.Limit {
	return quota.Limit{
		Capacity: quota.Tokens(m.GetCapacityMillitokens()),
		Refill:   quota.Tokens(m.GetRefillMillitokens()),
		Period:   m.GetPeriod().AsDuration(),
	}
}

func fromAlgorithm(a quota.Algorithm) weirv1.Algorithm {
	switch a {
	case quota.TokenBucket:
		return weirv1.Algorithm_ALGORITHM_TOKEN_BUCKET
	case quota.SlidingLog:
		return weirv1.Algorithm_ALGORITHM_SLIDING_LOG
	case quota.Concurrency:
		return weirv1.Algorithm_ALGORITHM_CONCURRENCY
	}
	return weirv1.Algorithm_ALGORITHM_UNSPECIFIED
}

// toAlgorithm reports false for an algorithm that this version does not know.
// Unspecified is zero: a grant that drops a record need not name one.
func toAlgorithm(a weirv1.Algorithm) (quota.Algorithm, bool) {
	switch a {
	case weirv1.Algorithm_ALGORITHM_UNSPECIFIED:
		return 0, true
	case weirv1.Algorithm_ALGORITHM_TOKEN_BUCKET:
		return quota.TokenBucket, true
	case weirv1.Algorithm_ALGORITHM_SLIDING_LOG:
		return quota.SlidingLog, true
	case weirv1.Algorithm_ALGORITHM_CONCURRENCY:
		return quota.Concurrency, true
	}
	return 0, false
}

func fromReport(r *quota.Report) *weirv1.ReportRequest {
	out := &weirv1.ReportRequest{
		Region:       string(r.Region),
		Gen:          r.Gen,
		Epoch:        int64(r.Epoch),
		SentAtMicros: r.SentAt,
		Revision:     r.Revision,
		Full:         r.Full,
	}
	for i := range r.Quotas {
		q := &r.Quotas[i]
		out.Quotas = append(out.Quotas, &weirv1.QuotaReport{
			Id:                     fromID(q.ID),
			Version:                q.Version,
			Share:                  fromShare(q.Share),
			Period:                 durationpb.New(q.Period),
			DemandPerSecond:        q.Demand,
			TotalPerSecond:         q.Total,
			AdmittedPerSecond:      q.Admitted,
			Drained:                q.Drained,
			HoldMillitokens:        int64(q.Hold),
			SurrenderedMillitokens: int64(q.Surrendered),
			Urgent:                 q.Urgent,
			Permanent:              fromShare(q.Permanent),
		})
	}
	return out
}

func toReport(m *weirv1.ReportRequest) quota.Report {
	out := quota.Report{
		Region:   quota.Region(m.GetRegion()),
		Gen:      m.GetGen(),
		Epoch:    quota.Epoch(m.GetEpoch()),
		SentAt:   m.GetSentAtMicros(),
		Revision: m.GetRevision(),
		Full:     m.GetFull(),
	}
	for _, q := range m.GetQuotas() {
		permanent := q.GetPermanent()
		if permanent == nil { // a region that knows of none keeps all it has
			permanent = q.GetShare()
		}
		out.Quotas = append(out.Quotas, quota.QuotaReport{
			ID:          toID(q.GetId()),
			Version:     q.GetVersion(),
			Share:       toShare(q.GetShare()),
			Period:      q.GetPeriod().AsDuration(),
			Demand:      q.GetDemandPerSecond(),
			Total:       q.GetTotalPerSecond(),
			Admitted:    q.GetAdmittedPerSecond(),
			Drained:     q.GetDrained(),
			Hold:        quota.Tokens(q.GetHoldMillitokens()),
			Surrendered: quota.Tokens(q.GetSurrenderedMillitokens()),
			Urgent:      q.GetUrgent(),
			Permanent:   toShare(permanent),
		})
	}
	return out
}

func fromInstructions(in *quota.Instructions) *weirv1.ReportResponse {
	out := &weirv1.ReportResponse{
		Epoch:      int64(in.Epoch),
		Gen:        in.Gen,
		Fresh:      in.Fresh,
		Full:       in.Full,
		NextReport: optionalDuration(in.NextReport),
		Undecided:  in.Undecided,
	}
	if in.Lease != (quota.Lease{}) {
		out.Lease = &weirv1.Lease{SentAtMicros: in.Lease.SentAt, Ttl: durationpb.New(in.Lease.TTL)}
	}
	for i := range in.Grants {
		g := &in.Grants[i]
		out.Grants = append(out.Grants, &weirv1.Grant{
			Id:              fromID(g.ID),
			Version:         g.Version,
			Share:           fromShare(g.Share),
			Permanent:       fromShare(g.Permanent),
			GiftMillitokens: int64(g.Gift),
			Algorithm:       fromAlgorithm(g.Algorithm),
			Limit:           fromLimit(g.Limit),
			Floor:           fromShare(g.Floor),
			Drop:            g.Drop,
		})
	}
	return out
}

// toInstructions leaves out grants of an algorithm that this version does not
// know and counts them. That is safe: the region goes on with the share it has,
// and as it does not acknowledge the new one, the coordinator gives nothing of
// it to others.
func toInstructions(m *weirv1.ReportResponse) (in quota.Instructions, unknown int) {
	in = quota.Instructions{
		Epoch:      quota.Epoch(m.GetEpoch()),
		Gen:        m.GetGen(),
		Fresh:      m.GetFresh(),
		Full:       m.GetFull(),
		NextReport: m.GetNextReport().AsDuration(),
		Undecided:  m.GetUndecided(),
		Lease:      quota.Lease{SentAt: m.GetLease().GetSentAtMicros(), TTL: m.GetLease().GetTtl().AsDuration()},
	}
	for _, g := range m.GetGrants() {
		algorithm, ok := toAlgorithm(g.GetAlgorithm())
		if !ok {
			unknown++
			continue
		}
		in.Grants = append(in.Grants, quota.Grant{
			ID:        toID(g.GetId()),
			Version:   g.GetVersion(),
			Share:     toShare(g.GetShare()),
			Permanent: toShare(g.GetPermanent()),
			Gift:      quota.Tokens(g.GetGiftMillitokens()),
			Algorithm: algorithm,
			Limit:     toLimit(g.GetLimit()),
			Floor:     toShare(g.GetFloor()),
			Drop:      g.GetDrop(),
		})
	}
	return in, unknown
}
