package policystore_test

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// full returns a policy in which every field is set, and no enum is zero.
func full() *quota.Policy {
	return &quota.Policy{
		ID:             "full",
		Match:          []quota.Condition{{Attribute: "plan", Pattern: "free"}},
		Key:            []string{"apiKey"},
		Algorithm:      quota.TokenBucket,
		Limit:          quota.Limit{Capacity: 20 * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
		Scope:          quota.Regional,
		Split:          quota.Split{Strategy: quota.SplitEqual, FloorPercent: new(5.0), OnPartition: quota.Strict, Weights: map[quota.Region]float64{"us": 2}},
		OnStoreFailure: quota.FailLocal,
		StoreDeadline:  time.Millisecond,
		Enforcement:    quota.Leased,
		MissingKey:     quota.MissingDeny,
		SubBuckets:     2,
		LeaseTTL:       time.Second,
		Priority:       3,
		Shadow:         true,
		Unlimited:      true,
	}
}

// leaf is one place in a policy that can be changed.
type leaf struct {
	path   string
	change func()
}

// leaves lists every place in v, so that a field added to the domain later is
// covered without anybody remembering to. It fails on a kind it cannot change,
// and on a zero value, which would hide a field that is lost on the way.
func leaves(t *testing.T, path string, v reflect.Value) []leaf {
	switch v.Kind() {
	case reflect.Struct:
		var out []leaf
		for i := range v.NumField() {
			out = append(out, leaves(t, path+"."+v.Type().Field(i).Name, v.Field(i))...)
		}
		return out
	case reflect.Slice:
		require.Positive(t, v.Len(), path)
		return leaves(t, path+"[0]", v.Index(0))
	case reflect.Pointer:
		return leaves(t, path, v.Elem())
	case reflect.Map:
		require.Positive(t, v.Len(), path)
		k := v.MapKeys()[0]
		return []leaf{{path: path, change: func() {
			v.SetMapIndex(k, reflect.ValueOf(v.MapIndex(k).Float()+1).Convert(v.Type().Elem()))
		}}}
	}
	require.False(t, v.IsZero(), "%s is not set in full()", path)
	return []leaf{{path: path, change: func() {
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Uint8:
			v.SetUint(v.Uint() - 1)
		default:
			t.Fatalf("%s: cannot change a %s", path, v.Kind())
		}
	}}}
}

// everyLeaf calls check once for each place of a policy, with two equal policies
// and a function that changes the second in that place.
func everyLeaf(t *testing.T, clone func(*quota.Policy) *quota.Policy, check func(t *testing.T, original, changed *quota.Policy, change func())) {
	n := len(leaves(t, "Policy", reflect.ValueOf(full()).Elem()))
	for i := range n {
		original := full()
		changed := clone(original)
		l := leaves(t, "Policy", reflect.ValueOf(changed).Elem())[i]
		t.Run(l.path, func(t *testing.T) { check(t, original, changed, l.change) })
	}
}

func TestCloneSharesNothing(t *testing.T) {
	everyLeaf(t, policystore.ClonePolicy, func(t *testing.T, original, changed *quota.Policy, change func()) {
		require.Equal(t, original, changed)
		change()
		require.Equal(t, full(), original)
		require.NotEqual(t, original, changed)
	})
	require.Nil(t, policystore.ClonePolicies(nil))
}

func TestCompareSeesEveryField(t *testing.T) {
	everyLeaf(t, policystore.ClonePolicy, func(t *testing.T, original, changed *quota.Policy, change func()) {
		require.True(t, policystore.Compare([]*quota.Policy{original}, []*quota.Policy{changed}).Empty())
		change()
		d := policystore.Compare([]*quota.Policy{original}, []*quota.Policy{changed})
		require.False(t, d.Empty())
		if changed.ID == original.ID {
			require.NotEmpty(t, d.Changed[0].Fields, "the change is seen and cannot be shown")
		}
	})
}

func TestCodecKeepsEveryField(t *testing.T) {
	through := func(p *quota.Policy) *quota.Policy {
		b, err := policystore.EncodePolicy(p)
		require.NoError(t, err)
		got, err := policystore.DecodePolicy(b)
		require.NoError(t, err)
		return got
	}
	everyLeaf(t, policystore.ClonePolicy, func(t *testing.T, _, changed *quota.Policy, change func()) {
		change()
		require.Equal(t, changed, through(changed))
	})
}

