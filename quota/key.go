package quota

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
)

// DefaultKeyPrefix begins the name of every key in a region's store.
const DefaultKeyPrefix = "rl"

// MaxKeyPrefix bounds the length of a key prefix.
const MaxKeyPrefix = 64

// tenantAttribute is the attribute that keeps a tenant's quotas together on one
// stripe, and that keys show in the clear.
const tenantAttribute = "tenant"

// CheckKeyPrefix returns an ErrInvalid when a prefix could not begin a key
// name: braces in it would take the place of the stripe's hash tag.
func CheckKeyPrefix(prefix string) error {
	valid := prefix != "" && len(prefix) <= MaxKeyPrefix
	for i := 0; valid && i < len(prefix); i++ {
		valid = isNameByte(prefix[i]) || prefix[i] == ':'
	}
	if !valid {
		return fmt.Errorf("%w: key prefix %s: use 1 to %d of the characters A-Z a-z 0-9 _ . : -", ErrInvalid, quoteShort(prefix), MaxKeyPrefix)
	}
	return nil
}

// Stripe returns the stripe, 0 to stripes-1, that a quota lives on. It depends
// on the quota alone: on its tenant if the key names one, else on the first
// part of the key, else on the policy.
func Stripe(stripes int, p *Policy, attrs Attributes) int {
	return stripeOf(Partition(p, attrs), stripes)
}

// Partition returns the hash of what decides a quota's stripe. It is the same in all
// regions, however many stripes each of them has.
func Partition(p *Policy, attrs Attributes) uint64 {
	partition := p.ID
	if len(p.Key) > 0 {
		partition = attrs.Get(p.Key[0])
		if hasTenant(p) {
			partition = attrs.Get(tenantAttribute)
		}
	}
	return stableHash(partition)
}

func stripeOf(partition uint64, stripes int) int { return int(partition % uint64(stripes)) }

func hasTenant(p *Policy) bool {
	return slices.Contains(p.Key, tenantAttribute)
}

// stableHash is FNV-1a with a finisher that spreads its weak low bits. Stored
// data depends on it: it must never change.
func stableHash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// appendTag appends the prefix and the hash tag of a stripe, for example rl:{17}.
func appendTag(dst []byte, prefix string, stripe int) []byte {
	dst = append(dst, prefix...)
	dst = append(dst, ":{"...)
	dst = strconv.AppendInt(dst, int64(stripe), 10)
	return append(dst, '}')
}

// AppendBucketKey appends the store key of a quota and returns its stripe. The
// key names the policy and, for each concrete key, something of its own:
//
//	rl:{17}:api-free                          no key
//	rl:{17}:api-free:k:9f210c64be7d1a35       key parts, hashed
//	rl:{17}:t:acme:api-free                   key [tenant]
//	rl:{17}:t:acme:api-free:k:9f210c64be7d1a35
//
// No two quotas share a key, whatever their values hold, short of a collision
// of 64 bits of SHA-256. An attribute that the request lacks counts as empty.
// Only a tenant is ever shown in the clear. It allocates only to grow dst.
func AppendBucketKey(dst []byte, prefix string, stripes int, p *Policy, attrs Attributes) ([]byte, int) {
	return AppendPartitionKey(dst, prefix, stripes, Partition(p, attrs), p, attrs)
}

// AppendPartitionKey is AppendBucketKey for a caller that has the quota's Partition at hand.
func AppendPartitionKey(dst []byte, prefix string, stripes int, partition uint64, p *Policy, attrs Attributes) ([]byte, int) {
	stripe := stripeOf(partition, stripes)
	dst = append(appendTag(dst, prefix, stripe), ':')
	tenant := hasTenant(p)
	if tenant {
		dst = append(appendTenant(dst, attrs), ':')
	}
	dst = appendPolicyID(dst, p.ID)
	if hashed := len(p.Key); hashed > 1 || hashed == 1 && !tenant {
		dst = appendKeyHash(append(dst, ':'), p, attrs)
	}
	return dst, stripe
}

// AppendKeyID appends the short name of a quota within its policy: the parts of
// its store key that stem from the request, for example t:acme:k:9f210c64be7d1a35.
// It is empty for a policy without a key, and never changes between versions.
func AppendKeyID(dst []byte, p *Policy, attrs Attributes) []byte {
	tenant := hasTenant(p)
	if tenant {
		dst = appendTenant(dst, attrs)
	}
	if hashed := len(p.Key); hashed > 1 || hashed == 1 && !tenant {
		if tenant {
			dst = append(dst, ':')
		}
		dst = appendKeyHash(dst, p, attrs)
	}
	return dst
}

// KeyID returns what AppendKeyID appends.
func KeyID(p *Policy, attrs Attributes) string {
	return string(AppendKeyID(make([]byte, 0, 64), p, attrs))
}

// AppendShareKey appends the store key of a policy's share record on a stripe.
func AppendShareKey(dst []byte, prefix string, stripe int, policyID string) []byte {
	return append(append(appendTag(dst, prefix, stripe), "@share:"...), policyID...)
}

// AppendTrackedKey appends the store key of the list of a stripe's tracked keys.
func AppendTrackedKey(dst []byte, prefix string, stripe int) []byte {
	return append(appendTag(dst, prefix, stripe), "@tracked"...)
}

// AppendRegionKey appends the store key of the region record on a stripe.
func AppendRegionKey(dst []byte, prefix string, stripe int) []byte {
	return append(appendTag(dst, prefix, stripe), "@region"...)
}

// appendPolicyID appends an id in a form that has no colon and is not "t": with
// either it could be taken for another part of a key. The replacements, ~ and
// +, occur in no id.
func appendPolicyID(dst []byte, id string) []byte {
	if id == "t" {
		return append(dst, "+t"...)
	}
	for i := range len(id) {
		c := id[i]
		if c == ':' {
			c = '~'
		}
		dst = append(dst, c)
	}
	return dst
}

// appendTenant appends t: and the tenant, as it is when it is short and plain,
// else hashed behind a ~, which no plain tenant holds.
func appendTenant(dst []byte, attrs Attributes) []byte {
	const longest = 32
	tenant := attrs.Get(tenantAttribute)
	plain := tenant != "" && len(tenant) <= longest
	for i := 0; plain && i < len(tenant); i++ {
		plain = isNameByte(tenant[i])
	}
	dst = append(dst, "t:"...)
	if plain {
		return append(dst, tenant...)
	}
	dst = append(dst, '~')
	return appendHash(append(dst, tenant...), len(dst))
}

// appendKeyHash appends k: and the hash of the key's parts other than the
// tenant, each behind its length so that no two lists of parts look alike.
func appendKeyHash(dst []byte, p *Policy, attrs Attributes) []byte {
	dst = append(dst, "k:"...)
	start := len(dst)
	for _, name := range p.Key {
		if name != tenantAttribute {
			value := attrs.Get(name)
			dst = binary.AppendUvarint(dst, uint64(len(value)))
			dst = append(dst, value...)
		}
	}
	return appendHash(dst, start)
}

// appendHash replaces what stands behind start, which may be secret, by the
// first 16 hex digits of its SHA-256.
func appendHash(dst []byte, start int) []byte {
	sum := sha256.Sum256(dst[start:])
	clear(dst[start:])
	return hex.AppendEncode(dst[:start], sum[:8])
}
