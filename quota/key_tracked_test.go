package quota_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

// keyed returns a policy that counts by the given attributes.
func keyed(id string, names ...string) *quota.Policy {
	return &quota.Policy{ID: id, Key: names}
}

func attributesOf(t interface{ Fatal(args ...any) }, m map[string]string) quota.Attributes {
	var b quota.AttributeBuilder
	b.AddMap(m)
	attrs, err := b.Attributes()
	if err != nil {
		t.Fatal(err)
	}
	return attrs
}

// A tracked key has one name in all regions, and each finds its own bucket by it.
func TestTrackedKeyLeadsToTheBucketInEveryRegion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ids := []string{"api-free", "t", "a:b/c", "k", "t:x", strings.Repeat("p", quota.MaxPolicyID)}
		keys := [][]string{nil, {"tenant"}, {"user"}, {"tenant", "user"}, {"user", "path"}}
		p := keyed(rapid.SampledFrom(ids).Draw(rt, "id"), rapid.SampledFrom(keys).Draw(rt, "key")...)
		attrs := attributesOf(rt, map[string]string{
			"tenant": rapid.SampledFrom([]string{"acme", "t", "k", "~x", "a:b", strings.Repeat("x", 300), "ä"}).Draw(rt, "tenant"),
			"user":   rapid.StringN(0, 20, 80).Draw(rt, "user"), "path": "/x",
		})
		name := ""
		for _, region := range []struct {
			prefix  string
			stripes int
		}{{"rl", 256}, {"other", 3}, {"rl", 4096}, {"a:b", 1}} {
			bucket, stripe := quota.AppendBucketKey(nil, region.prefix, region.stripes, p, attrs)
			got := quota.TrackedKey(quota.Partition(p, attrs), string(bucket))
			if name == "" {
				name = got
			}
			if got != name || got == "" || len(got) > quota.MaxTrackedKey {
				rt.Fatalf("name %q in one region, %q in another", name, got)
			}
			back, at, err := quota.PlaceOf(quota.ID{Policy: p.ID, Key: got}, region.prefix, region.stripes)
			if err != nil || back != string(bucket) || at != stripe {
				rt.Fatalf("%q leads to %q on %d (%v), not to %q on %d", got, back, at, err, bucket, stripe)
			}
			other := quota.ID{Policy: "another", Key: got}
			if _, _, err := quota.PlaceOf(other, region.prefix, region.stripes); !errors.Is(err, quota.ErrInvalid) {
				rt.Fatalf("%q passes for a key of another policy: %v", got, err)
			}
		}
	})
}

// Whatever comes over the wire, a tracked key never leads out of its policy's buckets.
func TestPlaceOfRefusesWhatIsNoKey(t *testing.T) {
	t.Parallel()
	const hash = "00000000000000ff"
	for _, key := range []string{
		"", hash, hash + ":", hash + ":p}", "00000000000000FF:p", "zz000000000000ff:p", hash[1:] + ":p", hash + "0:p",
		hash + ":px", hash + ":p:", hash + ":p:k:", hash + ":p:k:123", hash + ":p:k:0123456789abcdeg", hash + ":t::p", hash + ":t:a", hash + ":t:a b:p",
		hash + ":t:a~:p", hash + "@share:p", hash + ":@share:p", hash + ":p:k:0123456789abcdef:p", hash + ":t:" + strings.Repeat("x", 200) + ":p",
	} {
		if bucket, _, err := quota.PlaceOf(quota.ID{Policy: "p", Key: key}, "rl", 256); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%q leads to %q, %v", key, bucket, err)
		}
	}
	for key, want := range map[string]string{
		hash + ":p": "rl:{255}:p", hash + ":t:a.b:p": "rl:{255}:t:a.b:p", hash + ":t:~0123456789abcdef:p:k:0123456789abcdef": "rl:{255}:t:~0123456789abcdef:p:k:0123456789abcdef",
	} {
		bucket, stripe, err := quota.PlaceOf(quota.ID{Policy: "p", Key: key}, "rl", 256)
		if err != nil || bucket != want || stripe != 255 {
			t.Errorf("%q leads to %q on %d, %v; want %q", key, bucket, stripe, err, want)
		}
	}
	if name := quota.TrackedKey(1, "no store key"); name != "" {
		t.Errorf("a name for what is no store key: %q", name)
	}
	if got := string(quota.AppendTrackedKey(nil, "rl", 7)); got != "rl:{7}@tracked" {
		t.Errorf("list of tracked keys at %q", got)
	}
}
