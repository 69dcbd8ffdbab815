package splitter_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
	"github.com/weirhq/weir/splitter"
)

var update = flag.Bool("update", false, "rewrite the expected shares in testdata")

const specFile = "testdata/splits.txt"

// TestSpec checks the tables of testdata/splits.txt, which describe their own form.
func TestSpec(t *testing.T) {
	text, err := os.ReadFile(specFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for at := 0; at < len(lines); at++ {
		if !strings.HasPrefix(lines[at], "## ") {
			continue
		}
		name, first := lines[at][3:], at+2
		in, floor := parseLimit(t, lines[at+1])
		for at = first; at < len(lines) && lines[at] != ""; at++ {
			in.Regions = append(in.Regions, parseRegion(t, lines[at]))
		}
		t.Run(name, func(t *testing.T) {
			for i, f := range splitter.Floors(nil, in.Algorithm, in.Limit, floor, in.Regions) {
				in.Regions[i].Floor = f
			}
			shares, _ := splitter.Split(nil, in)
			if got := sum(shares); got != in.Limit.Share() {
				t.Errorf("the shares sum to %v", got)
			}
			for i, s := range shares {
				left, want, _ := strings.Cut(lines[first+i], "=> ")
				got := fmt.Sprintf("%s/%s", s.Capacity, s.Refill)
				if got != want && !*update {
					t.Errorf("%s gets %s, want %s", in.Regions[i].Name, got, want)
				}
				lines[first+i] = left + "=> " + got
			}
		})
	}
	if *update {
		if err := os.WriteFile(specFile, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// parseLimit reads "token-bucket C burst, R per D, floor P%" or "sliding-log N per D, floor P%".
func parseLimit(t *testing.T, line string) (in splitter.Input, floor float64) {
	t.Helper()
	f := strings.Fields(strings.ReplaceAll(line, ",", ""))
	in.Algorithm = quota.SlidingLog
	in.Limit.Capacity = parseTokens(t, f[1])
	if f[0] == quota.TokenBucket.String() {
		in.Algorithm = quota.TokenBucket
		in.Limit.Refill = parseTokens(t, f[3])
		f = f[2:]
	}
	period, err := time.ParseDuration(f[3])
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	in.Limit.Period = period
	return in, parseFloat(t, strings.TrimSuffix(f[5], "%"))
}

// parseRegion reads "name [silent] demand peak weight has".
func parseRegion(t *testing.T, line string) splitter.Region {
	t.Helper()
	f := strings.Fields(line)
	r := splitter.Region{Name: quota.Region(f[0])}
	if f[1] == "silent" {
		r.Silent = true
		f = f[1:]
	}
	r.Demand, r.Peak, r.Weight = parseFloat(t, f[1]), parseFloat(t, f[2]), parseFloat(t, f[3])
	if c, refill, ok := strings.Cut(f[4], "/"); ok {
		r.Present = quota.Share{Capacity: parseTokens(t, c), Refill: parseTokens(t, refill)}
		r.Bound = r.Present
	}
	return r
}

func parseTokens(t *testing.T, s string) quota.Tokens {
	t.Helper()
	return quota.Tokens(parseFloat(t, s)*float64(quota.Token) + 0.5)
}

func parseFloat(t *testing.T, s string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}
