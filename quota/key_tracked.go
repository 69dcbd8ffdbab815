package quota

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxTrackedKey bounds the name of a tracked key: its hash, a colon, a tenant, a policy
// and a hash of key parts.
const MaxTrackedKey = partitionDigits + 1 + len("t:") + 32 + 1 + MaxPolicyID + len(":k:") + 16

// partitionDigits are the hex digits of a partition's hash.
const partitionDigits = 16

// TrackedKey returns the name that a quota has in all regions, for ID.Key: the hash of
// its partition, from which each region tells the stripe, and its store key behind the
// prefix and the stripe. It is never empty, for a policy without a key either:
//
//	c3a5c85c97cb3127:t:acme:api-free:k:9f210c64be7d1a35
//
// It returns "" for a bucket that is not a store key.
func TrackedKey(partition uint64, bucket string) string {
	_, rest, ok := strings.Cut(bucket, "}:")
	if !ok || rest == "" {
		return ""
	}
	name := make([]byte, 0, partitionDigits+1+len(rest))
	digits := strconv.FormatUint(partition, 16)
	for range partitionDigits - len(digits) {
		name = append(name, '0')
	}
	return string(append(append(append(name, digits...), ':'), rest...))
}

// PlaceOf returns where a region keeps the bucket of a tracked key. It fails with
// ErrInvalid when the key is no name of a quota of the policy: nothing that comes
// over the wire may lead to another key of the store.
func PlaceOf(id ID, prefix string, stripes int) (bucket string, stripe int, err error) {
	partition, rest, ok := splitTrackedKey(id)
	if !ok {
		return "", 0, fmt.Errorf("%w: %s names no key of policy %s", ErrInvalid, quoteShort(id.Key), quoteShort(id.Policy))
	}
	stripe = stripeOf(partition, stripes)
	dst := make([]byte, 0, len(prefix)+10+len(rest))
	dst = append(appendTag(dst, prefix, stripe), ':')
	return string(append(dst, rest...)), stripe, nil
}

// splitTrackedKey takes a tracked key's name apart; ok is whether it is one of the policy.
func splitTrackedKey(id ID) (partition uint64, rest string, ok bool) {
	key := id.Key
	if len(key) <= partitionDigits+1 || len(key) > MaxTrackedKey || key[partitionDigits] != ':' || !ValidPolicyID(id.Policy) {
		return 0, "", false
	}
	for i := range key[:partitionDigits] {
		if c := key[i]; !isDigit(c) && (c < 'a' || c > 'f') {
			return 0, "", false
		}
	}
	partition, err := strconv.ParseUint(key[:partitionDigits], 16, 64)
	rest = key[partitionDigits+1:]
	return partition, rest, err == nil && namesPolicy(rest, id.Policy)
}

// namesPolicy reports whether what stands behind a store key's stripe is of the form
// [t:TENANT:]POLICY[:k:HASH], with the policy that is given.
func namesPolicy(rest, policy string) bool {
	if after, ok := strings.CutPrefix(rest, "t:"); ok {
		tenant, behind, found := strings.Cut(after, ":")
		if !found || tenant == "" {
			return false
		}
		for i := range len(tenant) {
			if !isNameByte(tenant[i]) && (i > 0 || tenant[i] != '~') {
				return false
			}
		}
		rest = behind
	}
	hash, ok := strings.CutPrefix(rest, string(appendPolicyID(nil, policy)))
	if !ok || hash == "" {
		return ok
	}
	hash, ok = strings.CutPrefix(hash, ":k:")
	for i := range len(hash) {
		ok = ok && (isDigit(hash[i]) || hash[i] >= 'a' && hash[i] <= 'f')
	}
	return ok && len(hash) == 16
}
