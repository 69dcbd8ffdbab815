package rpc

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// Bounds of PolicyService's requests.
const (
	// maxChangeBytes bounds the calls that carry documents or batches, maxReadBytes all others.
	maxChangeBytes = 16 << 20
	maxReadBytes   = 1 << 20
	defaultPage    = 100
	maxPage        = 1000
	// maxListedIDs bounds the ids in one page of revisions, whose summaries can be large.
	maxListedIDs  = 50_000
	maxSearch     = 256
	maxPageToken  = 8 << 10
	maxRegionList = 100
	maxInstance   = 64
)

// pageSize returns the rows to list; more than the most is the most.
func (p *problems) pageSize(n int32, most int) int {
	switch {
	case n < 0:
		p.add("page_size", "%d is negative; leave it out or say how many", n)
		return 0
	case n == 0:
		return min(defaultPage, most)
	}
	return min(int(n), most)
}

func (p *problems) badPageToken() {
	p.add("page_token", "not one of ours; send next_page_token of the answer before, with the other fields as they were")
}

// numberToken reads a page token that is the number of the last row.
func (p *problems) numberToken(token string) int64 {
	if token == "" {
		return 0
	}
	n, err := strconv.ParseInt(token, 10, 64)
	if err != nil || n < 1 {
		p.badPageToken()
	}
	return n
}

// idToken reads a page token that is the id of the last row.
func (p *problems) idToken(token string) string {
	if token != "" && !quota.ValidPolicyID(token) {
		p.badPageToken()
	}
	return token
}

// listToken is the place in a list of policies: the revision stays the same
// from page to page.
type listToken struct {
	revision int64
	after    string
}

func (t listToken) String() string { return fmt.Sprintf("%d/%s", t.revision, t.after) }

func (p *problems) listToken(token string) *listToken {
	if token == "" {
		return nil
	}
	number, after, _ := strings.Cut(token, "/")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || !quota.ValidPolicyID(after) {
		p.badPageToken()
	}
	return &listToken{n, after}
}

// overrideToken encodes an id as its policy and values, each after its length.
func overrideToken(id policystore.OverrideID) string {
	return base64.RawURLEncoding.EncodeToString([]byte(id.MapKey()))
}

func (p *problems) overrideToken(token string) *policystore.OverrideID {
	if token == "" {
		return nil
	}
	if len(token) > maxPageToken {
		p.badPageToken()
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		p.badPageToken()
		return nil
	}
	var parts []string
	for len(raw) > 0 {
		n, size := binary.Uvarint(raw)
		if size <= 0 || n > uint64(len(raw)-size) {
			p.badPageToken()
			return nil
		}
		parts = append(parts, string(raw[size:size+int(n)]))
		raw = raw[size+int(n):]
	}
	if len(parts) < 2 || !quota.ValidPolicyID(parts[0]) {
		p.badPageToken()
		return nil
	}
	return &policystore.OverrideID{Policy: parts[0], Key: parts[1:]}
}

// id checks a name of the form that policies and tokens have.
func (p *problems) id(field, id string) {
	if !quota.ValidPolicyID(id) {
		p.add(field, "not an id; use 1 to %d letters, digits and _.:/-", quota.MaxPolicyID)
	}
}

func (p *problems) optionalID(field, id string) {
	if id != "" {
		p.id(field, id)
	}
}

// search checks a text that rows are selected by.
func (p *problems) search(field, text string) {
	switch {
	case len(text) > maxSearch:
		p.add(field, "%d bytes long; use at most %d", len(text), maxSearch)
	case strings.ContainsRune(text, 0):
		p.add(field, "holds a NUL character, which nothing that is kept does")
	}
}

func (p *problems) region(field, region string) quota.Region {
	r := quota.Region(region)
	if !quota.ValidRegion(r) {
		p.add(field, "not a region name; use 1 to %d letters, digits and _.-", quota.MaxRegionName)
	}
	return r
}

func (p *problems) regions(list []string) []quota.Region {
	if len(list) > maxRegionList {
		p.add("regions", "%d of them; name at most %d, or none for all", len(list), maxRegionList)
		return nil
	}
	var out []quota.Region
	for i, r := range list {
		out = append(out, p.region("regions["+strconv.Itoa(i)+"]", r))
	}
	return out
}

func (p *problems) expected(n *int64) {
	if n != nil && *n < 0 {
		p.add("expected_revision", "%d is negative; revisions count from 0", *n)
	}
}

func (p *problems) timestamp(field string, t *timestamppb.Timestamp) {
	if t != nil && t.CheckValid() != nil {
		p.add(field, "not a time between the years 1 and 9999")
	}
}

func (p *problems) overrideID(field string, id *weirv1.OverrideID) {
	p.id(field+".policy", id.GetPolicy())
	if n := len(id.GetKey()); n == 0 || n > quota.MaxKeyParts {
		p.add(field+".key", "%d values; state one for each attribute of the policy's key", n)
	}
}

// override checks what conversion would lose; the numbers are for the store to judge.
func (p *problems) override(field string, o *weirv1.Override) {
	p.overrideID(field+".id", o.GetId())
	p.timestamp(field+".expires_at", o.GetExpiresAt())
	if d := o.GetLimit().GetPeriod(); d != nil && !d.IsValid() {
		p.add(field+".limit.period", "not a valid duration")
	}
}
