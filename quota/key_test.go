package quota_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/quota"
)

func bucketKey(p *quota.Policy, attrs quota.Attributes) string {
	key, _ := quota.AppendBucketKey(nil, quota.DefaultKeyPrefix, 256, p, attrs)
	return string(key)
}

// redisHashTag is the part of a key that Redis Cluster hashes: what stands
// between the first { and the first } after it, if that is not empty.
func redisHashTag(key []byte) string {
	open := bytes.IndexByte(key, '{')
	if open < 0 {
		return string(key)
	}
	end := bytes.IndexByte(key[open+1:], '}')
	if end <= 0 {
		return string(key)
	}
	return string(key[open+1 : open+1+end])
}

// TestKeyFormat pins the names of stored keys: they must never change.
func TestKeyFormat(t *testing.T) {
	attrs := attributes(t, "apiKey", "ak_1", "tenant", "acme", "ip", "203.0.113.9")
	odd := attributes(t, "apiKey", "ak_1", "tenant", "acme corp")
	for _, tc := range []struct {
		p     *quota.Policy
		attrs quota.Attributes
		want  string
		id    string
	}{
		{policy("api-free", nil), attrs, "rl:{219}:api-free", ""},
		{policy("api-free", []string{"apiKey"}), attrs, "rl:{169}:api-free:k:6f9518bb4d952898", "k:6f9518bb4d952898"},
		{policy("ceiling", []string{"tenant"}), attrs, "rl:{198}:t:acme:ceiling", "t:acme"},
		{policy("api-free", []string{"apiKey", "tenant"}), attrs, "rl:{198}:t:acme:api-free:k:6f9518bb4d952898", "t:acme:k:6f9518bb4d952898"},
		{policy("login", []string{"ip", "username"}), attrs, "rl:{142}:login:k:3eb2d939698e5402", "k:3eb2d939698e5402"},
		{policy("ceiling", []string{"tenant"}), odd, "rl:{240}:t:~ea6f9c07a2f95c78:ceiling", "t:~ea6f9c07a2f95c78"},
		{policy("team:a/b", nil), attrs, "rl:{175}:team~a/b", ""},
	} {
		if got := bucketKey(tc.p, tc.attrs); got != tc.want {
			t.Errorf("bucket key %s, want %s", got, tc.want)
		}
		if got := quota.KeyID(tc.p, tc.attrs); got != tc.id {
			t.Errorf("key id %s, want %s", got, tc.id)
		}
	}
	if got := string(quota.AppendShareKey(nil, "rl", 17, "team:a/b")); got != "rl:{17}@share:team:a/b" {
		t.Errorf("share key %s", got)
	}
	if got := string(quota.AppendRegionKey(nil, "rl", 17)); got != "rl:{17}@region" {
		t.Errorf("region key %s", got)
	}
}

// TestKeysAreDistinctCase94 pairs up values that meet in one key when parts are
// joined without escaping.
func TestKeysAreDistinctCase94(t *testing.T) {
	parts := []string{"a", "b", "a_b", "b_c", "c", "a:b", "b:c", "a|b", "b|c", "{a}", "{}", "}{", "a\x00", "\x00b", "a\x00b", ":", "|", "_", "~", "k", "t", "t:a", "", strings.Repeat("a", 300)}
	seen := map[string]string{}
	check := func(p *quota.Policy, attrs quota.Attributes, what string) {
		key := bucketKey(p, attrs)
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s share the key %q", what, other, key)
		}
		seen[key] = what
	}
	for _, x := range parts {
		for _, y := range parts {
			attrs := attributes(t, "x", x, "y", y, "tenant", x)
			check(policy("p", []string{"x", "y"}), attrs, fmt.Sprintf("p(%q,%q)", x, y))
			check(policy("q", []string{"tenant", "y"}), attrs, fmt.Sprintf("q(%q,%q)", x, y))
		}
		attrs := attributes(t, "x", x, "tenant", x)
		check(policy("r", []string{"x"}), attrs, fmt.Sprintf("r(%q)", x))
		check(policy("s", []string{"tenant"}), attrs, fmt.Sprintf("s(%q)", x))
	}
	// Two policies with equal key values count apart (case 25), even with ids made to look like keys.
	hash := strings.TrimPrefix(quota.KeyID(policy("x", []string{"x"}), attributes(t, "x", "a")), "k:")
	for _, id := range []string{"t", "+", "t:k:u", "u:k:" + hash, "t:k", "k", "a", hash, "t:a:u"} {
		check(policy(id, nil), nil, id)
	}
	for _, id := range []string{"t", "u"} {
		check(policy(id, []string{"x"}), attributes(t, "x", "a"), id+"(x)")
	}
	for _, tenant := range []string{"k", "a"} {
		for _, id := range []string{hash, "u", "t"} {
			check(policy(id, []string{"tenant"}), attributes(t, "tenant", tenant), id+"(tenant "+tenant+")")
		}
	}
}

