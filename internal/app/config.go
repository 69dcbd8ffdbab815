package app

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

// Each configuration registers its own flags, so that field, default and help are
// one line. BindEnv gives every flag an environment variable of the same name.

// BindEnv sets the flags that were not given from the environment: --redis-prefix is
// WEIR_REDIS_PREFIX. An empty variable is as good as none. It returns an error that names the variable when its value is wrong.
func BindEnv(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var err error
	fs.VisitAll(func(f *pflag.Flag) {
		name := EnvName(f.Name)
		value, ok := lookup(name)
		if err != nil || f.Changed || !ok || value == "" {
			return
		}
		if setErr := fs.Set(f.Name, value); setErr != nil {
			err = fmt.Errorf("environment variable %s: %w", name, setErr)
		}
	})
	return err
}

// EnvName is the environment variable of a flag.
func EnvName(flag string) string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// RedisConfig says how to reach a region's Redis Cluster.
type RedisConfig struct {
	Addrs        []string
	Username     string
	PasswordFile string
	TLS          bool
	Prefix       string
	Stripes      int
}

// Flags registers the configuration's flags.
func (c *RedisConfig) Flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Addrs, "redis", nil, "nodes of the region's Redis Cluster, host:port,...; one that answers is enough")
	fs.StringVar(&c.Username, "redis-username", "", "ACL user of the Redis Cluster")
	fs.StringVar(&c.PasswordFile, "redis-password-file", "", "file that holds the password of the Redis Cluster")
	fs.BoolVar(&c.TLS, "redis-tls", false, "use TLS on every link to the Redis Cluster")
	fs.StringVar(&c.Prefix, "redis-prefix", lua.DefaultPrefix, "what every key begins with; deployments that share a cluster must differ in it")
	fs.IntVar(&c.Stripes, "redis-stripes", lua.DefaultStripes, "stripes of a new region; a region that has data keeps its number")
}

func (c *RedisConfig) store() (lua.Config, error) {
	cfg := lua.Config{Addrs: c.Addrs, Username: c.Username, Prefix: c.Prefix, Stripes: c.Stripes}
	if len(c.Addrs) == 0 {
		return cfg, invalid("redis", "no address; pass host:port of at least one node of the region's Redis Cluster")
	}
	for _, addr := range c.Addrs {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return cfg, invalid("redis", "%q is not host:port", addr)
		}
	}
	password, err := secretFile("redis-password-file", c.PasswordFile)
	if err != nil {
		return cfg, err
	}
	cfg.Password = password
	if c.TLS {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return cfg, nil
}

// RegionalConfig configures one node of one region.
type RegionalConfig struct {
	Listen      string
	Region      string
	Zone        string
	Node        string
	Nodes       int
	Coordinator []string
	Policies    string
	Snapshot    string
	TokenFile   string
	Redis       RedisConfig
	Report      time.Duration
	Deadline    time.Duration
	Drain       time.Duration
	OTLP        string
}

// Flags registers the configuration's flags.
func (c *RegionalConfig) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Listen, "listen", ":8081", "address to serve checks, metrics and health on")
	fs.StringVar(&c.Region, "region", "", "the node's region")
	fs.StringVar(&c.Zone, "zone", "", "the node's zone")
	fs.StringVar(&c.Node, "node", "", "name of the node, unique in its region (default: host name and port)")
	fs.IntVar(&c.Nodes, "region-nodes", 1, "nodes of the region: each uses that part of the region's share while Redis is away")
	fs.StringSliceVar(&c.Coordinator, "coordinator", nil, "URLs of the coordinators, comma-separated; without one the region is the only one and has every limit in full")
	fs.StringVar(&c.Policies, "policies", "", "YAML file of policies, read again when it changes; without one the policies come from the coordinator")
	fs.StringVar(&c.Snapshot, "policy-snapshot", "", "file that keeps the coordinator's policies over a restart of the node")
	fs.StringVar(&c.TokenFile, "token-file", "", "file that holds the node's API token for the coordinator, of role region")
	fs.DurationVar(&c.Report, "report-interval", time.Second, "how often the region reports to the coordinator")
	fs.DurationVar(&c.Deadline, "store-deadline", quota.DefaultStoreDeadline, "how long a check waits for Redis where its policies state no storeDeadline")
	fs.DurationVar(&c.Drain, "drain-delay", 5*time.Second, "how long to go on accepting calls after a stop was asked for, so that load balancers notice")
	fs.StringVar(&c.OTLP, "otlp-endpoint", "", "send traces to this OTLP gRPC endpoint, host:port; none are made without it")
	c.Redis.Flags(fs)
}

// Validate checks what does not need any other party.
func (c *RegionalConfig) Validate() error {
	switch {
	case !quota.ValidRegion(quota.Region(c.Region)):
		return invalid("region", "%q is not a region's name; use letters, digits, - and _, for example us-east", c.Region)
	case c.Policies == "" && len(c.Coordinator) == 0:
		return invalid("policies", "no file and no --coordinator; one of them must say what the policies are")
	case c.Policies != "" && c.Snapshot != "":
		return invalid("policy-snapshot", "the policies come from a file already, --policies")
	case c.Nodes < 1:
		return invalid("region-nodes", "%d; a region has at least this node", c.Nodes)
	case c.Deadline < time.Millisecond || c.Deadline > 10*time.Second:
		return invalid("store-deadline", "%s; use 1ms to 10s", c.Deadline)
	case c.Report < 100*time.Millisecond || c.Report > time.Minute:
		return invalid("report-interval", "%s; use 100ms to 1m", c.Report)
	}
	for _, u := range c.Coordinator {
		if err := checkURL("coordinator", u); err != nil {
			return err
		}
	}
	return checkListen(c.Listen)
}

