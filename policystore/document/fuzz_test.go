package document_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

// FuzzParse feeds any bytes: they are refused with a DocumentError, or accepted
// and then written and read back unchanged.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/broken/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		policies, err := document.Policies(data)
		if err != nil {
			var problems *quota.DocumentError
			if !errors.As(err, &problems) || len(problems.Problems) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		again, err := document.Policies(document.Marshal(policies))
		if err != nil {
			t.Fatal(err)
		}
		if len(policies)+len(again) > 0 && !cmp.Equal(policies, again) {
			t.Fatal(cmp.Diff(policies, again))
		}
	})
}
