package lua

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/quota"
)

const (
	// grantsPerCall bounds how long one script of the agent occupies a shard.
	grantsPerCall = 64
	// stripesPerPipeline bounds the answers that are read in one go.
	stripesPerPipeline = 64
	// demandFields bounds the region's demand hash; two fields a quota. Totals are not
	// bounded by it: there are no more of them than policies.
	demandFields = 40_000
	// flaggedKeys bounds the flagged keys of one policy in it, so that one that is
	// attacked leaves room for the others: twice what the coordinator tracks.
	flaggedKeys = 8192
	// demandKept is how long demand waits for an agent.
	demandKept = 30 * time.Second
)

// State reads the region records of all stripes.
func (s *Store) State(ctx context.Context) (quota.DatasetState, error) {
	state := quota.DatasetState{Complete: true, Empty: true}
	now := s.rdb.Time(ctx)
	at, err := now.Result()
	if err != nil {
		return state, wrap("read the clock", err)
	}
	state.Now = at.UnixMicro()
	first := true
	err = stripewise(ctx, s, func(p redis.Pipeliner, stripe int) *redis.StringCmd {
		return p.Get(ctx, s.regionKey(stripe))
	}, func(_ int, cmd *redis.StringCmd) error {
		text, err := cmd.Result()
		if errors.Is(err, redis.Nil) {
			state.Complete = false
			return nil
		}
		if err != nil {
			return err
		}
		gen, epoch, err := parseRegion(text)
		if err != nil {
			return err
		}
		state.Empty = false
		switch {
		case first:
			state.Gen, state.Epoch, first = gen, epoch, false
		case state.Gen != gen:
			state.Gen = ""
		}
		state.Epoch = min(state.Epoch, epoch)
		return nil
	})
	if err != nil {
		return state, wrap("read region records", err)
	}
	return state, nil
}

func parseRegion(text string) (gen string, epoch quota.Epoch, err error) {
	fields := strings.Split(text, ":")
	if len(fields) != 5 {
		return "", 0, fmt.Errorf("region record %q: want five fields", text)
	}
	n, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("region record %q: %w", text, err)
	}
	return fields[0], quota.Epoch(n), nil
}

func wrap(what string, err error) error {
	e, _ := interpret(err)
	return fmt.Errorf("%s: %w", what, e)
}

// stripewise pipelines one command per stripe and hands each answer to got. The
// commands must be safe to repeat.
func stripewise[C redis.Cmder](ctx context.Context, s *Store, add func(p redis.Pipeliner, stripe int) C, got func(stripe int, cmd C) error) error {
	return pipelined(ctx, s, s.stripes, func(i int) int { return i }, add, got)
}

// pipelined sends n commands, a bounded number at a time, and hands each answer to got.
// The i-th runs on the stripe that stripeOf says. The commands must be safe to repeat.
func pipelined[C redis.Cmder](ctx context.Context, s *Store, n int, stripeOf func(i int) int, add func(p redis.Pipeliner, i int) C, got func(i int, cmd C) error) error {
	for from := 0; from < n; from += stripesPerPipeline {
		cmds := make([]C, min(stripesPerPipeline, n-from))
		for started := time.Now(); ; {
			_, _ = s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i := range cmds {
					cmds[i] = add(p, from+i)
				}
				return nil
			})
			again, err := reloadFor(ctx, s, cmds, func(i int) int { return stripeOf(from + i) }, started)
			if err != nil {
				return err
			}
			if !again {
				break
			}
		}
		for i, cmd := range cmds {
			if err := got(from+i, cmd); err != nil {
				return err
			}
		}
	}
	return nil
}

// reloadFor loads the scripts into the primaries that lack them and says whether the
// batch is to be run again.
func reloadFor[C redis.Cmder](ctx context.Context, s *Store, cmds []C, stripeOf func(i int) int, started time.Time) (bool, error) {
	if time.Since(started) > s.limits.patience {
		return false, nil
	}
	loaded := map[*redis.Client]bool{}
	for i, cmd := range cmds {
		if !redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			continue
		}
		key := s.regionKey(stripeOf(i))
		node, err := s.rdb.MasterForKey(ctx, key)
		if err != nil {
			return false, err
		}
		if loaded[node] {
			continue
		}
		loaded[node] = true
		if err := s.reload(ctx, key); err != nil {
			return false, err
		}
	}
	return len(loaded) > 0, nil
}

