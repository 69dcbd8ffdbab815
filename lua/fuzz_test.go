package lua_test

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/lua"
	"github.com/weirhq/weir/quota"
)

// replyOf makes of text what the client makes of a reply: a number, a string, or a
// list of them.
func replyOf(text string) any {
	item := func(s string) any {
		if n, ok := strings.CutPrefix(s, ":"); ok {
			v := int64(0)
			for _, c := range n {
				v = v*10 + int64(c-'0')
			}
			return v
		}
		if s == "nil" {
			return nil
		}
		return s
	}
	if list, ok := strings.CutPrefix(text, "*"); ok {
		var out []any
		scan := bufio.NewScanner(strings.NewReader(list))
		scan.Split(bufio.ScanWords)
		for scan.Scan() {
			out = append(out, item(scan.Text()))
		}
		return out
	}
	return item(text)
}

// FuzzDecode: no reply makes decode panic, or say yes to a quota it does not name.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"*:1 :5 :1 :1 :0 :0 :0", "*:0 :5 :0 :1 :7 :7 :3", "*:1", "*", "*:-1", "*nil nil", ":1", "nil", "1 5 1 1 0 0 0", "1 5", "x",
		"*:1 :5 :1 :1 :0 :0 :0 :1 :1 :0 :0 :0", "*:9223372036854775807 :1 :1 :1 :1 :1 :1",
	} {
		f.Add(seed, 1, false)
		f.Add(seed, 2, true)
	}
	f.Fuzz(func(t *testing.T, text string, entries int, peek bool) {
		a := quota.Attempt{Peek: peek, Entries: make([]quota.Entry, max(0, min(entries, 16)))}
		out, missing, err := lua.Decode(replyOf(text), a)
		if err != nil {
			if out.Allowed {
				t.Errorf("%q: %v, and yes", text, err)
			}
			return
		}
		if missing >= len(a.Entries) || missing < 0 && len(out.Verdicts) != len(a.Entries) {
			t.Errorf("%q: entry %d missing of %d, %d verdicts", text, missing, len(a.Entries), len(out.Verdicts))
		}
		if missing >= 0 && out.Allowed {
			t.Errorf("%q: yes with a record missing", text)
		}
	})
}

// FuzzRecords: no value of a key that another program wrote makes a reader panic.
func FuzzRecords(f *testing.F) {
	for _, seed := range []string{
		"100:2:20:20:60000000:20:20:0:1796084912363674:10.000118:204277:1000000000:0:0:1|5:10|9:12",
		"gen:1:0:0:0", "", ":", "::::", "a:b:c:d:e", "1:1:1:1:1:1:1:1:1:1:1:1:1:1:99999999999999999999", "gen:99999999999999999999:0:0:0",
	} {
		f.Add(seed)
	}
	now := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	f.Fuzz(func(t *testing.T, text string) {
		if gen, _, err := lua.ParseRegion(text); err == nil && strings.Contains(gen, ":") {
			t.Errorf("%q: dataset %q", text, gen)
		}
		_ = lua.AddHeld(text, now)
	})
}
