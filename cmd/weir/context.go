package main

import (
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
)

func newContext(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Say which deployment commands speak with",
		Long: "A context is how to reach one deployment: URLs and a token. They are kept in\n" +
			"~/.config/weir/config.yaml, or below $XDG_CONFIG_HOME. What a flag or an environment\n" +
			"variable says is stronger than the context.",
		Args: known,
		RunE: showHelp,
	}
	var out output
	out.flags(cmd.PersistentFlags())
	completeFlag(cmd, "output", cobra.FixedCompletions(formats, noFiles))
	cmd.AddCommand(
		newContextList(env, &out), newContextUse(env), newContextSet(env), newContextDelete(env), newContextShow(env, &out),
	)
	return cmd
}

// contextView is a context as it is shown: without its token.
type contextView struct {
	Name        string `json:"name"`
	Current     bool   `json:"current"`
	Server      string `json:"server,omitempty"`
	Coordinator string `json:"coordinator,omitempty"`
	Token       string `json:"token,omitempty"`
	TokenFile   string `json:"tokenFile,omitempty"`
}

func (c *contexts) view(name string) contextView {
	saved := c.Contexts[name]
	v := contextView{
		Name: name, Current: name == c.Current,
		Server: saved.Server, Coordinator: saved.Coordinator, TokenFile: saved.TokenFile,
	}
	if saved.Token != "" {
		v.Token = "set"
	}
	return v
}

func (v contextView) token() string {
	if v.TokenFile != "" {
		return "in " + v.TokenFile
	}
	if v.Token == "" {
		return "not set"
	}
	return v.Token
}

func newContextList(env *environment, out *output) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the contexts", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := out.check(); err != nil {
				return err
			}
			c, err := loadContexts(env)
			if err != nil {
				return err
			}
			views := []contextView{} // an empty list in JSON, not null
			for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
				views = append(views, c.view(name))
			}
			return out.print(env.stdout, own(views), func(w io.Writer) error {
				if len(views) == 0 {
					env.say("there are no contexts yet, see weir context set --help")
					return nil
				}
				t := newTable(w, "CURRENT", "NAME", "SERVER", "COORDINATOR", "TOKEN")
				for _, v := range views {
					current := ""
					if v.Current {
						current = "*"
					}
					t.row(current, v.Name, v.Server, v.Coordinator, v.token())
				}
				return t.flush()
			})
		},
	}
}

func newContextUse(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: takes(1, 1),
		ValidArgsFunction: onlyFirst(contextNames(env)),
		RunE: func(_ *cobra.Command, args []string) error {
			return changeContexts(env, func(c *contexts) error {
				if _, err := c.find(args[0]); err != nil {
					return err
				}
				c.Current = args[0]
				return nil
			})
		},
	}
}

func newContextSet(env *environment) *cobra.Command {
	var next savedContext
	var stdinToken, noToken, use bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Make a context, or change what the flags name of it",
		Long: "Makes a context, or changes what the flags name of it; an empty value removes a setting.\n" +
			"The first context becomes the current one. A token is read from stdin, or from a file each\n" +
			"time it is needed: on the command line others could read it.",
		Example: "  weir context set prod --coordinator https://weir.example.com --server https://limits.example.com\n" +
			"  weir context set prod --token-stdin < token.txt",
		Args: takes(1, 1), ValidArgsFunction: onlyFirst(contextNames(env)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, given := args[0], cmd.Flags().Changed
			if err := next.takeToken(env, given("token-file"), stdinToken, noToken); err != nil {
				return err
			}
			return changeContexts(env, func(c *contexts) error {
				saved, ok := c.Contexts[name]
				if !ok {
					saved = &savedContext{}
				}
				if given("server") {
					saved.Server = next.Server
				}
				if given("coordinator") {
					saved.Coordinator = next.Coordinator
				}
				if stdinToken || noToken || given("token-file") {
					saved.Token, saved.TokenFile = next.Token, next.TokenFile
				}
				if err := saved.check(name); err != nil {
					return usageError{err}
				}
				c.Contexts[name] = saved
				if use || c.Current == "" {
					c.Current = name
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&next.Server, "server", "", "URL of a regional node")
	cmd.Flags().StringVar(&next.Coordinator, "coordinator", "", "URL of the coordinator")
	cmd.Flags().StringVar(&next.TokenFile, "token-file", "", "file to read the token from each time it is needed")
	cmd.Flags().BoolVar(&stdinToken, "token-stdin", false, "keep the token that stands on stdin")
	cmd.Flags().BoolVar(&noToken, "no-token", false, "forget the token")
	cmd.Flags().BoolVar(&use, "use", false, "make it the current context")
	return cmd
}

// takeToken reads the token that flags of `weir context set` name.
func (c *savedContext) takeToken(env *environment, file, stdin, none bool) error {
	switch {
	case file && stdin || file && none || stdin && none:
		return usagef("--token-file, --token-stdin and --no-token exclude each other")
	case stdin:
		token, err := readTokenFrom("stdin", env.stdin)
		c.Token = savedToken(token)
		return err
	case c.TokenFile == "":
		return nil
	}
	path, err := filepath.Abs(c.TokenFile) // commands run in other folders
	c.TokenFile = path
	return err
}

func newContextDelete(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Forget a context and its token", Args: takes(1, 1),
		ValidArgsFunction: onlyFirst(contextNames(env)),
		RunE: func(_ *cobra.Command, args []string) error {
			return changeContexts(env, func(c *contexts) error {
				if _, err := c.find(args[0]); err != nil {
					return err
				}
				delete(c.Contexts, args[0])
				if c.Current == args[0] {
					c.Current = ""
				}
				return nil
			})
		},
	}
}

func newContextShow(env *environment, out *output) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context, by default the one in use", Args: takes(0, 1),
		ValidArgsFunction: onlyFirst(contextNames(env)),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			c, err := loadContexts(env)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				if _, err := c.find(args[0]); err != nil {
					return err
				}
				name = args[0]
			} else if name, _, err = c.choose(name); err != nil {
				return err
			}
			if name == "" {
				return usagef("no context is in use; %s", c.list())
			}
			v := c.view(name)
			return out.print(env.stdout, own(v), func(w io.Writer) error {
				return pairs(w, "name", v.Name, "server", v.Server, "coordinator", v.Coordinator, "token", v.token())
			})
		},
	}
	// The one flag here that a variable stands for: WEIR_CONTEXT says what is in use.
	cmd.PersistentFlags().StringVar(&name, "context", "", "the same as NAME")
	completeFlag(cmd, "context", contextNames(env))
	return cmd
}

func changeContexts(env *environment, change func(*contexts) error) error {
	c, err := loadContexts(env)
	if err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	return c.save()
}
