package app_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/app"
	"github.com/weirhq/weir/quota"
)

func validRegional() app.RegionalConfig {
	return app.RegionalConfig{Listen: ":8081", Region: "us-east", Nodes: 1, Policies: "policies.yaml", Report: time.Second, Deadline: 5 * time.Millisecond}
}

func TestRegionalConfigNamesTheFlag(t *testing.T) {
	if err := func() error { c := validRegional(); return c.Validate() }(); err != nil {
		t.Fatalf("a valid configuration is refused: %v", err)
	}
	for flag, spoil := range map[string]func(*app.RegionalConfig){
		"region":          func(c *app.RegionalConfig) { c.Region = "us east" },
		"policies":        func(c *app.RegionalConfig) { c.Policies = "" },
		"region-nodes":    func(c *app.RegionalConfig) { c.Nodes = 0 },
		"report-interval": func(c *app.RegionalConfig) { c.Report = time.Hour },
		"store-deadline":  func(c *app.RegionalConfig) { c.Deadline = time.Hour },
		"coordinator":     func(c *app.RegionalConfig) { c.Coordinator = []string{"http://a:8080", "coordinator:8080"} },
		"listen":          func(c *app.RegionalConfig) { c.Listen = "8081" },
	} {
		c := validRegional()
		spoil(&c)
		wantFlag(t, c.Validate(), flag)
	}
}

func TestCoordinatorConfigNamesTheFlag(t *testing.T) {
	valid := app.CoordinatorConfig{Listen: ":8080", Regions: []string{"a", "b"}, Policies: "p.yaml", Rebalance: time.Minute}
	if err := valid.Validate(); err != nil {
		t.Fatalf("a valid configuration is refused: %v", err)
	}
	for flag, spoil := range map[string]func(*app.CoordinatorConfig){
		"regions":            func(c *app.CoordinatorConfig) { c.Regions = []string{"a", "a"} },
		"postgres":           func(c *app.CoordinatorConfig) { c.Policies = "" },
		"advertise":          func(c *app.CoordinatorConfig) { c.Advertise = "coordinator" },
		"auth":               func(c *app.CoordinatorConfig) { c.Auth = "password" },
		"rebalance-interval": func(c *app.CoordinatorConfig) { c.Rebalance = time.Millisecond },
		"listen":             func(c *app.CoordinatorConfig) { c.Listen = "nowhere" },
	} {
		c := valid
		spoil(&c)
		wantFlag(t, c.Validate(), flag)
	}
}

func wantFlag(t *testing.T, err error, flag string) {
	t.Helper()
	var config *app.ConfigError
	if !errors.As(err, &config) || config.Flag != flag || !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("got %v, want a problem with --%s", err, flag)
		return
	}
	if !strings.Contains(err.Error(), app.EnvName(flag)) {
		t.Errorf("%q does not name the environment variable", err)
	}
}

func TestEnvironmentSetsFlags(t *testing.T) {
	set := func(args []string, env map[string]string) (app.RegionalConfig, error) {
		var c app.RegionalConfig
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		c.Flags(fs)
		if err := fs.Parse(args); err != nil {
			return c, err
		}
		return c, app.BindEnv(fs, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	}
	c, err := set([]string{"--region", "eu-west"}, map[string]string{
		"WEIR_REGION": "us-east", "WEIR_REDIS": "a:1,b:2", "WEIR_REPORT_INTERVAL": "250ms",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Region != "eu-west" || len(c.Redis.Addrs) != 2 || c.Report != 250*time.Millisecond {
		t.Errorf("got region %q, redis %q, report %s", c.Region, c.Redis.Addrs, c.Report)
	}
	if _, err := set(nil, map[string]string{"WEIR_REPORT_INTERVAL": "soon"}); err == nil || !strings.Contains(err.Error(), "WEIR_REPORT_INTERVAL") {
		t.Errorf("got %v, want an error that names the variable", err)
	}
}

func TestDevStartsFromAFileAndRefusesABadOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte("policies:\n  - id: x\n    algorithm: token-bucket\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := app.StartDev(t.Context(), app.DevConfig{Host: "127.0.0.1", Policies: path, Rebalance: time.Second}, quiet())
	if err == nil || !strings.Contains(err.Error(), "onStoreFailure") {
		t.Fatalf("got %v, want the document's problems", err)
	}
	if err := os.WriteFile(path, app.ExamplePolicies, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := app.StartDev(t.Context(), app.DevConfig{Host: "127.0.0.1", Policies: path, Rebalance: time.Second}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
}