func TestCodecRoundTrip(t *testing.T) {
	text := rapid.String()
	policies := rapid.Custom(func(t *rapid.T) *quota.Policy {
		p := &quota.Policy{
			ID:             text.Draw(t, "id"),
			Algorithm:      quota.Algorithm(rapid.IntRange(0, 3).Draw(t, "algorithm")),
			Scope:          quota.Scope(rapid.IntRange(0, 1).Draw(t, "scope")),
			OnStoreFailure: quota.FailureMode(rapid.IntRange(0, 3).Draw(t, "failure")),
			MissingKey:     quota.MissingKey(rapid.IntRange(0, 2).Draw(t, "missing")),
			Enforcement:    quota.Enforcement(rapid.IntRange(0, 1).Draw(t, "enforcement")),
			StoreDeadline:  time.Duration(rapid.Int64().Draw(t, "deadline")),
			LeaseTTL:       time.Duration(rapid.Int64().Draw(t, "lease")),
			SubBuckets:     rapid.Int().Draw(t, "sub"),
			Priority:       rapid.Int().Draw(t, "priority"),
			Shadow:         rapid.Bool().Draw(t, "shadow"),
			Unlimited:      rapid.Bool().Draw(t, "unlimited"),
			Limit: quota.Limit{
				Capacity: quota.Tokens(rapid.Int64().Draw(t, "capacity")),
				Refill:   quota.Tokens(rapid.Int64().Draw(t, "refill")),
				Period:   time.Duration(rapid.Int64().Draw(t, "period")),
			},
			Split: quota.Split{
				Strategy:    quota.SplitStrategy(rapid.IntRange(0, 2).Draw(t, "strategy")),
				OnPartition: quota.PartitionMode(rapid.IntRange(0, 1).Draw(t, "partition")),
			},
		}
		for range rapid.IntRange(0, 3).Draw(t, "conditions") {
			p.Match = append(p.Match, quota.Condition{Attribute: text.Draw(t, "attribute"), Pattern: text.Draw(t, "pattern")})
		}
		for range rapid.IntRange(0, 3).Draw(t, "keys") {
			p.Key = append(p.Key, text.Draw(t, "key"))
		}
		finite := rapid.Float64().Filter(func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) })
		if rapid.Bool().Draw(t, "floor set") {
			p.Split.FloorPercent = new(finite.Draw(t, "floor"))
		}
		for range rapid.IntRange(0, 2).Draw(t, "weights") {
			if p.Split.Weights == nil {
				p.Split.Weights = map[quota.Region]float64{}
			}
			p.Split.Weights[quota.Region(text.Draw(t, "region"))] = finite.Draw(t, "weight")
		}
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		p := policies.Draw(t, "policy")
		b, err := policystore.EncodePolicy(p)
		require.NoError(t, err)
		got, err := policystore.DecodePolicy(b)
		require.NoError(t, err)
		require.Equal(t, p, got)
		require.True(t, policystore.Compare([]*quota.Policy{p}, []*quota.Policy{got}).Empty())
	})
}

func TestDecodeRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, stored := range []string{
		``, `{`, `[]`, `{"id":"a","colour":"red"}`, `{"id":"a","algorithm":"leaky"}`, `{"id":"a","scope":"galactic"}`,
		`{"id":"a","period":"1 minute"}`, `{"id":"a","capacity_millitokens":1.5}`,
	} {
		_, err := policystore.DecodePolicy([]byte(stored))
		require.Error(t, err, stored)
	}
}

