package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// savedToken is a token in the configuration file: the one place where it is
// written as it is. Everywhere else it prints as hidden.
type savedToken string

func (savedToken) String() string { return "(hidden)" }

// GoString hides the token from %#v.
func (savedToken) GoString() string { return "(hidden)" }

// MarshalYAML writes the token as it is, for the configuration file.
func (t savedToken) MarshalYAML() (any, error) { return string(t), nil }

// savedContext is how to reach one deployment.
type savedContext struct {
	Server      string     `yaml:"server,omitempty"`
	Coordinator string     `yaml:"coordinator,omitempty"`
	Token       savedToken `yaml:"token,omitempty"`
	TokenFile   string     `yaml:"token-file,omitempty"`
}

func (c *savedContext) hasToken() bool { return c.Token != "" || c.TokenFile != "" }

func (c *savedContext) check(name string) error {
	if !validContextName(name) {
		return fmt.Errorf("%q is no name of a context: use 1 to 64 letters, digits and _.-", name)
	}
	if c.Token != "" && c.TokenFile != "" {
		return fmt.Errorf("context %s has both token and token-file; keep one of them", name)
	}
	for field, text := range map[string]string{"server": c.Server, "coordinator": c.Coordinator} {
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("%s of context %s is no URL such as https://weir.example.com", field, name)
		}
		if u.User != nil {
			return fmt.Errorf("%s of context %s: a URL is shown to everybody, so it must hold no user and no password", field, name)
		}
	}
	return nil
}

func validContextName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("_.-", r)
	})
}

// contexts is the configuration file.
type contexts struct {
	path     string
	Current  string                   `yaml:"current,omitempty"`
	Contexts map[string]*savedContext `yaml:"contexts,omitempty"`
}

// contextsPath is empty when the user has no home directory.
func contextsPath(lookupEnv func(string) (string, bool)) string {
	// A relative path is to be ignored, says the XDG specification.
	if dir, ok := lookupEnv("XDG_CONFIG_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "weir", "config.yaml")
	}
	home := "HOME"
	if runtime.GOOS == "windows" {
		home = "USERPROFILE"
	}
	if dir, ok := lookupEnv(home); ok && dir != "" {
		return filepath.Join(dir, ".config", "weir", "config.yaml")
	}
	return ""
}

// loadContexts reads the configuration file; without one there are no contexts.
// It warns when others can read a token there.
func loadContexts(env *environment) (*contexts, error) {
	c := &contexts{path: contextsPath(env.lookupEnv), Contexts: map[string]*savedContext{}}
	if c.path == "" {
		return c, nil
	}
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, usagef("configuration: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(text, c, yaml.Strict()); err != nil {
		return nil, usagef("configuration: %s%s: it is not as \"weir context set\" writes it", c.path, yamlPlace(err))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
		if c.Contexts[name] == nil {
			c.Contexts[name] = &savedContext{}
		}
		if err := c.Contexts[name].check(name); err != nil {
			return nil, usagef("configuration: %s: %w", c.path, err)
		}
	}
	c.warn(env)
	return c, nil
}

// yamlPlace is where an error of the YAML library is. The rest of its text
// quotes the file, and so perhaps a token.
func yamlPlace(err error) string {
	if e, ok := errors.AsType[yaml.Error](err); ok && e.GetToken() != nil && e.GetToken().Position != nil {
		at := e.GetToken().Position
		return fmt.Sprintf(":%d:%d", at.Line, at.Column)
	}
	return ""
}

func (c *contexts) warn(env *environment) {
	info, err := os.Stat(c.path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o077 == 0 {
		return
	}
	for _, saved := range c.Contexts {
		if saved.Token != "" {
			env.say("weir: warning: other users can read the tokens in %s; run: chmod 600 %s", c.path, c.path)
			return
		}
	}
}

// choose returns the context with the name, else the current one, else an empty one.
func (c *contexts) choose(name string) (string, *savedContext, error) {
	source := "--context (or WEIR_CONTEXT)"
	if name == "" {
		name, source = c.Current, c.path+": current"
	}
	if name == "" {
		return "", &savedContext{}, nil
	}
	saved, err := c.find(name)
	if err != nil {
		return "", nil, usagef("%s: %w", source, err)
	}
	return name, saved, nil
}

func (c *contexts) find(name string) (*savedContext, error) {
	saved, ok := c.Contexts[name]
	if !ok {
		return nil, usagef("there is no context %q; %s", name, c.list())
	}
	return saved, nil
}

// list names all contexts.
func (c *contexts) list() string {
	if len(c.Contexts) == 0 {
		return "there are none yet, see weir context set --help"
	}
	return "there are " + strings.Join(slices.Sorted(maps.Keys(c.Contexts)), ", ")
}

// save writes the file so that it is there whole or not at all, readable by its
// owner only. Of two that save at once, the later one wins.
func (c *contexts) save() error {
	if c.path == "" {
		return errors.New("there is no place for the configuration: neither XDG_CONFIG_HOME nor HOME is set")
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return errors.New("configuration: it cannot be written as YAML") // the cause may quote a token
	}
	path := c.path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // the link stays
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	// CreateTemp makes files that only their owner can read.
	f, err := os.CreateTemp(filepath.Dir(path), ".config-*.yaml")
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("configuration: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
