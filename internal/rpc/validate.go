package rpc

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/weirhq/weir/quota"
)

// Bounds of a request. Beyond them it is refused as InvalidArgument.
const (
	// MaxAttributes is the number of attributes of one request.
	MaxAttributes = 64
	// MaxAttributeName and MaxAttributeValue are in bytes.
	MaxAttributeName  = 128
	MaxAttributeValue = 4096
	// MaxRequestID is in bytes.
	MaxRequestID = 255
	// MaxPolicyFilter is the number of policies that a request can name.
	MaxPolicyFilter = 64
	// MaxPolicyID is in bytes.
	MaxPolicyID = 128
	// MaxBatch is the number of checks of one batch.
	MaxBatch = 1000
	// MaxCost is in whole tokens: the largest limit that can be stated.
	MaxCost = int64(quota.MaxTokens / quota.Token)
	// maxViolations bounds the error of a request that is wrong all over.
	maxViolations = 10
)

// problems collects what is wrong with a request. Its zero value is ready and a
// request that is right allocates nothing.
type problems struct{ list []violation }

func (p *problems) add(field, format string, args ...any) {
	if len(p.list) < maxViolations {
		p.list = append(p.list, violation{field, fmt.Sprintf(format, args...)})
	}
}

// err returns nil when nothing was added.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return &invalidError{p.list}
}

// attributes never repeats a value in a message: it may be a secret.
func (p *problems) attributes(m map[string]string) {
	if len(m) > MaxAttributes {
		p.add("attributes", "%d of them; send at most %d, only those that policies name", len(m), MaxAttributes)
		return
	}
	for name, value := range m {
		switch {
		case name == "":
			p.add("attributes", "a name is empty; give every attribute a name")
		case len(name) > MaxAttributeName:
			p.add("attributes", "the name %s... has %d bytes; use at most %d", quoteHead(name), len(name), MaxAttributeName)
		case !utf8.ValidString(name):
			p.add("attributes", "the name %s is not valid UTF-8; encode it", quoteHead(name))
		case len(value) > MaxAttributeValue:
			p.add(attributeField(name), "%d bytes long; use at most %d, or send a hash of it", len(value), MaxAttributeValue)
		case !utf8.ValidString(value):
			p.add(attributeField(name), "not valid UTF-8; encode it, for example as base64")
		}
	}
}

func attributeField(name string) string { return "attributes[" + quoteHead(name) + "]" }

// quoteHead quotes at most the first 32 bytes of s.
func quoteHead(s string) string {
	if len(s) > 32 {
		s = s[:32]
	}
	return strconv.QuoteToASCII(s)
}

// cost converts the optional cost of a request; nil means one token.
func (p *problems) cost(field string, cost *int64) quota.Tokens {
	if cost == nil {
		return quota.Token
	}
	switch {
	case *cost < 0:
		p.add(field, "%d is negative; a cost is 0 or more, use Refund to give tokens back", *cost)
	case *cost > MaxCost:
		p.add(field, "%d is more than any limit can hold; use at most %d", *cost, MaxCost)
	default:
		return quota.Tokens(*cost) * quota.Token
	}
	return 0
}

// amount converts the amount of a refund.
func (p *problems) amount(amount int64) quota.Tokens {
	switch {
	case amount < 1:
		p.add("amount", "%d; give back at least 1 token", amount)
	case amount > MaxCost:
		p.add("amount", "%d is more than any limit can hold; use at most %d", amount, MaxCost)
	default:
		return quota.Tokens(amount) * quota.Token
	}
	return 0
}

func (p *problems) requestID(field, id string) {
	switch {
	case len(id) > MaxRequestID:
		p.add(field, "%d bytes long; use at most %d, for example a UUID", len(id), MaxRequestID)
	case !utf8.ValidString(id):
		p.add(field, "not valid UTF-8; use printable text, for example a UUID")
	}
}

func (p *problems) policies(ids []string) {
	if len(ids) > MaxPolicyFilter {
		p.add("policies", "%d of them; name at most %d, or none to let every policy decide", len(ids), MaxPolicyFilter)
		return
	}
	for i, id := range ids {
		if id == "" || len(id) > MaxPolicyID || !utf8.ValidString(id) {
			p.add("policies["+strconv.Itoa(i)+"]", "not a policy id; use 1 to %d bytes of UTF-8", MaxPolicyID)
		}
	}
}
