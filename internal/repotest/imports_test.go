package repotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/weirhq/weir"

// layers is the import table: what a package may import of this module,
// relative to it. "x/..." is x and everything below it. A package is governed by
// the first row that matches it; one without a row is a violation, so that a new
// folder is a decision. Tests are free to wire what they need.
var layers = []layer{
	{"quota", nil},
	{"splitter", []string{"quota"}},
	{"coordinator", []string{"quota", "splitter"}},
	// A store of the ledger: an adapter behind the coordinator's interface.
	{"coordinator/...", []string{"quota", "coordinator"}},
	{"regional", []string{"quota"}},
	{"policystore", []string{"quota"}},
	// A file source reads documents; the stores know the contract only.
	{"policystore/...", []string{"quota", "policystore", "policystore/document"}},
	{"lua", []string{"quota"}},
	{"migrations", nil},
	{"gen/...", []string{"gen/..."}},
	{"middleware/...", []string{"quota", "gen/...", "middleware/..."}},
	// Of the policy stores the contract and not an adapter: PolicyService is served from it.
	{"internal/rpc", []string{"quota", "policystore", "gen/..."}},
	{"internal/gossip", []string{"quota"}},
	{"internal/console", []string{"quota", "gen/..."}},
	// The simulator runs the real split in virtual time, on the Go models of the stores.
	{"internal/sim", []string{"quota", "splitter", "coordinator/..."}},
	{"internal/app", []string{
		"quota", "splitter", "coordinator/...", "regional", "policystore/...", "lua", "migrations",
		"gen/...", "middleware/...", "internal/rpc", "internal/gossip", "internal/console", "internal/sim",
	}},
	// Commands say their requests in the words of the domain and of the contract of policy stores.
	{"cmd/weir", []string{"quota", "policystore", "internal/app", "internal/rpc"}},
	{"internal/testenv", nil},
	{"internal/testenv/cmd/...", []string{"internal/testenv"}},
	{"internal/repotest", nil},
	{"chaos/...", []string{"..."}},
}

type layer struct {
	pkg string
	may []string
}

// externals says who may import a dependency that belongs to one place.
// "*/name" is any package of that name. tests lists who else may in test files.
var externals = []struct {
	prefix string
	may    []string
	tests  []string
}{
	{prefix: "github.com/redis/go-redis/", may: []string{"lua"}},
	{prefix: "github.com/hashicorp/memberlist", may: []string{"internal/gossip"}},
	{
		prefix: "connectrpc.com/",
		may:    []string{"internal/rpc", "middleware/...", "gen/..."},
		// End-to-end tests speak to the servers as a caller does.
		tests: []string{"internal/app", "cmd/weir", "chaos/..."},
	},
	{
		prefix: "google.golang.org/grpc",
		may:    []string{"middleware/..."},
		// A foreign client shows that gRPC is really spoken.
		tests: []string{"internal/rpc", "internal/app", "cmd/weir", "chaos/..."},
	},
	{
		prefix: "github.com/jackc/pgx/",
		// app opens the pools, migrations runs on one, testenv makes a schema per test.
		may: []string{"*/postgres", "internal/app", "migrations", "internal/testenv"},
	},
	{prefix: "github.com/testcontainers/", may: []string{"internal/testenv"}},
	{prefix: "github.com/moby/", may: []string{"internal/testenv"}},
}

// pure packages import nothing but the standard library and this module.
var pure = []string{"quota", "splitter"}

