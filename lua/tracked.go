package lua

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/quota"
)

// TrackedKeys lists the keys that have shares of their own, as far as their stripes'
// lists tell: HeldKeys says which of them really have.
func (s *Store) TrackedKeys(ctx context.Context) ([]quota.ID, error) {
	var ids []quota.ID
	err := stripewise(ctx, s, func(p redis.Pipeliner, stripe int) *redis.MapStringStringCmd {
		return p.HGetAll(ctx, s.trackedKey(stripe))
	}, func(stripe int, cmd *redis.MapStringStringCmd) error {
		listed, err := cmd.Result()
		if err != nil {
			return err
		}
		for key, policy := range listed {
			id := quota.ID{Policy: policy, Key: key}
			if _, at, err := quota.PlaceOf(id, s.prefix, s.stripes); err != nil || at != stripe {
				continue // not written by this version
			}
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		return nil, wrap("list tracked keys", err)
	}
	slices.SortFunc(ids, compareIDs)
	return ids, nil
}

func compareIDs(a, b quota.ID) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key))
}

// heldCall asks one stripe for some of its tracked keys; at are their places among the
// ids that were asked for.
type heldCall struct {
	stripe int
	keys   []string
	at     []int
}

// HeldKeys reports what the region has applied of tracked keys. Those that have no share
// of their own are left out. Of a log, Hold is the larger of its share and its entries,
// in the policy's tokens, and Drained is whether the share is; of a bucket, Surrendered
// is what the grant with the reported version cut off its level.
func (s *Store) HeldKeys(ctx context.Context, ids []quota.ID) ([]quota.QuotaReport, error) {
	var calls []heldCall
	open := map[int]int{}
	for i, id := range ids {
		bucket, stripe, err := quota.PlaceOf(id, s.prefix, s.stripes)
		if err != nil {
			return nil, fmt.Errorf("read tracked keys: %w", err)
		}
		c, ok := open[stripe]
		if !ok || len(calls[c].keys) >= grantsPerCall {
			c = len(calls)
			open[stripe] = c
			calls = append(calls, heldCall{stripe: stripe})
		}
		calls[c].keys = append(calls[c].keys, bucket)
		calls[c].at = append(calls[c].at, i)
	}
	found := make([]quota.QuotaReport, len(ids))
	err := pipelined(ctx, s, len(calls), func(i int) int { return calls[i].stripe }, func(p redis.Pipeliner, i int) *redis.Cmd {
		return p.EvalSha(ctx, s.scripts.tracked.sha, calls[i].keys)
	}, func(i int, cmd *redis.Cmd) error {
		rows, err := cmd.Slice()
		if err != nil {
			return err
		}
		if len(rows) != len(calls[i].at) {
			return fmt.Errorf("%d rows for %d keys", len(rows), len(calls[i].at))
		}
		for k, row := range rows {
			at := calls[i].at[k]
			if found[at], err = heldKey(ids[at], row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, wrap("read tracked keys", err)
	}
	return slices.DeleteFunc(found, func(q quota.QuotaReport) bool { return q.ID.Key == "" }), nil
}

// heldKey reads one row of tracked.lua; the report is zero for a key without a record.
func heldKey(id quota.ID, row any) (quota.QuotaReport, error) {
	n, _, err := integers(row)
	switch {
	case err != nil:
		return quota.QuotaReport{}, err
	case len(n) == 0:
		return quota.QuotaReport{}, nil
	case len(n) != 9:
		return quota.QuotaReport{}, fmt.Errorf("tracked key: %d numbers, want nine", len(n))
	}
	live, stays, limit, base := float64(n[4]), quota.Tokens(n[5]), float64(n[7]), float64(n[8])
	q := quota.QuotaReport{
		ID: id, Version: n[0], Share: quota.Share{Capacity: quota.Tokens(n[1]), Refill: quota.Tokens(n[2])},
		Period: microseconds(n[3]), Hold: quota.Tokens(n[1]), Surrendered: quota.Tokens(n[6]),
	}
	switch {
	case live > 0 && limit > 0:
		q.Hold = max(q.Hold, quota.Tokens(math.Ceil(live*1000*base/limit)))
	case live > 0: // as for a whole policy
		q.Hold = max(q.Hold, stays)
	}
	q.Drained = q.Hold <= q.Share.Capacity
	return q, nil
}