// Initialise gives every stripe the dataset's id. A stripe without a region record
// starts full when the region is fresh, else empty-handed and paused for a second.
func (s *Store) Initialise(ctx context.Context, gen string, fresh bool) error {
	if gen == "" || strings.ContainsAny(gen, ": ") {
		return fmt.Errorf("dataset id %q: it must not be empty nor hold a colon or space: %w", gen, quota.ErrInvalid)
	}
	isFresh := "0"
	if fresh {
		isFresh = "1"
	}
	err := stripewise(ctx, s, func(p redis.Pipeliner, stripe int) *redis.Cmd {
		return p.EvalSha(ctx, s.scripts.region.sha, []string{s.regionKey(stripe)}, gen, isFresh)
	}, func(_ int, cmd *redis.Cmd) error { return cmd.Err() })
	if err != nil {
		return wrap("initialise stripes", err)
	}
	return nil
}

// Held reports what every stripe has applied of these policies: where stripes differ,
// the lowest version and the largest share. A policy without a record on some stripe
// has version zero; one without any is left out.
func (s *Store) Held(ctx context.Context, policyIDs []string) ([]quota.QuotaReport, error) {
	reports := make([]quota.QuotaReport, 0, len(policyIDs))
	for from := 0; from < len(policyIDs); from += grantsPerCall {
		ids := policyIDs[from:min(from+grantsPerCall, len(policyIDs))]
		found := make([]heldShare, len(ids))
		var now int64
		at, err := s.rdb.Time(ctx).Result()
		if err != nil {
			return nil, wrap("read the clock", err)
		}
		now = at.UnixMicro()
		err = stripewise(ctx, s, func(p redis.Pipeliner, stripe int) *redis.SliceCmd {
			keys := make([]string, len(ids))
			for i, id := range ids {
				keys[i] = s.shareKey(stripe, id)
			}
			return p.MGet(ctx, keys...)
		}, func(_ int, cmd *redis.SliceCmd) error {
			values, err := cmd.Result()
			if err != nil {
				return err
			}
			for i, v := range values {
				text, _ := v.(string)
				if err := found[i].add(text, now); err != nil {
					return fmt.Errorf("share record of %s: %w", ids[i], err)
				}
			}
			return nil
		})
		if err != nil {
			return nil, wrap("read share records", err)
		}
		for i, h := range found {
			if h.any {
				reports = append(reports, h.report(ids[i]))
			}
		}
	}
	return reports, nil
}

// heldShare gathers one policy's records over the stripes.
type heldShare struct {
	any, missing bool
	version      int64
	share, perm  quota.Share
	period       time.Duration
	hold         quota.Tokens
}

func (h *heldShare) add(text string, now int64) error {
	if text == "" {
		h.missing = true
		return nil
	}
	text, _, _ = strings.Cut(text, "|")
	fields := strings.Split(text, ":")
	if len(fields) != 15 {
		return fmt.Errorf("%q: want fifteen fields", text)
	}
	n := make([]int64, len(fields))
	for i, f := range fields {
		if i > 4 && i < 10 {
			continue // the state of the buckets, which is not reported
		}
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		n[i] = v
	}
	version, period := n[1], microseconds(n[4])
	if !h.any || version < h.version {
		h.version = version
	}
	h.any = true
	// A change of the period may have reached some stripes only.
	longer := max(h.period, period)
	share := quota.Share{Capacity: quota.Tokens(n[2]), Refill: quota.Tokens(n[3])}
	perm := quota.Share{Capacity: quota.Tokens(n[10]), Refill: quota.Tokens(n[11])}
	h.share = h.share.Per(h.period, longer).Max(share.Per(period, longer))
	h.perm = h.perm.Per(h.period, longer).Max(perm.Per(period, longer))
	h.period = longer
	// Entries admitted under a larger share leave within a window of its shrink.
	window := int64(math.Ceil(float64(n[4]) * (1 + quota.Drift)))
	if n[12] > 0 && now-n[13] < window {
		h.hold = max(h.hold, quota.Tokens(n[12]))
	}
	return nil
}

