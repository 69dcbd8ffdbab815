package lua

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirhq/weir/quota"
)

// call is one script call that waits for its shard.
type call struct {
	ctx  context.Context //nolint:containedctx // the caller's, who may leave while the call is queued
	key  string          // decides the shard
	cmd  once
	done chan struct{}
	// sent is whether the present cmd may have left; see take.
	sent atomic.Bool
}

// once is a command that the client must not send twice when the fate of the first
// sending is unknown. Redirections, which say that nothing ran, are still followed.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// shard is the queue of one primary. Calls that wait for the same primary leave
// together: a batch is whatever was queued while the last one was on its way, so
// batching adds no wait of its own.
type shard struct {
	mu      sync.Mutex
	waiting []*call
	flying  int
	// starting is whether a flight was started that has not taken its first batch:
	// whatever comes meanwhile goes along.
	starting bool
}

// maxFlying lets one batch be written while the one before is being answered.
const maxFlying = 2

// promptLoads is how often the scripts are loaded for one call without a pause.
const promptLoads = 3

// longestPause is the longest wait before a call that Redis refused is sent again.
const longestPause = 16 * time.Millisecond

// do runs one script call and waits for its answer or the end of ctx. A call that
// is still queued when ctx ends is never sent. One that Redis refused to run, as it
// does while slots move or a node starts, is sent again until ctx ends, but for no
// longer than the store waits for an answer.
func (s *Store) do(ctx context.Context, key string, args []any) (*redis.Cmd, error) {
	c := &call{ctx: ctx, key: key, done: make(chan struct{})}
	started := time.Now()
	var refused *Error
	for try := 0; ; try++ {
		c.sent.Store(false)
		c.cmd = once{redis.NewCmd(ctx, args...)}
		if err := s.enqueue(c); err != nil { //nolint:contextcheck // a batch outlives its callers
			return nil, err
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			if refused != nil {
				return nil, &Error{kind: refused.kind, ran: c.sent.Load(), cause: refused.cause}
			}
			return nil, &Error{kind: "timeout", ran: c.sent.Load(), cause: ctx.Err()}
		}
		err := c.cmd.Err()
		if err == nil {
			return c.cmd.Cmd, nil
		}
		e, retry := interpret(err)
		if !retry || time.Since(started) > s.limits.patience || !s.recover(ctx, c, e, try) {
			return nil, e
		}
		refused = e
		c.done = make(chan struct{})
	}
}

// recover does what the refusal of a call asks for, and reports whether to send the
// call again.
func (s *Store) recover(ctx context.Context, c *call, e *Error, try int) bool {
	switch e.kind {
	case "noscript":
		if s.reload(ctx, c.key) != nil {
			return false
		}
		if try < promptLoads {
			return true
		}
	case "readonly", "moved":
		s.rdb.ReloadState(ctx)
	}
	pause := time.NewTimer(min(longestPause, time.Millisecond<<min(try, 10)))
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Store) shardOf(ctx context.Context, key string) (*shard, error) {
	node, err := s.rdb.MasterForKey(ctx, key)
	if err != nil {
		e, _ := interpret(err)
		return nil, e
	}
	addr := node.Options().Addr
	s.mu.RLock()
	sh := s.shards[addr]
	s.mu.RUnlock()
	if sh != nil {
		return sh, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh = s.shards[addr]; sh == nil {
		sh = &shard{}
		s.shards[addr] = sh
	}
	return sh, nil
}

func (s *Store) enqueue(c *call) error {
	sh, err := s.shardOf(c.ctx, c.key)
	if err != nil {
		return err
	}
	sh.mu.Lock()
	if len(sh.waiting) >= s.limits.queue {
		sh.dropExpiredLocked()
	}
	if len(sh.waiting) >= s.limits.queue {
		sh.mu.Unlock()
		return &Error{kind: "queue_full", cause: fmt.Errorf("%d checks wait for one shard: %w", s.limits.queue, quota.ErrOverloaded)}
	}
	sh.waiting = append(sh.waiting, c)
	s.startLocked(sh)
	sh.mu.Unlock()
	return nil
}

// startLocked starts a flight if one is allowed and none is about to take what waits.
func (s *Store) startLocked(sh *shard) {
	if sh.starting || sh.flying >= maxFlying {
		return
	}
	sh.starting = true
	sh.flying++
	s.flights.Add(1)
	go s.fly(sh)
}

// dropExpiredLocked makes room by forgetting calls that nobody waits for.
func (sh *shard) dropExpiredLocked() {
	kept := sh.waiting[:0]
	for _, c := range sh.waiting {
		if c.ctx.Err() == nil {
			kept = append(kept, c)
		}
	}
	clear(sh.waiting[len(kept):])
	sh.waiting = kept
}

// take returns the next batch, or nil when the shard has nothing to do; the flight is
// over then. first is whether it is the flight's first.
func (s *Store) take(sh *shard, first bool) []*call {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if first {
		sh.starting = false
	}
	limit := s.limits.batch
	batch := make([]*call, 0, min(limit, len(sh.waiting)))
	i := 0
	for ; i < len(sh.waiting) && len(batch) < limit; i++ {
		// Marked as sent before the look at its context: a caller whose context
		// ended and who sees no mark knows that it never will be sent.
		c := sh.waiting[i]
		if c.sent.Store(true); c.ctx.Err() == nil {
			batch = append(batch, c)
		} else {
			c.sent.Store(false)
		}
	}
	rest := copy(sh.waiting, sh.waiting[i:])
	clear(sh.waiting[rest:])
	sh.waiting = sh.waiting[:rest]
	if len(batch) == 0 {
		sh.flying--
		return nil
	}
	if rest > 0 {
		s.startLocked(sh)
	}
	return batch
}

// fly sends batches until nothing waits. The commands outlive the contexts of their
// callers: what was sent will be answered, and whoever still listens learns of it.
func (s *Store) fly(sh *shard) {
	defer s.flights.Done()
	for first := true; ; first = false {
		batch := s.take(sh, first)
		if batch == nil {
			return
		}
		ctx := context.Background()
		pipe := s.rdb.Pipeline()
		for _, c := range batch {
			_ = pipe.Process(ctx, c.cmd)
		}
		_, _ = pipe.Exec(ctx) // every command carries its own error
		for _, c := range batch {
			close(c.done)
		}
	}
}
