package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
)

// home is a folder with a configuration file, and an environment that leads to it.
type home struct {
	dir string
	env map[string]string
}

func newHome(t *testing.T, config string, env map[string]string) home {
	t.Helper()
	h := home{t.TempDir(), map[string]string{}}
	h.env["XDG_CONFIG_HOME"] = h.dir
	maps.Copy(h.env, env)
	if config != "" {
		require.NoError(t, os.MkdirAll(filepath.Join(h.dir, "weir"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(h.dir, "weir", "config.yaml"), []byte(config), 0o600))
	}
	return h
}

func (h home) lookup(name string) (string, bool) {
	value, ok := h.env[name]
	return value, ok
}

// weir runs a command line and returns all that it wrote.
func (h home) weir(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(stdin), &out, &errs, h.lookup)
	return code, out.String(), errs.String()
}

// settle returns what a command of the coordinator would connect with.
func (h home) settle(t *testing.T, args ...string) (cfg rpc.ClientConfig, hint string, err error) {
	t.Helper()
	env := &environment{stderr: t.Output(), lookupEnv: h.lookup}
	cmd := &cobra.Command{Use: "test", SilenceErrors: true, SilenceUsage: true}
	a := newAdmin(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := env.bind(cmd); err != nil {
			return err
		}
		cfg, err = a.conn.config(cmd.Flags())
		return err
	}
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return cfg, env.tokenHint, err
}

const twoContexts = `
current: prod
contexts:
  prod:
    coordinator: https://prod.example.com
    server: https://node.prod.example.com
    token: weir_prod
  qa:
    coordinator: https://qa.example.com
    token-file: %s
  bare: {}
  keyring:
    token: weir_keyring
`

func TestPrecedenceOfSettings(t *testing.T) {
	t.Parallel()
	files := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(files, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	qa, other := file("qa", "weir_qa\n"), file("other", "weir_other")
	config := fmt.Sprintf(twoContexts, qa)
	type env map[string]string
	for _, tc := range []struct {
		name       string
		config     string
		env        env
		args       []string
		url, token string
		hint       string
	}{
		{name: "default", url: "http://localhost:8080", hint: "no token was sent"},
		{name: "context", config: config, url: "https://prod.example.com", token: "weir_prod", hint: "from context prod"},
		{name: "variable over context", config: config, env: env{"WEIR_COORDINATOR": "http://v"}, url: "http://v", hint: "that of context prod is for its own servers"},
		{name: "flag over variable", config: config, env: env{"WEIR_COORDINATOR": "http://v"}, args: []string{"--coordinator", "http://f"}, url: "http://f"},
		{name: "empty variable is none", config: config, env: env{"WEIR_COORDINATOR": "", "WEIR_TOKEN": "", "WEIR_CONTEXT": ""}, url: "https://prod.example.com", token: "weir_prod"},
		{name: "context of the variable", config: config, env: env{"WEIR_CONTEXT": "qa"}, url: "https://qa.example.com", token: "weir_qa"},
		{name: "context of the flag", config: config, env: env{"WEIR_CONTEXT": "qa"}, args: []string{"--context", "prod"}, url: "https://prod.example.com", token: "weir_prod"},
		{name: "context without settings", config: config, args: []string{"--context", "bare"}, url: "http://localhost:8080"},
		{name: "context with a token only", config: config, args: []string{"--context", "keyring"}, url: "http://localhost:8080", token: "weir_keyring"},
		{name: "token of the variable", config: config, env: env{"WEIR_TOKEN": " weir_v\n"}, url: "https://prod.example.com", token: "weir_v", hint: "from WEIR_TOKEN"},
		{name: "token of the variable to any server", config: config, env: env{"WEIR_TOKEN": "weir_v", "WEIR_COORDINATOR": "http://v"}, url: "http://v", token: "weir_v"},
		{name: "file of a variable", config: config, env: env{"WEIR_TOKEN_FILE": other}, url: "https://prod.example.com", token: "weir_other", hint: "from the file"},
		{name: "token over file, both variables", config: config, env: env{"WEIR_TOKEN": "weir_v", "WEIR_TOKEN_FILE": other}, url: "https://prod.example.com", token: "weir_v"},
		{name: "file of the flag over all", config: config, env: env{"WEIR_TOKEN": "weir_v", "WEIR_TOKEN_FILE": qa}, args: []string{"--token-file", other}, url: "https://prod.example.com", token: "weir_other"},
		{name: "the context's own URL by a variable", config: config, env: env{"WEIR_COORDINATOR": "https://prod.example.com"}, url: "https://prod.example.com", token: "weir_prod"},
		{name: "a bare token stays at home", config: config, env: env{"WEIR_COORDINATOR": "http://v"}, args: []string{"--context", "keyring"}, url: "http://v", hint: "no token was sent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg, hint, err := newHome(t, tc.config, tc.env).settle(t, tc.args...)
			require.NoError(t, err)
			require.Equal(t, tc.url, cfg.URL)
			require.Equal(t, tc.token, string(cfg.Token))
			require.Contains(t, hint, tc.hint)
			require.NotContains(t, hint, "weir_")
		})
	}
}

func TestPlaceOfConfiguration(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"home", map[string]string{"HOME": "/users/ada"}, "/users/ada/.config/weir/config.yaml"},
		{"XDG", map[string]string{"HOME": "/users/ada", "XDG_CONFIG_HOME": "/etc/xdg"}, "/etc/xdg/weir/config.yaml"},
		{"relative XDG is ignored", map[string]string{"HOME": "/users/ada", "XDG_CONFIG_HOME": "xdg"}, "/users/ada/.config/weir/config.yaml"},
		{"nowhere", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, contextsPath(home{env: tc.env}.lookup))
		})
	}
	code, _, stderr := home{}.weir("", "context", "set", "prod")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "neither XDG_CONFIG_HOME nor HOME is set")
}

// What is saved is read back, and a failed save leaves the file as it was.
func TestSaveContexts(t *testing.T) {
	t.Parallel()
	h := newHome(t, fmt.Sprintf(twoContexts, "/run/token"), nil)
	path := filepath.Join(h.dir, "weir", "config.yaml")
	code, _, stderr := h.weir("", "context", "use", "qa")
	require.Equal(t, exitOK, code, stderr)
	c, err := loadContexts(&environment{lookupEnv: h.lookup, stderr: t.Output()})
	require.NoError(t, err)
	require.Equal(t, "qa", c.Current)
	require.Len(t, c.Contexts, 4)
	require.Equal(t, savedContext{
		Server: "https://node.prod.example.com", Coordinator: "https://prod.example.com", Token: "weir_prod",
	}, *c.Contexts["prod"])
	require.Equal(t, "/run/token", c.Contexts["qa"].TokenFile)

	before, err := os.ReadFile(path)
	require.NoError(t, err)
	code, _, _ = h.weir("", "context", "set", "qa", "--server", "nonsense")
	require.Equal(t, exitUsage, code)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left beside the file")
}