var anyValue = rapid.OneOf(rapid.String(), rapid.StringMatching(`[a{}:|_~\x00-]{0,5}`))

func drawQuota(r *rapid.T, label string) (*quota.Policy, map[string]string) {
	key := rapid.SampledFrom([][]string{nil, {"tenant"}, {"a"}, {"a", "b"}, {"tenant", "a"}, {"a", "tenant", "b"}, {"b", "a"}}).Draw(r, label+" key")
	id := rapid.OneOf(rapid.StringMatching(`[tk:a]{1,4}`), rapid.StringMatching(`[A-Za-z0-9_.:/-]{1,64}`)).Draw(r, label+" id")
	values := map[string]string{}
	for _, name := range key {
		value := anyValue.Draw(r, label+" "+name)
		values[name] = value[:min(len(value), quota.MaxAttributeValue)]
	}
	return policy(id, key), values
}

func TestKeyProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p, values := drawQuota(r, "p")
		q, others := drawQuota(r, "q")
		stripes := rapid.IntRange(1, 1024).Draw(r, "stripes")
		build := func(p *quota.Policy, m map[string]string) ([]byte, int) {
			var b quota.AttributeBuilder
			b.AddMap(m)
			attrs, err := b.Attributes()
			if err != nil {
				r.Fatal(err)
			}
			return quota.AppendBucketKey(nil, "rl", stripes, p, attrs)
		}
		key, stripe := build(p, values)
		other, _ := build(q, others)
		same := p.ID == q.ID && strings.Join(p.Key, ",") == strings.Join(q.Key, ",") && fmt.Sprint(values) == fmt.Sprint(others)
		// A policy has one key list; the same id with another list is another revision.
		if p.ID != q.ID && bytes.Equal(key, other) || same && !bytes.Equal(key, other) {
			r.Fatalf("%s %q and %s %q: %s and %s", p.ID, values, q.ID, others, key, other)
		}
		if redisHashTag(key) != strconv.Itoa(stripe) || stripe < 0 || stripe >= stripes {
			r.Fatalf("hash tag of %s is not the stripe %d of %d", key, stripe, stripes)
		}
		if share := quota.AppendShareKey(nil, "rl", stripe, p.ID); redisHashTag(share) != strconv.Itoa(stripe) {
			r.Fatalf("hash tag of %s is not the stripe", share)
		}
		// Whoever names the quota by its id means the same stored key (case 98).
		var b quota.AttributeBuilder
		b.AddMap(values)
		attrs, err := b.Attributes()
		if err != nil {
			r.Fatal(err)
		}
		tenant, hash, _ := strings.Cut(quota.KeyID(p, attrs), "k:")
		if tail := string(key[bytes.IndexByte(key, '}')+2:]); !strings.HasPrefix(tail, tenant) || !strings.HasSuffix(tail, hash) {
			r.Fatalf("key id %s is not that of %s", quota.KeyID(p, attrs), key)
		}
		// Attributes that are no part of the key, such as those that decide
		// about the answer's headers, change nothing (case 103).
		values["headers"], values["zzz"] = "off", "1"
		if again, at := build(p, values); !bytes.Equal(key, again) || at != stripe {
			r.Fatalf("other attributes changed %s to %s", key, again)
		}
	})
}

// TestHashTagCase50 shows that no value moves a key away from its stripe.
func TestHashTagCase50(t *testing.T) {
	for i := range 10_000 {
		value := []string{"{%d}", "{}%d", "}%d{", "{{%d", "%d}}", "{}"}[i%6]
		if strings.Contains(value, "%d") {
			value = fmt.Sprintf(value, i)
		}
		attrs := attributes(t, "tenant", value, "a", value)
		for _, p := range []*quota.Policy{policy("x", []string{"a"}), policy("y", []string{"tenant"}), policy("z", []string{"a", "tenant"})} {
			key, stripe := quota.AppendBucketKey(nil, "rl", 256, p, attrs)
			if redisHashTag(key) != strconv.Itoa(stripe) {
				t.Fatalf("hash tag of %s is not %d", key, stripe)
			}
		}
	}
}

func TestTenantSharesStripe(t *testing.T) {
	attrs := attributes(t, "tenant", "acme", "apiKey", "k", "user", "u")
	want := quota.Stripe(256, policy("ceiling", []string{"tenant"}), attrs)
	for _, key := range [][]string{{"apiKey", "tenant"}, {"tenant", "user"}} {
		if got := quota.Stripe(256, policy("p", key), attrs); got != want {
			t.Errorf("key %v is on stripe %d, the tenant on %d", key, got, want)
		}
	}
}

