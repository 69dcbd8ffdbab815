package policystore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir/quota"
)

// record is how a policy is kept: by name, with units in the names, so that
// what was written by one version is read by the next, and people can read it too.
type record struct {
	ID             string             `json:"id"`
	Match          []conditionRecord  `json:"match,omitempty"`
	Key            []string           `json:"key,omitempty"`
	Algorithm      string             `json:"algorithm,omitempty"`
	CapacityMilli  int64              `json:"capacity_millitokens,omitempty"`
	RefillMilli    int64              `json:"refill_millitokens,omitempty"`
	Period         string             `json:"period,omitempty"`
	Scope          string             `json:"scope,omitempty"`
	SplitStrategy  string             `json:"split_strategy,omitempty"`
	FloorPercent   *float64           `json:"floor_percent,omitempty"`
	OnPartition    string             `json:"on_partition,omitempty"`
	Weights        map[string]float64 `json:"weights,omitempty"`
	OnStoreFailure string             `json:"on_store_failure,omitempty"`
	StoreDeadline  string             `json:"store_deadline,omitempty"`
	Enforcement    string             `json:"enforcement,omitempty"`
	MissingKey     string             `json:"missing_key,omitempty"`
	SubBuckets     int                `json:"sub_buckets,omitempty"`
	LeaseTTL       string             `json:"lease_ttl,omitempty"`
	Priority       int                `json:"priority,omitempty"`
	Shadow         bool               `json:"shadow,omitempty"`
	Unlimited      bool               `json:"unlimited,omitempty"`
}

type conditionRecord struct {
	Attribute string `json:"attribute"`
	Pattern   string `json:"pattern"`
}

// EncodePolicy returns the stored form of a policy: JSON, the same bytes for
// equal policies. It refuses, with ErrInvalid, what could not be read back as it was.
func EncodePolicy(p *quota.Policy) ([]byte, error) {
	r := record{
		ID: p.ID, Key: p.Key,
		Algorithm:     enumName(p.Algorithm),
		CapacityMilli: int64(p.Limit.Capacity), RefillMilli: int64(p.Limit.Refill),
		Period:         durationName(p.Limit.Period),
		Scope:          enumName(p.Scope),
		SplitStrategy:  enumName(p.Split.Strategy),
		FloorPercent:   p.Split.FloorPercent,
		OnPartition:    enumName(p.Split.OnPartition),
		OnStoreFailure: enumName(p.OnStoreFailure),
		StoreDeadline:  durationName(p.StoreDeadline),
		Enforcement:    enumName(p.Enforcement),
		MissingKey:     enumName(p.MissingKey),
		SubBuckets:     p.SubBuckets,
		LeaseTTL:       durationName(p.LeaseTTL),
		Priority:       p.Priority, Shadow: p.Shadow, Unlimited: p.Unlimited,
	}
	texts := append([]string{p.ID}, p.Key...)
	for _, c := range p.Match {
		r.Match = append(r.Match, conditionRecord(c))
		texts = append(texts, c.Attribute, c.Pattern)
	}
	for region, w := range p.Split.Weights {
		if r.Weights == nil {
			r.Weights = make(map[string]float64, len(p.Split.Weights))
		}
		r.Weights[string(region)] = w
		texts = append(texts, string(region))
	}
	for _, s := range texts {
		if !utf8.ValidString(s) {
			return nil, invalidf("policy %q: %q is not valid UTF-8", p.ID, s)
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, invalidf("policy %q: %v", p.ID, err)
	}
	return b, nil
}

// DecodePolicy reads what EncodePolicy wrote. A field or a name that it does not
// know is an error: enforcing part of a policy would be worse than keeping the last good set.
func DecodePolicy(b []byte) (*quota.Policy, error) {
	var r record
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return nil, fmt.Errorf("stored policy: %w", err)
	}
	d := decoder{id: r.ID}
	p := &quota.Policy{
		ID: r.ID, Key: r.Key,
		Algorithm: parseEnum(&d, r.Algorithm, quota.TokenBucket, quota.SlidingLog, quota.Concurrency),
		Limit: quota.Limit{
			Capacity: quota.Tokens(r.CapacityMilli),
			Refill:   quota.Tokens(r.RefillMilli),
			Period:   d.duration(r.Period),
		},
		Scope: parseEnum(&d, r.Scope, quota.Regional),
		Split: quota.Split{
			Strategy:     parseEnum(&d, r.SplitStrategy, quota.SplitEqual, quota.SplitExplicit),
			FloorPercent: r.FloorPercent,
			OnPartition:  parseEnum(&d, r.OnPartition, quota.Strict),
		},
		OnStoreFailure: parseEnum(&d, r.OnStoreFailure, quota.FailLocal, quota.FailOpen, quota.FailClosed),
		StoreDeadline:  d.duration(r.StoreDeadline),
		Enforcement:    parseEnum(&d, r.Enforcement, quota.Leased),
		MissingKey:     parseEnum(&d, r.MissingKey, quota.MissingDeny, quota.MissingShared),
		SubBuckets:     r.SubBuckets,
		LeaseTTL:       d.duration(r.LeaseTTL),
		Priority:       r.Priority, Shadow: r.Shadow, Unlimited: r.Unlimited,
	}
	for _, c := range r.Match {
		p.Match = append(p.Match, quota.Condition(c))
	}
	for region, w := range r.Weights {
		if p.Split.Weights == nil {
			p.Split.Weights = make(map[quota.Region]float64, len(r.Weights))
		}
		p.Split.Weights[quota.Region(region)] = w
	}
	return p, d.err
}

// decoder keeps the first problem of a stored policy.
type decoder struct {
	id  string
	err error
}

func (d *decoder) failf(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("stored policy %q: %s", d.id, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) duration(s string) time.Duration {
	if s == "" {
		return 0
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		d.failf("%v", err)
	}
	return v
}

func durationName(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

type enum interface {
	~uint8
	String() string
}

// enumName leaves the zero value out, so that defaults take no room.
func enumName[E enum](e E) string {
	if e == 0 {
		return ""
	}
	return e.String()
}

func parseEnum[E enum](d *decoder, name string, known ...E) E {
	if name == "" {
		return 0
	}
	for _, e := range known {
		if e.String() == name {
			return e
		}
	}
	d.failf("%T %q is not known to this version", known[0], name)
	return 0
}