func (h *heldShare) report(policy string) quota.QuotaReport {
	r := quota.QuotaReport{
		ID: quota.ID{Policy: policy}, Version: h.version, Share: h.share, Permanent: h.perm.Min(h.share), Period: h.period,
		Drained: h.hold <= h.share.Capacity, Hold: h.hold,
	}
	if h.missing {
		r.Version = 0
	}
	return r
}

// demandLetters begin the names of the demand hash's fields, by kind: what was offered,
// and what was admitted.
var demandLetters = []string{quota.DemandShared: "oa", quota.DemandFlagged: "fg", quota.DemandTracked: "tu", quota.DemandShort: "sv"}

// AddDemand adds what one node was offered to the region's sum. What does not fit
// the bound is left out: it is a measurement, not a charge.
func (s *Store) AddDemand(ctx context.Context, demands []quota.Demand) error {
	const perCall = 500
	for from := 0; from < len(demands); from += perCall {
		args := []any{demandKept.Milliseconds(), demandFields, flaggedKeys}
		for _, d := range demands[from:min(from+perCall, len(demands))] {
			args = append(args, demandLetters[d.Kind], d.Policy+"\x00"+d.Key, int64(d.Offered), int64(d.Admitted))
		}
		if _, err := s.do(ctx, s.demandKey(), command(s.scripts.demandAdd.sha, []any{s.demandKey()}, args)); err != nil {
			return fmt.Errorf("add demand: %w", err)
		}
	}
	return nil
}

// TakeDemand returns what the nodes added since it was last called, and starts anew.
func (s *Store) TakeDemand(ctx context.Context) (quota.DemandWindow, error) {
	cmd, err := s.do(ctx, s.demandKey(), command(s.scripts.demandTake.sha,
		[]any{s.demandKey(), s.takenKey()}, []any{time.Hour.Milliseconds()}))
	if err != nil {
		return quota.DemandWindow{}, fmt.Errorf("take demand: %w", err)
	}
	reply, ok := cmd.Val().([]any)
	if !ok || len(reply)%2 != 1 {
		return quota.DemandWindow{}, &Error{kind: "script", ran: true, cause: fmt.Errorf("take demand: reply is a %T of %d", cmd.Val(), len(reply))}
	}
	elapsed, _ := reply[0].(int64)
	window := quota.DemandWindow{Elapsed: microseconds(elapsed)}
	index := map[string]int{}
	for i := 1; i < len(reply); i += 2 {
		field, _ := reply[i].(string)
		text, _ := reply[i+1].(string)
		n, err := strconv.ParseInt(text, 10, 64)
		policy, key, ok := strings.Cut(field, "\x00")
		if err != nil || !ok || policy == "" {
			continue // not written by this version
		}
		which, policy := policy[:1], policy[1:]
		kind := slices.IndexFunc(demandLetters, func(pair string) bool { return strings.Contains(pair, which) })
		if kind < 0 {
			continue // counts fields
		}
		name := demandLetters[kind] + field[1:]
		at, known := index[name]
		if !known {
			at = len(window.Demands)
			index[name] = at
			window.Demands = append(window.Demands, quota.Demand{Policy: policy, Key: key, Kind: quota.DemandKind(kind)})
		}
		if which == demandLetters[kind][:1] {
			window.Demands[at].Offered = quota.Tokens(n)
		} else {
			window.Demands[at].Admitted = quota.Tokens(n)
		}
	}
	return window, nil
}

// HoldAgent makes a node the region's agent or keeps it so; a ttl of zero lets go of
// what the node holds. It returns whether the node is the agent.
func (s *Store) HoldAgent(ctx context.Context, node string, ttl time.Duration) (bool, error) {
	cmd, err := s.do(ctx, s.agentKey(), command(s.scripts.agent.sha, []any{s.agentKey()}, []any{node, ttl.Milliseconds()}))
	if err != nil {
		return false, fmt.Errorf("agent lock: %w", err)
	}
	n, _ := cmd.Val().(int64)
	return n == 1, nil
}