// CoordinatorConfig configures the coordinator.
type CoordinatorConfig struct {
	Listen    string
	Regions   []string
	Policies  string
	Postgres  PostgresConfig
	Advertise string
	Auth      string
	AdminFile string
	Rebalance time.Duration
	Drain     time.Duration
	OTLP      string
}

// Flags registers the configuration's flags.
func (c *CoordinatorConfig) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Listen, "listen", ":8080", "address to serve regions, the console, metrics and health on")
	fs.StringSliceVar(&c.Regions, "regions", nil, "every region that shares the limits, comma-separated")
	fs.StringVar(&c.Policies, "policies", "", "YAML file of policies, read again when it changes")
	fs.StringVar(&c.Auth, "auth", "", "who may call the coordinator: token asks everybody for an API token, none asks nobody (default: token with --postgres, else none)")
	fs.StringVar(&c.AdminFile, "admin-token-file", "", "file that holds the secret of the first administrator, who makes the other tokens")
	c.Postgres.Flags(fs)
	fs.StringVar(&c.Advertise, "advertise", "", "URL where regions reach this coordinator, told by those that do not lead (default: the host name and the port of --listen)")
	fs.DurationVar(&c.Rebalance, "rebalance-interval", time.Minute, "how often every limit is split anew")
	fs.DurationVar(&c.Drain, "drain-delay", 5*time.Second, "how long to go on accepting calls after a stop was asked for, so that load balancers notice")
	fs.StringVar(&c.OTLP, "otlp-endpoint", "", "send traces to this OTLP gRPC endpoint, host:port; none are made without it")
}

// Validate checks what does not need any other party.
func (c *CoordinatorConfig) Validate() error {
	if len(c.Regions) == 0 {
		return invalid("regions", "none; name every region that shares the limits, for example us-east,eu-west")
	}
	for i, r := range c.Regions {
		if !quota.ValidRegion(quota.Region(r)) {
			return invalid("regions", "%q is not a region's name; use letters, digits, - and _", r)
		}
		if slices.Contains(c.Regions[:i], r) {
			return invalid("regions", "%q is named twice", r)
		}
	}
	if c.Policies == "" && c.Postgres.URL == "" {
		return invalid("postgres", "no URL and no --policies; one of them must say what the policies are")
	}
	if c.Advertise != "" {
		if err := checkURL("advertise", c.Advertise); err != nil {
			return err
		}
	}
	if c.Auth != "" && c.Auth != authToken && c.Auth != authNone {
		return invalid("auth", "%q; use %s or %s", c.Auth, authToken, authNone)
	}
	if c.Rebalance < time.Second || c.Rebalance > 10*time.Minute {
		return invalid("rebalance-interval", "%s; use 1s to 10m", c.Rebalance)
	}
	return checkListen(c.Listen)
}

// DevConfig configures a whole deployment in one process.
type DevConfig struct {
	Host      string
	Port      int
	Policies  string
	Traffic   bool
	Rebalance time.Duration
}

// Flags registers the configuration's flags.
func (c *DevConfig) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Host, "host", "127.0.0.1", "address to bind; anything but loopback exposes an unprotected server")
	fs.IntVar(&c.Port, "port", 8080, "port of the coordinator; the regions take the next three, 0 picks free ones")
	fs.StringVar(&c.Policies, "policies", "", "YAML file of policies, read again when it changes (default: built-in examples)")
	fs.BoolVar(&c.Traffic, "traffic", false, "run a client population whose regional mix shifts")
	fs.DurationVar(&c.Rebalance, "rebalance-interval", 5*time.Second, "how often every limit is split anew")
}

// Validate checks what does not need any other party.
func (c *DevConfig) Validate() error {
	if c.Rebalance < time.Second || c.Rebalance > 10*time.Minute {
		return invalid("rebalance-interval", "%s; use 1s to 10m", c.Rebalance)
	}
	if c.Port < 0 || c.Port > 65532 {
		return invalid("port", "%d; use 1 to 65532, or 0 for free ones", c.Port)
	}
	return nil
}

// ConfigError is a setting that cannot work. It is quota.ErrInvalid to errors.Is.
type ConfigError struct {
	// Flag is the setting's name without dashes.
	Flag string
	// Problem says what is wrong and what to use instead.
	Problem string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("--%s (or %s): %s", e.Flag, EnvName(e.Flag), e.Problem)
}

func (e *ConfigError) Unwrap() error { return quota.ErrInvalid }

func invalid(flag, format string, args ...any) error {
	return &ConfigError{Flag: flag, Problem: fmt.Sprintf(format, args...)}
}

// The values of --auth.
const (
	authToken = "token"
	authNone  = "none"
)

// secretFile reads a secret from the file that a flag names; no file is no secret.
func secretFile(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return "", invalid(flag, "%v", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", invalid(flag, "%s is empty", path)
	}
	return secret, nil
}

func checkURL(flag, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return invalid(flag, "not an http or https URL with a host, for example http://coordinator:8080")
	}
	return nil
}

func checkListen(addr string) error {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return invalid("listen", "%q is not host:port; for example :8081 or 127.0.0.1:8081", addr)
	}
	return nil
}
