package quota

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"
)

// Overrides is an immutable table of overrides by policy and key.
type Overrides struct {
	seed     maphash.Seed
	policies map[string]overrideTable
	now      func() time.Time
}

// overrideTable finds the override of a key by a hash of its values. Entries
// with equal hashes are chained and told apart by the values themselves.
type overrideTable map[uint64]*overrideEntry

type overrideEntry struct {
	override *Override
	next     *overrideEntry
}

// NewOverrides builds a table. Two overrides of one quota are an ErrInvalid;
// whether each fits its policy is checked by Compile. An override stops to hold
// when now is not before its Expires; a nil now is time.Now.
func NewOverrides(list []Override, now func() time.Time) (*Overrides, error) {
	if now == nil {
		now = time.Now
	}
	o := &Overrides{seed: maphash.MakeSeed(), policies: map[string]overrideTable{}, now: now}
	for i := range list {
		v := list[i]
		v.Key = slices.Clone(v.Key)
		table := o.policies[v.Policy]
		if table == nil {
			table = overrideTable{}
			o.policies[v.Policy] = table
		}
		var h maphash.Hash
		h.SetSeed(o.seed)
		for _, value := range v.Key {
			hashPart(&h, value)
		}
		sum := h.Sum64()
		for e := table[sum]; e != nil; e = e.next {
			if slices.Equal(e.override.Key, v.Key) {
				return nil, fmt.Errorf("%w: overrides[%d]: policy %s has another override of the same key; keep one of them", ErrInvalid, i, quoteShort(v.Policy))
			}
		}
		table[sum] = &overrideEntry{override: &v, next: table[sum]}
	}
	return o, nil
}

func hashPart(h *maphash.Hash, value string) {
	n := len(value)
	_, _ = h.Write([]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = h.WriteString(value)
}

// find returns the override of a quota that holds now, or nil.
func (o *Overrides) find(table overrideTable, key []string, attrs Attributes) *Override {
	var h maphash.Hash
	h.SetSeed(o.seed)
	for _, name := range key {
		hashPart(&h, attrs.Get(name))
	}
	for e := table[h.Sum64()]; e != nil; e = e.next {
		if e.override.isOf(key, attrs) {
			if x := e.override.Expires; !x.IsZero() && !o.now().Before(x) {
				return nil
			}
			return e.override
		}
	}
	return nil
}

func (o *Override) isOf(key []string, attrs Attributes) bool {
	if len(o.Key) != len(key) {
		return false
	}
	for i, name := range key {
		if attrs.Get(name) != o.Key[i] {
			return false
		}
	}
	return true
}

// CheckOverride returns an ErrInvalid when an override does not fit its policy.
func CheckOverride(p *Policy, o *Override) error {
	if err := overrideError(p, o); err != nil {
		return fmt.Errorf("%w: override of policy %s: %w", ErrInvalid, quoteShort(p.ID), err)
	}
	return nil
}

func overrideError(p *Policy, o *Override) error {
	switch {
	case len(p.Key) == 0:
		return errors.New("the policy has no key; change the policy itself")
	case len(o.Key) != len(p.Key):
		return fmt.Errorf("key has %d values; state %d, one for each of %v", len(o.Key), len(p.Key), p.Key)
	}
	for i, value := range o.Key {
		if len(value) > MaxAttributeValue {
			return fmt.Errorf("key[%d] has %d bytes; no request carries more than %d", i, len(value), MaxAttributeValue)
		}
	}
	l := o.Limit
	switch {
	case o.Unlimited && l != Limit{}:
		return errors.New("states numbers and unlimited; keep one of them")
	case o.Unlimited:
		return nil
	case p.Unlimited:
		return errors.New("the policy is unlimited; give the policy numbers and override the keys that shall be unlimited")
	case l.Capacity < 0 || l.Capacity > MaxTokens || l.Capacity%Token != 0:
		return fmt.Errorf("capacity %s is not a whole number of tokens from 0 to 2^40", l.Capacity)
	case l.Refill < 0 || l.Refill > MaxTokens:
		return fmt.Errorf("refill %s is not between 0 and 2^40 tokens", l.Refill)
	case p.Scope == Global && p.Limit.Capacity == 0:
		return errors.New("the policy denies always, so no region holds a share to scale; give the policy numbers or scope: regional")
	}
	return overrideNumbers(p, l)
}

func overrideNumbers(p *Policy, l Limit) error {
	if p.Algorithm == TokenBucket {
		if c := checkPeriod(l.Period); c != nil {
			return errors.New("the refill period " + c.reason + "; " + c.remedy)
		}
		if c := checkBucket(l); c != nil {
			return errors.New("refill " + c.reason + "; " + c.remedy)
		}
		return nil
	}
	switch {
	case l.Refill != 0:
		return fmt.Errorf("%s has no refill; leave it zero", p.Algorithm)
	case l.Period != p.Limit.Period:
		return fmt.Errorf("the window cannot be overridden; state %s", FormatDuration(p.Limit.Period))
	case l.Capacity > MaxLogEntries*Token:
		return fmt.Errorf("limit %s is above %d; use a token-bucket policy", l.Capacity, MaxLogEntries)
	}
	return nil
}
