package lua

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/quota"
)

// What lease.lua replies of a lease that was over.
const (
	leaseRenewed = 2 // it is not any more
	leaseOver    = 3 // nothing was extended
)

// Clocks returns the clock of every stripe in microseconds. Each stripe's lease is
// counted by its own: the hosts of a cluster need not agree on the time.
func (s *Store) Clocks(ctx context.Context) ([]int64, error) {
	clocks := make([]int64, s.stripes)
	err := stripewise(ctx, s, func(p redis.Pipeliner, stripe int) *redis.Cmd {
		return p.EvalSha(ctx, s.scripts.clock.sha, []string{s.regionKey(stripe)})
	}, func(stripe int, cmd *redis.Cmd) error {
		now, _, err := clockReply(stripe, cmd)
		clocks[stripe] = now
		return err
	})
	if err != nil {
		return nil, wrap("read the clocks of the stripes", err)
	}
	return clocks, nil
}

// LeaseLeft returns how long the region's lease lasts yet, as one stripe says; zero
// when it is over.
func (s *Store) LeaseLeft(ctx context.Context) (time.Duration, error) {
	cmd, err := s.do(ctx, s.regionKey(0), command(s.scripts.clock.sha, []any{s.regionKey(0)}, nil))
	if err != nil {
		return 0, fmt.Errorf("read the lease: %w", err)
	}
	now, until, err := clockReply(0, cmd)
	if err != nil {
		return 0, wrap("read the lease", err)
	}
	return microseconds(max(0, until-now)), nil
}

func clockReply(stripe int, cmd *redis.Cmd) (now, until int64, err error) {
	if cmd.Err() != nil {
		return 0, 0, cmd.Err()
	}
	numbers, _, err := integers(cmd.Val())
	switch {
	case err != nil:
		return 0, 0, err
	case len(numbers) != 2:
		return 0, 0, fmt.Errorf("stripe %d: %w", stripe, quota.ErrUninitialised)
	}
	return numbers[0], numbers[1], nil
}

// Renew extends the lease of every stripe to ttl after the instant that its clock
// showed when the report was sent. In time that is one write a stripe. Where the lease
// was over, the lapse is settled first in the share records of these policies; lapsed
// says that there had been a lease before. It fails as Apply does, and repeating it is safe.
func (s *Store) Renew(ctx context.Context, epoch quota.Epoch, gen string, sent []int64, ttl time.Duration, policyIDs []string) (lapsed bool, err error) {
	if len(sent) != s.stripes {
		return false, fmt.Errorf("extend the lease: clocks of %d stripes, want %d: %w", len(sent), s.stripes, quota.ErrInvalid)
	}
	over, _, err := s.extend(ctx, leaseCall{epoch, gen, sent, ttl, "t", nil}, nil)
	if err != nil || len(over) == 0 {
		return false, err
	}
	for from := 0; ; from += grantsPerCall {
		ids := policyIDs[from:min(from+grantsPerCall, len(policyIDs))]
		last := from+grantsPerCall >= len(policyIDs)
		mode := "s"
		if last {
			mode = "e"
		}
		_, lapsed, err := s.extend(ctx, leaseCall{epoch, gen, sent, ttl, mode, ids}, over)
		if err != nil || last {
			return lapsed, err
		}
	}
}

// leaseCall is what lease.lua is called with on each stripe.
type leaseCall struct {
	epoch quota.Epoch
	gen   string
	sent  []int64
	ttl   time.Duration
	mode  string
	ids   []string
}

// extend calls lease.lua on the stripes given, or on all, and returns those whose lease
// is over and was not extended, and whether any was extended after its end.
func (s *Store) extend(ctx context.Context, c leaseCall, only map[int]bool) (over map[int]bool, lapsed bool, err error) {
	over = map[int]bool{}
	err = stripewise(ctx, s, func(p redis.Pipeliner, stripe int) *redis.Cmd {
		mode, keys := c.mode, make([]string, 1, 1+len(c.ids))
		keys[0] = s.regionKey(stripe)
		if only != nil && !only[stripe] {
			mode = "t" // nothing to settle here; it may have ended meanwhile
		} else {
			for _, id := range c.ids {
				keys = append(keys, s.shareKey(stripe, id))
			}
		}
		return p.EvalSha(ctx, s.scripts.lease.sha, keys, c.gen, int64(c.epoch), c.sent[stripe], c.ttl.Microseconds(), mode)
	}, func(stripe int, cmd *redis.Cmd) error {
		if cmd.Err() != nil {
			return wrap(fmt.Sprintf("stripe %d", stripe), cmd.Err())
		}
		code, _ := cmd.Val().(int64)
		if code == leaseOver {
			over[stripe] = true
		}
		lapsed = lapsed || code == leaseRenewed
		return applied(stripe, c.gen, c.epoch, []int64{code}, nil)
	})
	if err != nil {
		return nil, false, fmt.Errorf("extend the lease: %w", err)
	}
	return over, lapsed, nil
}
