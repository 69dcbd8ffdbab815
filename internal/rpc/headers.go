package rpc

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/quota"
)

// Profile is a generation of rate limit headers. The zero value is Draft11.
type Profile uint8

// The profiles. They are documented in docs/api.md.
const (
	Draft11 Profile = iota
	Draft12
	Both
	LegacyTriple
	XRateLimit
	XRateLimitEpoch
	Off
)

var profileNames = [...]string{"draft-11", "draft-12", "both", "legacy-triple", "x-ratelimit", "x-ratelimit-epoch", "off"}

// String returns the name that configuration uses.
func (p Profile) String() string {
	if int(p) < len(profileNames) {
		return profileNames[p]
	}
	return "unknown"
}

// ParseProfile is the inverse of String.
func ParseProfile(s string) (Profile, error) {
	for i, name := range profileNames {
		if s == name {
			return Profile(i), nil
		}
	}
	return 0, fmt.Errorf("header profile %q: use one of %s: %w", s, strings.Join(profileNames[:], ", "), quota.ErrInvalid)
}

// When says which answers carry headers. The zero value is Always.
type When uint8

// The answers that carry headers: every one; denials and those with at most a
// fifth of a limit remaining; denials only.
const (
	Always When = iota
	NearLimit
	Denied
)

// nearLimitParts is the part of a limit (one of so many) at which an answer is near it.
const nearLimitParts = 5

// HeaderConfig is which headers answers carry. The zero value is the default.
type HeaderConfig struct {
	Profile Profile
	When    When
}

// with returns the configuration after a request's own choice.
func (c HeaderConfig) with(m *weirv1.HeaderOptions) HeaderConfig {
	switch m.GetProfile() {
	case weirv1.HeaderOptions_DRAFT_11:
		c.Profile = Draft11
	case weirv1.HeaderOptions_DRAFT_12:
		c.Profile = Draft12
	case weirv1.HeaderOptions_BOTH:
		c.Profile = Both
	case weirv1.HeaderOptions_LEGACY_TRIPLE:
		c.Profile = LegacyTriple
	case weirv1.HeaderOptions_X_RATELIMIT:
		c.Profile = XRateLimit
	case weirv1.HeaderOptions_X_RATELIMIT_EPOCH:
		c.Profile = XRateLimitEpoch
	case weirv1.HeaderOptions_OFF:
		c.Profile = Off
	case weirv1.HeaderOptions_PROFILE_UNSPECIFIED:
	}
	switch m.GetWhen() {
	case weirv1.HeaderOptions_ALWAYS:
		c.When = Always
	case weirv1.HeaderOptions_NEAR_LIMIT:
		c.When = NearLimit
	case weirv1.HeaderOptions_DENIED:
		c.When = Denied
	case weirv1.HeaderOptions_WHEN_UNSPECIFIED:
	}
	return c
}

// Header is one response header, its name spelled as its standard spells it.
type Header struct{ Name, Value string }

// Headers returns what the response to the checked request should carry. It
// looks at the result only, so no choice of headers can change a verdict or a
// key. Shadow and unlimited policies never show. now is used by the epoch
// profile only.
func (c HeaderConfig) Headers(r *quota.Result, cost quota.Tokens, now time.Time) []Header {
	if c.Profile == Off || (c.When == Denied && r.Allowed) {
		return nil
	}
	var stack [8]item
	items := appendItems(stack[:0], r, cost)
	if c.When == NearLimit && r.Allowed && !anyNear(items) {
		return nil
	}
	out := make([]Header, 0, 4)
	if len(items) > 0 {
		out = c.Profile.append(out, items, now)
	}
	if !r.Allowed {
		if seconds := retrySeconds(r); seconds > 0 {
			out = append(out, Header{"Retry-After", string(appendInt(nil, seconds))})
		}
	}
	return out
}

// retrySeconds is Retry-After: the true wait rounded up, at least 1, or 0 when
// no wait helps.
func retrySeconds(r *quota.Result) int64 {
	for i := range r.Decisions {
		if d := &r.Decisions[i]; !d.Allowed && !d.Shadow && noWaitHelps(d) {
			return 0
		}
	}
	return max(1, ceilSeconds(retryAfter(r)))
}

func ceilSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	s := int64(d / time.Second)
	if d%time.Second != 0 {
		s++
	}
	return s
}

// item is one policy in a header.
type item struct {
	name string
	// unit is empty for the default, requests.
	unit string
	// quota per window; window is in seconds, 0 when there is none.
	quota, window int64
	// burst is the capacity where it differs from quota; 0 leaves it out.
	burst int64
	// remaining and reset (seconds) are what may be used, and for how long.
	// A negative reset leaves it out.
	remaining, reset int64
	// cost of this request in whole tokens; 0 leaves it out.
	cost int64

	denied bool
	// capacity is what remaining can reach.
	capacity int64
}

