package lua

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/quota"
)

// Apply writes the grants that are newer than what each stripe holds, on every stripe,
// and raises the epoch. It fails with quota.ErrFenced when a stripe belongs to another
// dataset or has seen a newer epoch, and with quota.ErrUninitialised when one has no
// region record. A failed Apply may have reached some stripes; repeating it is safe.
//
// Grants of tracked keys go to their key's stripe alone, and before those of policies: a
// key that is to keep its share is pinned before its policy's share changes. One whose
// key names none of its policy fails with quota.ErrInvalid, and nothing is applied.
func (s *Store) Apply(ctx context.Context, epoch quota.Epoch, gen string, grants []quota.Grant) error {
	policies, calls, err := s.sort(grants)
	if err != nil {
		return err
	}
	if err := s.applyKeys(ctx, epoch, gen, calls); err != nil {
		return err
	}
	now := sweep{gen, epoch}
	if len(calls) > 0 && len(policies) == 0 {
		if last := s.swept.Load(); last != nil && *last == now {
			return nil // every stripe has seen the epoch
		}
	}
	if err := s.applyPolicies(ctx, epoch, gen, policies); err != nil {
		return err
	}
	s.swept.Store(&now)
	return nil
}

// sweep is a dataset and the epoch that all its stripes have seen.
type sweep struct {
	gen   string
	epoch quota.Epoch
}

func (s *Store) applyPolicies(ctx context.Context, epoch quota.Epoch, gen string, grants []quota.Grant) error {
	for from := 0; ; from += grantsPerCall {
		chunk := grants[from:min(from+grantsPerCall, len(grants))]
		args := []any{gen, int64(epoch)}
		for _, g := range chunk {
			args = append(args, grantArgs(g)...)
		}
		err := stripewise(ctx, s, func(p redis.Pipeliner, stripe int) *redis.Cmd {
			keys := make([]string, 1, 1+len(chunk))
			keys[0] = s.regionKey(stripe)
			for _, g := range chunk {
				keys = append(keys, s.shareKey(stripe, g.ID.Policy))
			}
			return p.EvalSha(ctx, s.scripts.apply.sha, keys, args...)
		}, func(stripe int, cmd *redis.Cmd) error {
			if cmd.Err() != nil {
				return wrap(fmt.Sprintf("stripe %d", stripe), cmd.Err())
			}
			numbers, _, err := integers(cmd.Val())
			return applied(stripe, gen, epoch, numbers, err)
		})
		if err != nil {
			return fmt.Errorf("apply grants: %w", err)
		}
		if from+grantsPerCall >= len(grants) {
			return nil
		}
	}
}

// keyCall is one script call with grants of tracked keys of one stripe.
type keyCall struct {
	stripe int
	keys   []string
	args   []any
}

// sort takes grants of tracked keys apart from those of policies, into calls of bounded
// length.
func (s *Store) sort(grants []quota.Grant) (policies []quota.Grant, calls []keyCall, err error) {
	open := map[int]int{} // stripe to its call that has room
	held := map[int]int{} // call to its grants
	for _, g := range grants {
		if g.ID.Key == "" {
			policies = append(policies, g)
			continue
		}
		bucket, stripe, err := quota.PlaceOf(g.ID, s.prefix, s.stripes)
		if err != nil {
			return nil, nil, fmt.Errorf("apply grants: %w", err)
		}
		at, ok := open[stripe]
		if !ok || held[at] >= grantsPerCall {
			at = len(calls)
			open[stripe] = at
			calls = append(calls, keyCall{stripe: stripe})
		}
		held[at]++
		c := &calls[at]
		c.keys = append(c.keys, bucket, s.shareKey(stripe, g.ID.Policy))
		c.args = append(append(c.args, grantArgs(g)...), g.ID.Key, g.ID.Policy)
	}
	return policies, calls, nil
}

func (s *Store) applyKeys(ctx context.Context, epoch quota.Epoch, gen string, calls []keyCall) error {
	err := pipelined(ctx, s, len(calls), func(i int) int { return calls[i].stripe }, func(p redis.Pipeliner, i int) *redis.Cmd {
		c := &calls[i]
		keys := make([]string, 0, len(c.keys)+2)
		keys = append(keys, s.regionKey(c.stripe))
		keys = append(append(keys, c.keys...), s.trackedKey(c.stripe))
		return p.EvalSha(ctx, s.scripts.apply.sha, keys, append([]any{gen, int64(epoch)}, c.args...)...)
	}, func(i int, cmd *redis.Cmd) error {
		stripe := calls[i].stripe
		if cmd.Err() != nil {
			return wrap(fmt.Sprintf("stripe %d", stripe), cmd.Err())
		}
		numbers, _, err := integers(cmd.Val())
		return applied(stripe, gen, epoch, numbers, err)
	})
	if err != nil {
		return fmt.Errorf("apply grants of keys: %w", err)
	}
	return nil
}

func applied(stripe int, gen string, epoch quota.Epoch, numbers []int64, err error) error {
	switch {
	case err != nil:
		return err
	case len(numbers) > 0 && numbers[0] == 0:
		return fmt.Errorf("stripe %d: dataset %q at epoch %d is not its own: %w", stripe, gen, epoch, quota.ErrFenced)
	case len(numbers) > 0 && numbers[0] == -1:
		return fmt.Errorf("stripe %d: %w", stripe, quota.ErrUninitialised)
	}
	return nil
}

// grantArgs lists the values of one grant for apply.lua.
func grantArgs(g quota.Grant) []any {
	life, narrow := quota.BucketForm(g.Limit, g.Floor)
	form := "w"
	if narrow {
		form = "n"
	}
	what, blocks := "B", "0"
	if g.Algorithm == quota.SlidingLog {
		what = "L"
	}
	if quota.BlocksAfterLoss(g.Limit.Period) {
		blocks = "1"
	}
	if g.Drop {
		what = "D"
	}
	if g.ID.Key != "" {
		what = strings.ToLower(what)
	}
	return []any{
		int64(g.Limit.Capacity), g.Version, int64(g.Share.Capacity), int64(g.Share.Refill), g.Limit.Period.Microseconds(),
		int64(g.Permanent.Capacity), int64(g.Permanent.Refill), int64(g.Gift), int64(g.Floor.Capacity + g.Gift),
		life.Milliseconds(), form, what, blocks,
	}
}