func TestStripesAreEven(t *testing.T) {
	const stripes, n = 256, 100_000
	var count [stripes]int
	p := policy("p", []string{"user"})
	for i := range n {
		count[quota.Stripe(stripes, p, quota.Attributes{{Name: "user", Value: strconv.Itoa(i)}})]++
	}
	for i, c := range count {
		if c < n/stripes/2 || c > n/stripes*2 {
			t.Errorf("stripe %d has %d of %d keys", i, c, n)
		}
	}
}

// TestKeysKeepNoBuffer reuses one buffer and one builder (case 107).
func TestKeysKeepNoBuffer(t *testing.T) {
	p := policy("p", []string{"tenant", "user"})
	buf := make([]byte, 0, 256)
	var b quota.AttributeBuilder
	kept, want := []string{}, []string{}
	for i := range 1000 {
		b.Reset()
		b.Add("user", fmt.Sprint("user-", i))
		b.Add("tenant", fmt.Sprint("tenant-", i%7))
		attrs, err := b.Attributes()
		if err != nil {
			t.Fatal(err)
		}
		buf, _ = quota.AppendBucketKey(buf[:0], "rl", 256, p, attrs)
		kept = append(kept, string(buf))
		want = append(want, bucketKey(p, attributes(t, "user", fmt.Sprint("user-", i), "tenant", fmt.Sprint("tenant-", i%7))))
	}
	for i := range kept {
		if kept[i] != want[i] {
			t.Fatalf("key %d is %s, want %s", i, kept[i], want[i])
		}
	}
}

func TestSecretsAreNotInKeys(t *testing.T) {
	const secret = "sk_live_verysecret"
	attrs := attributes(t, "apiKey", secret, "tenant", "acme")
	buf := make([]byte, 0, 512)
	buf, _ = quota.AppendBucketKey(buf, "rl", 256, policy("p", []string{"tenant", "apiKey"}), attrs)
	if bytes.Contains(buf[:cap(buf)], []byte("verysecret")) {
		t.Errorf("the secret is in the buffer: %q", buf[:cap(buf)])
	}
	if strings.Contains(quota.KeyID(policy("p", []string{"apiKey"}), attrs), "verysecret") {
		t.Error("the secret is in the key id")
	}
}

func TestCheckKeyPrefix(t *testing.T) {
	for prefix, valid := range map[string]bool{"rl": true, "test:a-1": true, "": false, "{a}": false, "a b": false, strings.Repeat("a", 65): false} {
		if err := quota.CheckKeyPrefix(prefix); (err == nil) != valid {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

// FuzzKey looks for two lists of values with one key, and for values that move
// a key off its stripe.
func FuzzKey(f *testing.F) {
	f.Add("a", "b_c", "a_b", "c", "acme", uint16(256))
	f.Add("{}", "}", "{", "\x00", "~", uint16(1))
	f.Fuzz(func(t *testing.T, a, b, c, d, tenant string, stripes uint16) {
		if stripes == 0 || max(len(a), len(b), len(c), len(d), len(tenant)) > quota.MaxAttributeValue {
			return
		}
		for _, p := range []*quota.Policy{policy("p", []string{"x", "y"}), policy("p", []string{"tenant", "y", "x"})} {
			one := attributes(t, "x", a, "y", b, "tenant", tenant)
			two := attributes(t, "x", c, "y", d, "tenant", tenant)
			key, stripe := quota.AppendBucketKey(nil, "rl", int(stripes), p, one)
			other, _ := quota.AppendBucketKey(nil, "rl", int(stripes), p, two)
			if (a == c && b == d) != bytes.Equal(key, other) {
				t.Errorf("(%q,%q) and (%q,%q): %s and %s", a, b, c, d, key, other)
			}
			if redisHashTag(key) != strconv.Itoa(stripe) {
				t.Errorf("hash tag of %s is not %d", key, stripe)
			}
		}
	})
}

func BenchmarkKey(b *testing.B) {
	attrs := attributes(b, "apiKey", "ak_9f210c64be7d1a35", "ip", "203.0.113.9", "plan", "free", "tenant", "acme")
	for name, p := range map[string]*quota.Policy{
		"none": policy("api-free", nil), "apiKey": policy("api-free", []string{"apiKey"}),
		"tenant": policy("ceiling", []string{"tenant"}), "tenant+apiKey": policy("api-free", []string{"tenant", "apiKey"}),
	} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, 256)
			b.ReportAllocs()
			for b.Loop() {
				buf, _ = quota.AppendBucketKey(buf[:0], "rl", 256, p, attrs)
			}
		})
	}
}

func TestKeyDoesNotAllocate(t *testing.T) {
	attrs := attributes(t, "apiKey", "ak_9f210c64be7d1a35", "tenant", "acme")
	p := policy("api-free", []string{"tenant", "apiKey"})
	buf := make([]byte, 0, 256)
	if n := testing.AllocsPerRun(100, func() { buf, _ = quota.AppendBucketKey(buf[:0], "rl", 256, p, attrs) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
