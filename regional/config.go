package regional

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/quota"
)

// Defaults of Config.
const (
	DefaultMaxInFlight = 8192
	DefaultLateWait    = time.Second
	DefaultLocalKeys   = 100_000
)

// Config is what an engine is made of. Only Store is mandatory, and Floor unless Standalone.
type Config struct {
	Store Store
	// KeyPrefix, when set, replaces quota.DefaultKeyPrefix in store keys.
	KeyPrefix string
	// Stripes is the number of stripes of the region's dataset.
	Stripes int
	// Standalone: there is no coordinator and no other region, so a global limit
	// is this region's in full.
	Standalone bool
	// Floor returns this region's floor of a global policy's limit: what it may
	// use before it has been told a share.
	Floor func(*quota.Policy) quota.Share
	// Nodes returns how many nodes of this region are alive, this one included.
	// It must not block. Nil means one.
	Nodes func() int
	// StoreDeadline is how long a check waits for the store where its policies state
	// no deadline; zero means quota.DefaultStoreDeadline.
	StoreDeadline time.Duration
	// MaxInFlight bounds the calls inside the store; one more takes its policy's
	// failure mode at once.
	MaxInFlight int
	// LateWait is how long a call may go on after the last deadline of its check.
	LateWait time.Duration
	// LocalKeys bounds the in-memory buckets that stand in for the store.
	LocalKeys int

	// Registerer, Logger and Tracer may be nil: then nothing is exported.
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	Tracer     trace.Tracer
}

// withDefaults fills what was left out, or names the field that is wrong.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Store == nil:
		return c, fmt.Errorf("regional: Config.Store is missing: %w", quota.ErrInvalid)
	case c.Floor == nil && !c.Standalone:
		return c, fmt.Errorf("regional: Config.Floor is missing and the region is not standalone: %w", quota.ErrInvalid)
	case c.Stripes <= 0:
		return c, fmt.Errorf("regional: Config.Stripes is %d, must be positive: %w", c.Stripes, quota.ErrInvalid)
	case c.MaxInFlight < 0 || c.LocalKeys < 0 || c.LateWait < 0:
		return c, fmt.Errorf("regional: Config.MaxInFlight, LocalKeys and LateWait must not be negative: %w", quota.ErrInvalid)
	}
	if c.KeyPrefix == "" {
		c.KeyPrefix = quota.DefaultKeyPrefix
	}
	if err := quota.CheckKeyPrefix(c.KeyPrefix); err != nil {
		return c, fmt.Errorf("regional: Config.KeyPrefix: %w", err)
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.StoreDeadline <= 0 {
		c.StoreDeadline = quota.DefaultStoreDeadline
	}
	if c.LateWait == 0 {
		c.LateWait = DefaultLateWait
	}
	if c.LocalKeys == 0 {
		c.LocalKeys = DefaultLocalKeys
	}
	if c.Nodes == nil {
		c.Nodes = func() int { return 1 }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
