package rpc

import (
	"github.com/weirhq/weir/gen/weir/v1/weirv1connect"
	"github.com/weirhq/weir/policystore"
)

// access is who may call a procedure.
type access struct {
	// role is the least one, region says whether tokens of role region may too.
	role   policystore.Role
	region bool
	// check marks the calls of applications, which are open unless the
	// configuration says otherwise.
	check bool
}

func (a access) allows(r policystore.Role) bool {
	return a.region && r == policystore.RoleRegion || a.role != "" && r.Includes(a.role)
}

// accessTable has every procedure; one that is not in it is refused to everybody.
var accessTable = map[string]access{
	weirv1connect.LimiterServiceCheckProcedure:      {role: policystore.RoleViewer, check: true},
	weirv1connect.LimiterServiceCheckBatchProcedure: {role: policystore.RoleViewer, check: true},
	weirv1connect.LimiterServicePeekProcedure:       {role: policystore.RoleViewer, check: true},
	weirv1connect.LimiterServiceExplainProcedure:    {role: policystore.RoleViewer, check: true},
	weirv1connect.LimiterServiceRefundProcedure:     {role: policystore.RoleViewer, check: true},

	// The bootstrap administrator may stand in for regions of a small deployment.
	weirv1connect.RegionServiceReportProcedure: {role: policystore.RoleAdmin, region: true},

	weirv1connect.PolicyServiceApplyProcedure:           {role: policystore.RoleEditor},
	weirv1connect.PolicyServiceDeleteProcedure:          {role: policystore.RoleEditor},
	weirv1connect.PolicyServiceRollbackProcedure:        {role: policystore.RoleEditor},
	weirv1connect.PolicyServiceSetOverrideProcedure:     {role: policystore.RoleEditor},
	weirv1connect.PolicyServiceSetOverridesProcedure:    {role: policystore.RoleEditor},
	weirv1connect.PolicyServiceDeleteOverrideProcedure:  {role: policystore.RoleEditor},
	weirv1connect.PolicyServiceDeleteOverridesProcedure: {role: policystore.RoleEditor},
	weirv1connect.PolicyServiceValidateProcedure:        {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceGetProcedure:             {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceListProcedure:            {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceGetRevisionProcedure:     {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceListRevisionsProcedure:   {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceDiffProcedure:            {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceGetOverrideProcedure:     {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceListOverridesProcedure:   {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceListAuditProcedure:       {role: policystore.RoleViewer},
	weirv1connect.PolicyServiceWatchPoliciesProcedure:   {role: policystore.RoleViewer, region: true},
	weirv1connect.PolicyServiceWhoAmIProcedure:          {role: policystore.RoleViewer, region: true},

	weirv1connect.StatusServiceGetStatusProcedure:  {role: policystore.RoleViewer},
	weirv1connect.StatusServiceListSplitsProcedure: {role: policystore.RoleViewer},

	weirv1connect.LedgerServiceDistrustLedgerProcedure: {role: policystore.RoleAdmin},
	weirv1connect.LedgerServiceTrustLedgerProcedure:    {role: policystore.RoleAdmin},

	weirv1connect.TokenServiceCreateTokenProcedure: {role: policystore.RoleAdmin},
	weirv1connect.TokenServiceListTokensProcedure:  {role: policystore.RoleAdmin},
	weirv1connect.TokenServiceRevokeTokenProcedure: {role: policystore.RoleAdmin},
}
