package document_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

func resolve(t *testing.T, x *quota.Index, pairs ...string) string {
	t.Helper()
	var b quota.AttributeBuilder
	for i := 0; i < len(pairs); i += 2 {
		b.Add(pairs[i], pairs[i+1])
	}
	attrs, err := b.Attributes()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range x.Resolve(attrs, nil) {
		out = append(out, fmt.Sprintf("%s %s/%s %s", m.Policy.ID, m.Limit.Capacity, m.Limit.Refill, m.Limit.Period))
	}
	return strings.Join(out, "; ")
}

// TestServiceRules says every rule of a typical service and resolves requests by them.
func TestServiceRules(t *testing.T) {
	x, err := quota.Compile(1, load(t, "testdata/good/service-rules.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ want, pairs string }{
		{"login-ip 5/0 1m0s; login-username 10/0 15m0s", "route=POST /login,ip=203.0.113.9,username=ann"},
		{"free 20/60 1m0s", "plan=free,api_key=k"},
		{"pro 200/1000 1m0s", "plan=pro,api_key=k"},
		{"payments 5/0 1h0m0s", "route=POST /payments,user=ann"},
		{"pro 200/1000 1m0s; tenant-ceiling 1000/500 1s", "plan=pro,api_key=k,tenant=acme,path=/v1/items"},
		{"", "route=GET /login"},
	} {
		var pairs []string
		for part := range strings.SplitSeq(tc.pairs, ",") {
			name, value, _ := strings.Cut(part, "=")
			pairs = append(pairs, name, value)
		}
		if got := resolve(t, x, pairs...); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.pairs, got, tc.want)
		}
	}
}