// goPackage is what `go list -json` says of one package, as far as it matters here.
type goPackage struct {
	ImportPath   string
	Name         string
	Dir          string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// rel is the package's path inside the module.
func (p goPackage) rel() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func TestImportTable(t *testing.T) {
	t.Parallel()
	report(t, checkImports(listPackages(t)))
}

func TestImportTableFindsViolations(t *testing.T) {
	t.Parallel()
	in := func(rel string) string { return module + "/" + rel }
	for _, tc := range []struct {
		name string
		pkg  goPackage
		want string
	}{
		{"domain imports an adapter", goPackage{ImportPath: in("quota"), Imports: []string{in("lua")}}, "quota imports lua"},
		{"domain imports a dependency", goPackage{ImportPath: in("quota"), Imports: []string{"golang.org/x/sync/errgroup"}}, "standard library"},
		{"adapter imports adapter", goPackage{ImportPath: in("lua"), Imports: []string{in("policystore/memory")}}, "lua imports policystore/memory"},
		{"store imports store", goPackage{ImportPath: in("policystore/memory"), Imports: []string{in("policystore/postgres")}}, "policystore/memory imports"},
		{"main reaches past app", goPackage{ImportPath: in("cmd/weir"), Imports: []string{in("lua")}}, "cmd/weir imports lua"},
		{"product imports testenv", goPackage{ImportPath: in("internal/app"), Imports: []string{in("internal/testenv")}}, "internal/testenv"},
		{"redis outside lua", goPackage{ImportPath: in("regional"), Imports: []string{"github.com/redis/go-redis/v9"}}, "go-redis"},
		{"redis in a test outside lua", goPackage{ImportPath: in("regional"), XTestImports: []string{"github.com/redis/go-redis/v9"}}, "go-redis"},
		{"pgx outside postgres", goPackage{ImportPath: in("coordinator"), Imports: []string{"github.com/jackc/pgx/v5"}}, "pgx"},
		{"connect in a use case", goPackage{ImportPath: in("coordinator"), Imports: []string{"connectrpc.com/connect"}}, "connectrpc"},
		{"unknown folder", goPackage{ImportPath: in("util")}, "util has no row"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			wantViolation(t, checkImports([]goPackage{tc.pkg}), tc.want)
		})
	}
	fine := []goPackage{
		{ImportPath: in("lua"), Imports: []string{in("quota"), "github.com/redis/go-redis/v9", "fmt"}},
		{ImportPath: in("policystore/postgres"), Imports: []string{in("policystore"), "github.com/jackc/pgx/v5/pgxpool"}},
		{ImportPath: in("regional"), XTestImports: []string{in("lua"), in("internal/testenv")}},
		{ImportPath: in("internal/app"), XTestImports: []string{"connectrpc.com/connect"}},
	}
	report(t, checkImports(fine))
}

func checkImports(pkgs []goPackage) []string {
	var bad []string
	for _, p := range pkgs {
		rel := p.rel()
		row := slices.IndexFunc(layers, func(l layer) bool { return matches(l.pkg, rel) })
		if row < 0 {
			bad = append(bad, rel+" has no row in the import table: say there what it may import")
			continue
		}
		for _, imp := range p.Imports {
			bad = append(bad, checkImport(rel, imp, layers[row].may)...)
			bad = append(bad, checkExternal(rel, imp, false)...)
		}
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			bad = append(bad, checkExternal(rel, imp, true)...)
		}
	}
	return bad
}

func checkImport(rel, imp string, may []string) []string {
	inside, ours := strings.CutPrefix(imp, module+"/")
	switch {
	case ours && !matchesAny(may, inside):
		return []string{fmt.Sprintf("%s imports %s; it may import %v", rel, inside, may)}
	case !ours && slices.Contains(pure, rel) && strings.Contains(strings.Split(imp, "/")[0], "."):
		return []string{fmt.Sprintf("%s imports %s; it may import the standard library only", rel, imp)}
	}
	return nil
}

func checkExternal(rel, imp string, test bool) []string {
	for _, e := range externals {
		if !strings.HasPrefix(imp, e.prefix) || matchesAny(e.may, rel) || test && matchesAny(e.tests, rel) {
			continue
		}
		return []string{fmt.Sprintf("%s imports %s, which only %v may", rel, imp, e.may)}
	}
	return nil
}

func matchesAny(patterns []string, rel string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, rel) })
}

// matches says whether the package rel is meant by pattern.
func matches(pattern, rel string) bool {
	if pattern == "..." {
		return true
	}
	if name, ok := strings.CutPrefix(pattern, "*/"); ok {
		return path.Base(rel) == name
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return rel == tree || strings.HasPrefix(rel, tree+"/")
	}
	return rel == pattern
}

// listPackages asks go for every package of the module.
func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Dir,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var pkgs []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatal("go list found no package")
	}
	return pkgs
}
