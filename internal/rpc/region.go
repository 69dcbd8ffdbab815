package rpc

import (
	"context"
	"math"
	"strconv"
	"unicode/utf8"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/quota"
)

// Regions takes reports; it is what RegionService is served from. Report may be
// called concurrently, also for one region, and with the same report again.
type Regions interface {
	Report(ctx context.Context, r quota.Report) (quota.Instructions, error)
}

// Bounds of a report.
const (
	// maxRegionName and maxGen are in bytes.
	maxRegionName = 64
	maxGen        = 128
	// maxDemand is the largest demand that is believed, in tokens per second.
	maxDemand = float64(1 << 40)
)

type regionHandler struct{ regions Regions }

var _ weirv1connect.RegionServiceHandler = (*regionHandler)(nil)

func (h *regionHandler) Report(ctx context.Context, m *weirv1.ReportRequest) (*weirv1.ReportResponse, error) {
	if err := validateReport(m); err != nil {
		return nil, err
	}
	if err := mayActFor(ctx, quota.Region(m.GetRegion())); err != nil {
		return nil, err
	}
	in, err := h.regions.Report(ctx, toReport(m))
	if err != nil {
		return nil, err
	}
	return fromInstructions(&in), nil
}

// validateReport refuses numbers that no region can mean, so that one broken
// node cannot bend the split of all.
func validateReport(m *weirv1.ReportRequest) error {
	var p problems
	if n := m.GetRegion(); n == "" || len(n) > maxRegionName || !utf8.ValidString(n) {
		p.add("region", "not a region name; use 1 to %d bytes", maxRegionName)
	}
	if len(m.GetGen()) > maxGen {
		p.add("gen", "%d bytes long; use at most %d", len(m.GetGen()), maxGen)
	}
	if m.GetEpoch() < 0 {
		p.add("epoch", "%d is negative", m.GetEpoch())
	}
	for i, q := range m.GetQuotas() {
		validateQuotaReport(&p, "quotas["+strconv.Itoa(i)+"]", q)
		if len(p.list) >= maxViolations {
			break
		}
	}
	return p.err()
}

func validateQuotaReport(p *problems, at string, q *weirv1.QuotaReport) {
	if id := q.GetId().GetPolicy(); id == "" || len(id) > MaxPolicyID {
		p.add(at+".id.policy", "not a policy id; use 1 to %d bytes", MaxPolicyID)
	}
	if id := toID(q.GetId()); id.Key != "" {
		// Where it would lie does not matter here, only that it names a key at all.
		if _, _, err := quota.PlaceOf(id, quota.DefaultKeyPrefix, 1); err != nil {
			p.add(at+".id.key", "not the name of a key of the policy, of at most %d bytes", quota.MaxTrackedKey)
		}
	}
	if q.GetVersion() < 0 {
		p.add(at+".version", "%d is negative", q.GetVersion())
	}
	for _, amount := range [...]struct {
		field string
		value int64
	}{
		{".share.capacity_millitokens", q.GetShare().GetCapacityMillitokens()},
		{".share.refill_millitokens", q.GetShare().GetRefillMillitokens()},
		{".hold_millitokens", q.GetHoldMillitokens()},
		{".surrendered_millitokens", q.GetSurrenderedMillitokens()},
	} {
		if amount.value < 0 || amount.value > int64(quota.MaxTokens) {
			p.add(at+amount.field, "%d is outside 0..%d", amount.value, int64(quota.MaxTokens))
		}
	}
	for _, rate := range [...]struct {
		field string
		value float64
	}{
		{".demand_per_second", q.GetDemandPerSecond()},
		{".total_per_second", q.GetTotalPerSecond()},
		{".admitted_per_second", q.GetAdmittedPerSecond()},
	} {
		// NaN fails every comparison, so it is named.
		if math.IsNaN(rate.value) || rate.value < 0 || rate.value > maxDemand {
			p.add(at+rate.field, "%g is outside 0..%g", rate.value, maxDemand)
		}
	}
	if d := q.GetPeriod(); d != nil && (!d.IsValid() || d.AsDuration() < 0) {
		p.add(at+".period", "not a period of 0 or more")
	}
}