// appendItems turns decisions into items, the most restrictive first: naive
// clients read only the first.
func appendItems(items []item, r *quota.Result, cost quota.Tokens) []item {
	for i := range r.Decisions {
		d := &r.Decisions[i]
		if d.Shadow || !hasNumbers(d) {
			continue
		}
		items = append(items, newItem(d, cost))
		// Insertion keeps the order and, unlike sort.Slice, allocates nothing.
		for j := len(items) - 1; j > 0 && stricter(&items[j], &items[j-1]); j-- {
			items[j], items[j-1] = items[j-1], items[j]
		}
	}
	return items
}

// hasNumbers is false for a decision that no count stands behind.
func hasNumbers(d *quota.Decision) bool {
	switch {
	case d.Unlimited, d.Source == quota.SourceNone,
		d.Reason == quota.ReasonStoreUnavailable, d.Reason == quota.ReasonMissingKey:
		return false
	case d.Source == quota.SourceFallback:
		// A policy that fails open admits without counting, and so as if untouched.
		return !d.Allowed || d.Remaining < d.Limit || d.ResetAfter > 0
	}
	return true
}

func newItem(d *quota.Decision, cost quota.Tokens) item {
	it := item{
		name:      d.PolicyID,
		remaining: max(0, d.Remaining),
		denied:    !d.Allowed,
		capacity:  d.Limit,
		cost:      cost.Whole(),
	}
	it.quota, it.window = quotaAndWindow(d)
	if it.window == 0 && d.Limits.Period == 0 {
		it.unit = "concurrent-requests"
	}
	if d.Limits.Refill > 0 && d.Limit != it.quota {
		it.burst = d.Limit
	}
	switch {
	case d.Allowed:
		it.reset = max(ceilSeconds(nextUnit(d)), usableFor(it))
	case d.Reason == quota.ReasonNeverFits:
		it.reset = -1
	default:
		it.reset = max(1, ceilSeconds(d.RetryAfter))
	}
	return it
}

// quotaAndWindow states a limit in whole units per whole seconds, rounded so
// that it is never looser than the truth.
func quotaAndWindow(d *quota.Decision) (units, seconds int64) {
	l := d.Limits
	if l.Period <= 0 {
		return d.Limit, 0
	}
	if l.Refill <= 0 {
		return d.Limit, max(1, ceilSeconds(l.Period))
	}
	if whole := l.Refill.Whole(); whole > 0 {
		return whole, max(1, ceilSeconds(l.Period))
	}
	// Less than one token per period: one token per so many periods.
	return 1, max(1, ceilSeconds(mulDiv(l.Period, quota.Token, l.Refill)))
}

// nextUnit is the longest that an admitted caller waits for the next token.
func nextUnit(d *quota.Decision) time.Duration {
	if d.Remaining >= d.Limit {
		return 0
	}
	if l := d.Limits; l.Refill > 0 {
		return min(d.ResetAfter, mulDiv(l.Period, quota.Token, l.Refill))
	}
	if d.Remaining > 0 {
		return 0
	}
	return d.ResetAfter
}

// mulDiv is d*a/b, exact, rounded up and saturating; none is negative and b is
// not zero.
func mulDiv(d time.Duration, a, b quota.Tokens) time.Duration {
	hi, lo := bits.Mul64(uint64(d), uint64(a))
	if hi >= uint64(b) {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, uint64(b))
	if r > 0 {
		q++
	}
	return time.Duration(min(q, math.MaxInt64))
}

// usableFor is how long the remaining units should last at the rate of the
// limit, so that remaining/reset never invites more than quota/window.
func usableFor(it item) int64 {
	if it.quota <= 0 || it.window <= 0 || it.remaining <= 0 {
		return 0
	}
	f := float64(it.remaining) * float64(it.window) / float64(it.quota)
	s := int64(min(f, sfMax))
	if float64(s) < f {
		s++
	}
	return s
}

// stricter orders items: denied ones first, those that never fit before all,
// then the longest wait; then by the part of the capacity that remains.
func stricter(a, b *item) bool {
	if a.denied != b.denied {
		return a.denied
	}
	if a.denied && a.reset != b.reset {
		return a.reset < 0 || (b.reset >= 0 && a.reset > b.reset)
	}
	fa, fb := float64(a.remaining)*float64(b.capacity), float64(b.remaining)*float64(a.capacity)
	if fa != fb {
		return fa < fb
	}
	return a.name < b.name
}

func anyNear(items []item) bool {
	for i := range items {
		if items[i].remaining <= items[i].capacity/nearLimitParts {
			return true
		}
	}
	return false
}