// TestDiffText compares with testdata/diff.txt, which is written for people to read.
func TestDiffText(t *testing.T) {
	bucket := func(id string, burst int64) *quota.Policy {
		return &quota.Policy{
			ID: id, Match: []quota.Condition{{Attribute: "plan", Pattern: "free"}}, Key: []string{"apiKey"},
			Algorithm: quota.TokenBucket, OnStoreFailure: quota.FailLocal,
			Limit: quota.Limit{Capacity: quota.Tokens(burst) * quota.Token, Refill: 100 * quota.Token, Period: time.Minute},
		}
	}
	login := &quota.Policy{
		ID: "login", Match: []quota.Condition{{Attribute: "route", Pattern: "POST /auth/login"}}, Key: []string{"ip", "username"},
		Algorithm: quota.SlidingLog, Limit: quota.Limit{Capacity: 10 * quota.Token, Period: 36 * time.Hour}, OnStoreFailure: quota.FailClosed,
	}
	changed := bucket("api-pro", 20)
	changed.Match = []quota.Condition{{Attribute: "plan", Pattern: "pro*"}, {Attribute: "x forwarded", Pattern: "*"}}
	changed.Limit.Refill = 1500
	changed.Shadow = true
	changed.Split = quota.Split{Strategy: quota.SplitExplicit, FloorPercent: new(12.5), Weights: map[quota.Region]float64{"us-east": 2, "eu-west": 0.5}}
	turned := bucket("turned", 5)
	turned.Algorithm, turned.Limit = quota.SlidingLog, quota.Limit{Capacity: 5 * quota.Token, Period: 24 * time.Hour}

	before := []*quota.Policy{bucket("api-pro", 10), bucket("same", 1), bucket("old", 1), bucket("turned", 5)}
	after := []*quota.Policy{turned, login, changed, bucket("same", 1)}
	d := policystore.Compare(before, after)
	want, err := os.ReadFile(filepath.Join("testdata", "diff.txt"))
	require.NoError(t, err)
	require.Equal(t, string(want), d.String())
	require.Equal(t, d.String(), d.Clone().String())
	require.Equal(t, "added login; changed api-pro, turned; removed old", d.Summary().String())

	require.Equal(t, "no changes\n", policystore.Compare(before, before).String())
	require.Equal(t, "no policy changed", policystore.Summary{}.String())
	require.Equal(t, "removed 9 policies", policystore.Summary{Removed: make([]string, 9)}.String())
}

// TestPlansArePure: the same input gives the same plan, and head is left alone.
func TestPlansArePure(t *testing.T) {
	head := policystore.Snapshot{Revision: policystore.Revision{Number: 1}, Policies: []*quota.Policy{full()}}
	p := full()
	p.ID = "other"
	c := policystore.Change{Edit: policystore.Edit{Author: "a"}, Policies: []*quota.Policy{p}, Delete: []string{"full"}}
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	first, err := policystore.PlanChange(head, c, now)
	require.NoError(t, err)
	second, err := policystore.PlanChange(head, c, now)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, []*quota.Policy{full()}, head.Policies)
	require.NotSame(t, p, first.Next.Policies[0])
}

func TestOverrideIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gen := rapid.Custom(func(t *rapid.T) policystore.OverrideID {
			part := rapid.StringOfN(rapid.RuneFrom([]rune("a:\x00\x01")), 0, 3, -1)
			return policystore.OverrideID{Policy: part.Draw(t, "policy"), Key: rapid.SliceOfN(part, 0, 3).Draw(t, "key")}
		})
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		require.Equal(t, a.Compare(b) == 0, a.MapKey() == b.MapKey())
		require.Equal(t, a.Compare(b), -b.Compare(a))
	})
	id := policystore.OverrideID{Policy: "p", Key: []string{"a\x00", `"`}}
	require.Equal(t, `p["a\x00"]["\""]`, id.String())
	require.Equal(t, "set 9 overrides", policystore.DescribeOverrides("set", make([]policystore.OverrideID, 9)))
	require.True(t, strings.HasPrefix(policystore.DescribeOverrides("set", []policystore.OverrideID{id}), "set p["))
}

func TestRoles(t *testing.T) {
	roles := []policystore.Role{policystore.RoleViewer, policystore.RoleEditor, policystore.RoleAdmin, policystore.RoleRegion, "", "root"}
	may := map[policystore.Role]string{
		policystore.RoleViewer: "viewer", policystore.RoleEditor: "viewer editor",
		policystore.RoleAdmin: "viewer editor admin", policystore.RoleRegion: "region",
	}
	for _, r := range roles {
		var got []string
		for _, needed := range roles {
			if r.Includes(needed) {
				got = append(got, string(needed))
			}
		}
		require.Equal(t, may[r], strings.Join(got, " "), string(r))
	}
}
