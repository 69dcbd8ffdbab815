package lua

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/weirhq/weir/quota"
)

// DefaultStripes is how many stripes a region is given at its first start.
const DefaultStripes = 256

// maxStripes keeps the agent's walk over all stripes short.
const maxStripes = 4096

// startAttempts is how often loading the scripts is tried at the start while Redis does
// not answer in time.
const startAttempts = 5

// Config says how to reach one region's Redis Cluster. Only Addrs is mandatory.
type Config struct {
	// Addrs are seeds, host:port; the cluster tells the rest.
	Addrs              []string
	Username, Password string
	// TLS is used on every link, those to discovered nodes too; nil means none.
	TLS *tls.Config
	// Prefix begins every key; DefaultPrefix when empty. Two deployments that share a
	// cluster must differ in it. Letters, digits, "-" and "_" only.
	Prefix string
	// Stripes is how many stripes a new region gets; DefaultStripes when zero. A
	// region that has data keeps the number it started with.
	Stripes int
	// QueueLimit bounds the checks that wait for one shard; 4096 when zero.
	QueueLimit int
	// BatchLimit bounds the calls of one pipeline; 256 when zero.
	BatchLimit int
	// ReadTimeout bounds the wait for one pipeline; one second when zero. Checks
	// stop waiting at their own deadline, long before.
	ReadTimeout time.Duration
	// DialTimeout bounds the making of a connection; one second when zero.
	DialTimeout time.Duration
}

func (c *Config) setDefaults() error {
	if len(c.Addrs) == 0 {
		return fmt.Errorf("redis: no address given; pass host:port of at least one node: %w", quota.ErrInvalid)
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	for _, r := range c.Prefix {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			return fmt.Errorf("redis prefix %q: only letters, digits, - and _ may be used: %w", c.Prefix, quota.ErrInvalid)
		}
	}
	if c.Stripes == 0 {
		c.Stripes = DefaultStripes
	}
	if c.Stripes < 1 || c.Stripes > maxStripes {
		return fmt.Errorf("redis stripes %d: use 1 to %d: %w", c.Stripes, maxStripes, quota.ErrInvalid)
	}
	setDefault(&c.QueueLimit, 4096)
	setDefault(&c.BatchLimit, 256)
	setDefault(&c.ReadTimeout, time.Second)
	setDefault(&c.DialTimeout, time.Second)
	return nil
}

func setDefault[T int | time.Duration](v *T, value T) {
	if *v <= 0 {
		*v = value
	}
}

// Store is one region's quotas in Redis Cluster. It is safe for concurrent use.
type Store struct {
	rdb     *redis.ClusterClient
	scripts scripts
	prefix  string
	stripes int
	limits  struct {
		queue, batch int
		patience     time.Duration
	}

	loading singleflight.Group
	// swept is the last epoch that this store has written to every stripe.
	swept   atomic.Pointer[sweep]
	mu      sync.RWMutex
	shards  map[string]*shard
	flights sync.WaitGroup
}

// Open connects to the cluster, loads the scripts and agrees with it on the number of
// stripes. It fails when the cluster does not answer within ctx.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	return open(ctx, cfg, func(source string) string { return source })
}

func open(ctx context.Context, cfg Config, rewrite func(string) string) (*Store, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Store{
		rdb: redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: cfg.Addrs, Username: cfg.Username, Password: cfg.Password, TLSConfig: cfg.TLS,
			ReadTimeout: cfg.ReadTimeout, WriteTimeout: cfg.ReadTimeout, DialTimeout: cfg.DialTimeout,
			// Reconnects are spread out, so that a node that comes back is not
			// kept down by those who waited for it.
			MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 100 * time.Millisecond,
			MaxConcurrentDials: 4, DialerRetries: 1,
			DisableRoutingPolicies: true, DisableIdentity: true,
		}),
		scripts: newScripts(rewrite),
		prefix:  cfg.Prefix,
		shards:  map[string]*shard{},
	}
	s.limits.queue, s.limits.batch, s.limits.patience = cfg.QueueLimit, cfg.BatchLimit, cfg.ReadTimeout
	if err := s.start(ctx, cfg.Stripes); err != nil {
		_ = s.rdb.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) start(ctx context.Context, stripes int) error {
	err := s.rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		return s.loadAtStart(ctx, node)
	})
	if err != nil {
		e, _ := interpret(err)
		return fmt.Errorf("load scripts: %w", e)
	}
	if err := s.rdb.SetNX(ctx, s.stripesKey(), stripes, 0).Err(); err != nil {
		e, _ := interpret(err)
		return fmt.Errorf("agree on stripes: %w", e)
	}
	n, err := s.rdb.Get(ctx, s.stripesKey()).Int()
	if err != nil {
		e, _ := interpret(err)
		return fmt.Errorf("agree on stripes: %w", e)
	}
	if n < 1 || n > maxStripes {
		return fmt.Errorf("key %s holds %d stripes, not 1 to %d; another program uses the prefix: %w",
			s.stripesKey(), n, maxStripes, quota.ErrInvalid)
	}
	s.stripes = n
	return nil
}

// loadAtStart loads the scripts, which may be sent again: a Redis that is busy while
// everything starts at once takes longer to compile them than it may for a check.
func (s *Store) loadAtStart(ctx context.Context, node *redis.Client) error {
	for attempt := 1; ; attempt++ {
		err := s.load(ctx, node)
		slow, ok := errors.AsType[net.Error](err)
		if !ok || !slow.Timeout() || attempt == startAttempts || ctx.Err() != nil {
			return err
		}
	}
}

// load puts every script into one primary.
func (s *Store) load(ctx context.Context, node *redis.Client) error {
	_, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, script := range s.scripts.all() {
			p.ScriptLoad(ctx, script.source)
		}
		return nil
	})
	return err
}

// reload loads the scripts again into the primary of a key, once for all who wait.
// Whoever stops waiting does not end it for the others.
func (s *Store) reload(ctx context.Context, key string) error {
	node, err := s.rdb.MasterForKey(ctx, key)
	if err != nil {
		return err
	}
	s.flights.Add(1)
	loaded := s.loading.DoChan(node.Options().Addr, func() (any, error) {
		return nil, s.load(context.WithoutCancel(ctx), node)
	})
	done := make(chan error, 1)
	go func() {
		defer s.flights.Done()
		done <- (<-loaded).Err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Prefix returns what every key begins with.
func (s *Store) Prefix() string { return s.prefix }

// Stripes returns how many stripes the region has.
func (s *Store) Stripes() int { return s.stripes }

// Close waits for calls on their way and closes the connections. No call may be
// started after it.
func (s *Store) Close() error {
	s.flights.Wait()
	return s.rdb.Close()
}
