package document_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestBrokenDocuments compares the message for every broken document with the
// golden file beside it. Covers case 132 (conflicting spellings), case 100
// (duplicate ids name both places), and the parse side of cases 76, 77, 82 and 92.
func TestBrokenDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 30 {
		t.Fatalf("only %d broken documents", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			policies, err := document.Policies(read(t, file))
			if err == nil {
				t.Fatal("the document was accepted")
			}
			if len(policies) != 0 {
				t.Error("policies returned beside an error")
			}
			var problems *quota.DocumentError
			if !errors.As(err, &problems) || !errors.Is(err, quota.ErrInvalid) {
				t.Fatalf("error is a %T", err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			got := err.Error() + "\n"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(read(t, golden)), got); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func load(t *testing.T, file string) []*quota.Policy {
	t.Helper()
	policies, err := document.Policies(read(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return policies
}

func TestExampleDocument(t *testing.T) {
	want := []*quota.Policy{{
		ID: "api-free", Match: []quota.Condition{{Attribute: "plan", Pattern: "free"}}, Key: []string{"apiKey"},
		Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailLocal,
		Limit: quota.Limit{Capacity: 20 * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
	}, {
		ID: "login", Match: []quota.Condition{{Attribute: "route", Pattern: "POST /auth/login"}}, Key: []string{"ip", "username"},
		Algorithm: quota.SlidingLog, OnStoreFailure: quota.FailClosed,
		Limit: quota.Limit{Capacity: 10 * quota.Token, Period: time.Minute},
	}}
	if diff := cmp.Diff(want, load(t, "testdata/good/distributed-rate-limiter.yaml")); diff != "" {
		t.Error(diff)
	}
}

// TestReferencePage keeps the example and the messages of the documentation true.
func TestReferencePage(t *testing.T) {
	page := string(read(t, "../../docs/policies.md"))
	_, rest, _ := strings.Cut(page, "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no example")
	}
	policies, err := document.Policies([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(load(t, "testdata/good/distributed-rate-limiter.yaml"), policies); diff != "" {
		t.Error(diff)
	}
	const broken = `policies:
  - id: a
    algorithm: token-bucket
    capcity: 20
    refill: 100/1m
    onStoreFailure: close
`
	if _, err := document.Policies([]byte(broken)); err == nil || !strings.Contains(page, err.Error()) {
		t.Errorf("the page does not show: %v", err)
	}
}
