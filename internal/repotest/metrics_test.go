package repotest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	metricName = regexp.MustCompile(`^weir_[a-z][a-z_]*[a-z]$`)
	shownName  = regexp.MustCompile("`(weir_[a-z_]+)[`{]")
)

// docs/operations.md tells of every metric, and of none that does not exist. The name
// of a metric stands whole in the code, so that it is found from an alert.
func TestEveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	exist := metricsIn(t, root(t))
	if len(exist) < 40 {
		t.Fatalf("found only %d metrics; does this test still see them?", len(exist))
	}
	report(t, checkMetrics(read(t, "docs/operations.md"), exist))

	some := map[string]string{"weir_a_total": "a.go:1", "weir_b": "b.go:2"}
	wantViolation(t, checkMetrics("`weir_a_total{kind}`", some), "b.go:2: docs/operations.md does not say what weir_b is")
	wantViolation(t, checkMetrics("`weir_a_total`, `weir_b`, `weir_c`", some), "there is no metric weir_c")
	report(t, checkMetrics("`weir_a_total{kind}`, `weir_b`", some))
}

func checkMetrics(doc string, exist map[string]string) []string {
	var bad, documented []string
	for _, m := range shownName.FindAllStringSubmatch(doc, -1) {
		documented = append(documented, m[1])
		if _, ok := exist[m[1]]; !ok {
			bad = append(bad, "docs/operations.md: there is no metric "+m[1])
		}
	}
	for name, place := range exist {
		if !slices.Contains(documented, name) {
			bad = append(bad, fmt.Sprintf("%s: docs/operations.md does not say what %s is, and when to look", place, name))
		}
	}
	return bad
}

// metricsIn returns the names in files that use the Prometheus library, with a place of each.
func metricsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != dir || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		uses := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			return strings.Contains(i.Path.Value, "prometheus/client_golang")
		})
		if !uses {
			return nil
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if name, err := strconv.Unquote(literal.Value); err == nil && metricName.MatchString(name) {
				found[name] = files.Position(literal.Pos()).String()
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
