package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirhq/weir/internal/rpc"
)

// However a token is given and whatever goes wrong, no command repeats it: not
// as data, not as a message, not in an error.
func TestTokenIsNeverShown(t *testing.T) {
	t.Parallel()
	admin := rpc.NewSecret()
	locked := servePolicies(t, admin)
	stranger := rpc.NewSecret() // well-formed, and known to no server
	for name, secret := range map[string]string{
		"good": string(admin), "unknown": string(stranger), "malformed": "precious\tword", "not plain": "précious",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "token")
			require.NoError(t, os.WriteFile(file, []byte(secret), 0o600))
			inFile := fmt.Sprintf("current: prod\ncontexts:\n  prod:\n    coordinator: %s\n    server: %s\n    token: %q\n", locked, locked, secret)
			for place, h := range map[string]home{
				"context":         newHome(t, inFile, nil),
				"file of context": newHome(t, fmt.Sprintf("current: prod\ncontexts:\n  prod: { coordinator: %q, token-file: %q }\n", locked, file), nil),
				"variable":        newHome(t, "", map[string]string{"WEIR_TOKEN": secret, "WEIR_COORDINATOR": locked, "WEIR_SERVER": locked}),
				"file":            newHome(t, "", map[string]string{"WEIR_TOKEN_FILE": file, "WEIR_COORDINATOR": locked}),
				"broken file":     newHome(t, inFile+"    unknown: "+fmt.Sprintf("%q", secret)+"\n", nil),
				"broken YAML":     newHome(t, inFile+"   - {"+fmt.Sprintf("%q", secret)+"\n", nil),
				"token for key":   newHome(t, fmt.Sprintf("contexts:\n  %q: {}\n  prod: %q\n", secret, secret), nil),
				"twice":           newHome(t, inFile+"    token: "+fmt.Sprintf("%q", secret)+"\n", nil),
			} {
				for _, line := range everyCommand {
					code, stdout, stderr := h.weir(secret, strings.Fields(line)...)
					for _, part := range []string{secret, strings.TrimPrefix(secret, "weir_"), "precious", "précious"} {
						if strings.Contains(stdout+stderr, part) {
							t.Errorf("%s: weir %s (exit code %d) shows the token:\n%s%s", place, line, code, stdout, stderr)
						}
					}
				}
			}
		})
	}
}

// everyCommand has a line for each command that may have to do with a token,
// some of which fail.
var everyCommand = []string{
	"whoami", "whoami -o json", "whoami --log-level debug", "whoami --coordinator http://127.0.0.1:1", "whoami --token-file -",
	"policy list", "policy get", "policy get x", "policy history", "policy audit -o yaml", "policy diff 0", "policy diff 0 7",
	"policy apply -f -", "policy apply -f - --dry-run", "policy apply --delete x", "policy rollback 0", "policy rollback 9",
	"policy lint --remote /dev/null",
	"policy override list", "policy override get x a=b", "policy override set x a=b --unlimited", "policy override delete x a=b",
	"token list", "token list -o json", "token revoke nobody", "token create x --role king",
	"check a=b", "explain a=b",
	"context list", "context list -o json", "context show", "context show -o yaml", "context show nobody",
	"context set mine --token-stdin", "context list -o yaml", "context use mine", "context delete mine",
	"__complete policy get ", "__complete context use ", "__complete token revoke ",
}

func TestSavedTokenPrintsAsHidden(t *testing.T) {
	t.Parallel()
	c := savedContext{Token: "weir_precious"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		require.NotContains(t, fmt.Sprintf(verb, c), "precious", verb)
		require.NotContains(t, fmt.Sprintf(verb, c.Token), "precious", verb)
	}
}
