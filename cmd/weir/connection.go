package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/rpc"
)

// tokenVariable holds the token itself. No flag does: the command lines of
// processes can be read by everybody on a machine.
const tokenVariable = "WEIR_TOKEN"

// maxToken bounds a token, in bytes; the server takes no more.
const maxToken = 1000

// kind is one of the two servers that commands speak with.
type kind struct {
	flag, url, usage string
	// of returns the URL in a context.
	of func(*savedContext) string
}

var (
	regionalNode = kind{
		"server", "http://localhost:8081", "URL of a regional node",
		func(c *savedContext) string { return c.Server },
	}
	coordinator = kind{
		"coordinator", "http://localhost:8080", "URL of the coordinator",
		func(c *savedContext) string { return c.Coordinator },
	}
)

// connection is how a command reaches a server. Each setting comes from its
// flag, else from its environment variable, else from the context, else it has a default.
type connection struct {
	env       *environment
	kind      kind
	url       string
	context   string
	tokenFile string
	timeout   time.Duration
}

func (c *connection) flags(cmd *cobra.Command, fs *pflag.FlagSet, timeout time.Duration) {
	fs.StringVar(&c.url, c.kind.flag, c.kind.url, c.kind.usage)
	fs.StringVar(&c.context, "context", "", "context to use instead of the current one")
	fs.StringVar(&c.tokenFile, "token-file", "", "file that holds the token; "+tokenVariable+" can hold the token itself")
	fs.DurationVar(&c.timeout, "timeout", timeout, "how long to wait for an answer")
	completeFlag(cmd, "context", contextNames(c.env))
	for _, name := range []string{c.kind.flag, "timeout"} {
		completeFlag(cmd, name, cobra.NoFileCompletions)
	}
}

// config settles what is in force. fs are the flags of the command that runs,
// bound to the environment.
func (c *connection) config(fs *pflag.FlagSet) (rpc.ClientConfig, error) {
	saved, err := loadContexts(c.env)
	if err != nil {
		return rpc.ClientConfig{}, err
	}
	name, chosen, err := saved.choose(c.context)
	if err != nil {
		return rpc.ClientConfig{}, err
	}
	out := rpc.ClientConfig{URL: c.url, Timeout: c.timeout}
	if own := c.kind.of(chosen); own != "" && !fs.Changed(c.kind.flag) {
		out.URL = own
	}
	out.Token, err = c.token(fs, name, chosen, out.URL)
	return out, err
}

// token finds the token to send. That of a context is sent to the servers of
// that context only: a URL from elsewhere must not carry it off.
func (c *connection) token(fs *pflag.FlagSet, name string, chosen *savedContext, url string) (rpc.Secret, error) {
	hint := func(format string, args ...any) { c.env.tokenHint = fmt.Sprintf(format, args...) }
	fromVariable, _ := c.env.lookupEnv(tokenVariable)
	fileVariable, _ := c.env.lookupEnv("WEIR_TOKEN_FILE")
	own := c.kind.of(chosen)
	foreign := fs.Changed(c.kind.flag) && url != own
	switch {
	// A file from the command line is nearer than a variable, one from a variable is not.
	case c.tokenFile != "" && (fromVariable == "" || c.tokenFile != fileVariable):
		hint("the token came from the file %s", c.tokenFile)
		return readToken("--token-file (or WEIR_TOKEN_FILE)", c.tokenFile)
	case fromVariable != "":
		hint("the token came from %s", tokenVariable)
		return checkToken(tokenVariable, fromVariable)
	case !chosen.hasToken():
		hint("no token was sent: set %s, or give a context one (weir context set --help)", tokenVariable)
		return "", nil
	case foreign:
		hint("no token was sent: that of context %s is for its own servers, and --%s (or WEIR_%s) names another one; set %s",
			name, c.kind.flag, strings.ToUpper(c.kind.flag), tokenVariable)
		return "", nil
	}
	hint("the token came from context %s", name)
	if chosen.TokenFile != "" {
		return readToken("token-file of context "+name, chosen.TokenFile)
	}
	return checkToken("token of context "+name, string(chosen.Token))
}

func readToken(what, path string) (rpc.Secret, error) {
	f, err := os.Open(path) //nolint:gosec // the user of the command says which file
	if err != nil {
		return "", usagef("%s: %w", what, err)
	}
	defer func() { _ = f.Close() }() // only read from
	return readTokenFrom(what, f)
}

func readTokenFrom(what string, r io.Reader) (rpc.Secret, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxToken+3)) // the longest one, a line break and one more
	if err != nil {
		return "", usagef("%s: %w", what, err)
	}
	return checkToken(what, string(text))
}

// checkToken refuses what cannot be sent in a header. It never shows the text.
func checkToken(what, text string) (rpc.Secret, error) {
	text = strings.TrimSpace(text)
	plain := func(r rune) bool { return r > ' ' && r < 0x7f }
	switch {
	case text == "":
		return "", usagef("%s: it is empty", what)
	case len(text) > maxToken || strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }):
		return "", usagef("%s: what it holds is no token: one word of at most %d letters, digits and signs", what, maxToken)
	}
	return rpc.Secret(text), nil
}

// admin is what the commands share that speak with the coordinator.
type admin struct {
	env  *environment
	conn connection
	out  output
}

// adminTimeout is longer than that of a check: a set of ten thousand policies
// takes its time.
const adminTimeout = 30 * time.Second

// newAdmin registers the flags, for cmd and the commands below it.
func newAdmin(env *environment, cmd *cobra.Command) *admin {
	a := &admin{env: env, conn: connection{env: env, kind: coordinator}}
	a.conn.flags(cmd, cmd.PersistentFlags(), adminTimeout)
	a.out.flags(cmd.PersistentFlags())
	completeFlag(cmd, "output", cobra.FixedCompletions(formats, noFiles))
	return a
}

// session is one run of a command against the coordinator.
type session struct {
	*rpc.PolicyClient
	cmd  *cobra.Command
	args []string
}

// run is the RunE of a command that speaks with the coordinator.
func (a *admin) run(do func(session) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.out.check(); err != nil {
			return err
		}
		client, err := a.client(cmd)
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		return do(session{client, cmd, args})
	}
}

func (a *admin) client(cmd *cobra.Command) (*rpc.PolicyClient, error) {
	cfg, err := a.conn.config(cmd.Flags())
	if err != nil {
		return nil, err
	}
	client, err := rpc.NewPolicyClient(cfg)
	if err != nil {
		return nil, usagef("--coordinator (or WEIR_COORDINATOR, or the context): %w", err)
	}
	return client, nil
}
