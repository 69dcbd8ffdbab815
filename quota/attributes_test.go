package quota_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weirhq/weir/quota"
)

func TestAttributeBuilder(t *testing.T) {
	var b quota.AttributeBuilder
	b.AddMap(map[string]string{"z": "1", "a": "2", "m": "", "k": "3"})
	attrs, err := b.Attributes()
	if err != nil || fmt.Sprint(attrs) != "[{a 2} {k 3} {z 1}]" {
		t.Errorf("%v, %v", attrs, err)
	}
	if attrs.Get("k") != "3" || attrs.Get("m") != "" || attrs.Get("none") != "" {
		t.Error("values are wrong")
	}
	b.Reset()
	if attrs, err := b.Attributes(); err != nil || len(attrs) != 0 {
		t.Errorf("after reset: %v, %v", attrs, err)
	}
}

func TestAttributeBounds(t *testing.T) {
	many := func(n int) (pairs []string) {
		for i := range n {
			pairs = append(pairs, fmt.Sprint("a", i), "v")
		}
		return pairs
	}
	for _, tc := range []struct {
		name  string
		pairs []string
		want  string
	}{
		{"most", many(quota.MaxAttributes), ""},
		{"too many", many(quota.MaxAttributes + 1), "attributes: more than 32"},
		{"longest name", []string{strings.Repeat("a", 64), "v"}, ""},
		{"long name", []string{strings.Repeat("a", 65), "v"}, "is no attribute name"},
		{"empty name", []string{"", "v"}, `attributes[""]: is no attribute name`},
		{"name", []string{"1a", "v"}, `attributes["1a"]: is no attribute name`},
		{"longest value", []string{"a", strings.Repeat("s", 1024)}, ""},
		{"long value", []string{"a", strings.Repeat("s", 1025)}, `attributes["a"]: the value has 1025 bytes`},
		{"twice", []string{"a", "1", "a", "2"}, `attributes["a"]: is given twice`},
	} {
		var b quota.AttributeBuilder
		for i := 0; i < len(tc.pairs); i += 2 {
			b.Add(tc.pairs[i], tc.pairs[i+1])
		}
		_, err := b.Attributes()
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.want != "" && (!errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want it to say %q", tc.name, err, tc.want)
		case err != nil && strings.Contains(err.Error(), "sss"):
			t.Errorf("%s: the value is in the error: %v", tc.name, err)
		}
	}
}

func TestAttributeBuilderDoesNotAllocate(t *testing.T) {
	var b quota.AttributeBuilder
	m := map[string]string{"plan": "free", "route": "GET /", "apiKey": "ak", "tenant": "acme"}
	if n := testing.AllocsPerRun(100, func() { b.Reset(); b.AddMap(m) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