func TestEveryField(t *testing.T) {
	policies := load(t, "testdata/good/everything.yaml")
	floor, zero := 12.5, 0.0
	want := &quota.Policy{
		ID: "team-a:search/v2",
		Match: []quota.Condition{
			{Attribute: "plan", Pattern: "*"}, {Attribute: "route", Pattern: "GET /v1/*"}, {Attribute: "x-env", Pattern: "prod"},
		},
		Key: []string{"tenant", "apiKey"}, Algorithm: quota.TokenBucket,
		Limit: quota.Limit{Capacity: 1000 * quota.Token, Refill: 7 * quota.Token, Period: 13 * time.Second},
		Split: quota.Split{
			Strategy: quota.SplitExplicit, FloorPercent: &floor,
			Weights: map[quota.Region]float64{"us-east": 3, "eu-west": 1.5, "ap-south": 0},
		},
		OnStoreFailure: quota.FailLocal, StoreDeadline: 8 * time.Millisecond, MissingKey: quota.MissingShared,
		Priority: -3, Shadow: true,
	}
	if diff := cmp.Diff(want, policies[0]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(quota.Split{Strategy: quota.SplitEqual, FloorPercent: &zero}, policies[1].Split); diff != "" {
		t.Error(diff)
	}
	limits := map[string]quota.Limit{}
	for _, p := range policies {
		limits[p.ID] = p.Limit
	}
	const token = quota.Token
	for id, want := range map[string]quota.Limit{
		"day":          {Capacity: token, Refill: token, Period: quota.Day},
		"slow":         {Capacity: 1000 * token, Refill: token, Period: time.Second}, // case 92
		"half":         {Capacity: token, Refill: 125, Period: time.Minute},
		"five-minutes": {Capacity: token, Refill: 100 * token, Period: 5 * time.Minute},
		"composite":    {Capacity: 3 * token, Period: 90 * time.Minute},
		"month":        {Capacity: 65536 * token, Period: 30 * quota.Day},
		"year":         {Capacity: quota.MaxTokens, Refill: quota.MaxTokens, Period: quota.Year},
		"never":        {Period: time.Second}, // case 77
		"never-bucket": {Period: time.Hour},
		"staff":        {},
	} {
		if limits[id] != want {
			t.Errorf("%s: %+v, want %+v", id, limits[id], want)
		}
	}
	if staff := policies[len(policies)-1]; !staff.Unlimited || staff.Algorithm != quota.TokenBucket {
		t.Errorf("staff: %+v", staff)
	}
}

// numbers tries one value in every place that takes a number of tokens.
func numbers(value string) map[string]error {
	errs := map[string]error{}
	for name, fields := range map[string]string{
		"capacity":        "algorithm: token-bucket, capacity: %s, refill: 1000000/1s",
		"refillPerMinute": "algorithm: token-bucket, capacity: 1, refillPerMinute: %s",
		"refill":          "algorithm: token-bucket, capacity: 1, refill: %s/1m",
		"limit":           "algorithm: sliding-log, limit: %s, window: 1m",
	} {
		_, errs[name] = document.Policies([]byte("policies: [{ id: a, onStoreFailure: open, " + fmt.Sprintf(fields, value) + " }]"))
	}
	return errs
}

// TestNumbers covers the parse side of cases 76 (high rates), 77 (0 denies, -1
// is refused), 82 (beyond 63 bits) and 85 (what is not finite).
func TestNumbers(t *testing.T) {
	for _, value := range []string{"1", "100", "1000", "65536"} {
		for field, err := range numbers(value) {
			if err != nil {
				t.Errorf("%s: %s: %v", field, value, err)
			}
		}
	}
	for _, value := range []string{
		"-1", "-0", "-0.5", ".nan", ".NaN", ".inf", "-.inf", "+.Inf", "inf", "nan", "1e3", "1e400", "0x10", "0o7", "0b1", "07", "1_000", "+1",
		"9223372036854775808", "18446744073709551615", "18446744073709551616", "1099511627777", "99999999999999999999999999",
		`"1"`, "true", "null", "", "[]", "{}", "ten", "1.", ".5", "1.0001", "1..2", "1 000", "１",
	} {
		for field, err := range numbers(value) {
			// A quote or a bracket before 1/1m is no YAML at all; anything else is a problem of the field.
			if err == nil || !strings.Contains(err.Error(), "policies[0]."+field) && !strings.Contains(err.Error(), "not YAML") {
				t.Errorf("%s: %q: %v", field, value, err)
			}
		}
	}
	for value, fields := range map[string]string{
		"0":             "capacity limit",
		"1099511627776": "capacity refillPerMinute refill",
		"1000000":       "capacity refillPerMinute refill",
		"0.001":         "refillPerMinute refill",
		"33.125":        "refillPerMinute refill",
		"5.000":         "capacity refillPerMinute refill limit",
	} {
		for field, err := range numbers(value) {
			if want := slices.Contains(strings.Fields(fields), field); want != (err == nil) {
				t.Errorf("%s: %s: %v", field, value, err)
			}
		}
	}
}

func TestPositions(t *testing.T) {
	root, err := document.Parse([]byte("# first\npolicies:\n  - id: a\n    match:\n      plan: 'free'\n    key: [x,\n      y]\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var walk func(n *quota.Node)
	walk = func(n *quota.Node) {
		got = append(got, fmt.Sprintf("%d:%d %s", n.Line, n.Column, n.Text))
		for _, f := range n.Fields {
			walk(f.Name)
			walk(f.Value)
		}
		for _, item := range n.Items {
			walk(item)
		}
	}
	walk(root)
	want := "2:1 |2:1 policies|3:3 |3:5 |3:5 id|3:9 a|4:5 match|5:7 |5:7 plan|5:13 free|6:5 key|6:10 |6:11 x|7:7 y"
	if diff := cmp.Diff(strings.Split(want, "|"), got); diff != "" {
		t.Error(diff)
	}
}

// TestJSON reads the same policies from JSON, indented by tabs, as from YAML.
func TestJSON(t *testing.T) {
	for _, file := range []string{"testdata/good/service-rules.yaml", "testdata/good/everything.yaml"} {
		var generic any
		if err := yaml.Unmarshal(read(t, file), &generic); err != nil {
			t.Fatal(err)
		}
		data, err := json.MarshalIndent(generic, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		got, err := document.Policies(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(load(t, file), got); diff != "" {
			t.Error(diff)
		}
	}
	root, err := document.Parse([]byte(`{"policies": [{"id": "\ud83d\ude00", "n": 1e3, "m": null, "b": true}]}`))
	if err != nil {
		t.Fatal(err)
	}
	fields := root.Fields[0].Value.Items[0].Fields
	if fields[0].Value.Text != "😀" || fields[1].Value.Text != "1e3" || fields[2].Value.Kind != quota.NullNode || fields[3].Value.Text != "true" {
		t.Errorf("got %v", fields)
	}
}

func TestHostileDocuments(t *testing.T) {
	const size = 1 << 19
	for name, data := range map[string]string{
		"open brackets":  strings.Repeat("[", size),
		"open braces":    strings.Repeat("{", size),
		"braces":         strings.Repeat("{a: ", size/4),
		"entries":        strings.Repeat("- ", size/2),
		"json brackets":  `{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}",
		"indentation":    strings.Repeat(" ", size) + "a: b",
		"colons":         strings.Repeat("a: ", size/3),
		"questions":      strings.Repeat("? ", size/2),
		"aliases":        strings.Repeat("a: *a\n", 1000),
		"tags":           strings.Repeat("!!str ", 1000),
		"large":          strings.Repeat("#", document.MaxBytes+1),
		"long text":      strings.Repeat("a", size),
		"many tokens":    "policies: [" + strings.Repeat("x,", document.MaxBytes/2-8) + "]",
		"quotes":         strings.Repeat(`"`, 10_000),
		"documents":      strings.Repeat("---\n", 10_000) + "a: b\n",
		"many problems":  "policies:\n" + strings.Repeat("- x\n", 20_000),
		"repeated field": strings.Repeat("policies: []\n", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := document.Policies([]byte(data))
			if err == nil {
				t.Fatal("accepted")
			}
			if n := len(err.Error()); n > 500_000 {
				t.Errorf("the message has %d bytes", n)
			}
		})
	}
}

func TestLargeDocument(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("policies:\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "  - id: p%d\n    match: { route: \"GET /v1/%d/*\" }\n    key: [apiKey]\n    algorithm: token-bucket\n    capacity: 20\n    refillPerMinute: 100\n    onStoreFailure: local\n", i, i)
	}
	policies, err := document.Policies(b.Bytes())
	if err != nil || len(policies) != 10_000 {
		t.Fatalf("%d policies, %v", len(policies), err)
	}
}

func TestByteOrderMarkAndLineEnds(t *testing.T) {
	plain := read(t, "testdata/good/distributed-rate-limiter.yaml")
	want := load(t, "testdata/good/distributed-rate-limiter.yaml")
	for name, data := range map[string][]byte{
		"mark": append([]byte("\xef\xbb\xbf"), plain...),
		"crlf": bytes.ReplaceAll(plain, []byte("\n"), []byte("\r\n")),
		"---":  append([]byte("---\n"), plain...),
	} {
		got, err := document.Policies(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestNoPolicies(t *testing.T) {
	for _, text := range []string{"policies: []", `{"policies":[]}`} {
		if policies, err := document.Policies([]byte(text)); err != nil || len(policies) != 0 {
			t.Errorf("%s: %v, %v", text, policies, err)
		}
	}
}
