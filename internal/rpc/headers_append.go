package rpc

import (
	"strconv"
	"time"
)

// sfMax is the largest integer of a structured field (RFC 9651).
const sfMax = 999_999_999_999_999

// The parameter names of the generations of the draft.
const (
	paramsDraft11 = 1 << iota
	paramsDraft12
)

// append adds the headers of a profile; items is not empty.
//
// Values are written by hand into one buffer on the stack: a structured fields
// library takes ten times as long and two dozen allocations for the same bytes.
func (p Profile) append(out []Header, items []item, now time.Time) []Header {
	var stack [512]byte
	switch p {
	case Draft11, Draft12, Both:
		params := paramsDraft11
		switch p {
		case Draft12:
			params = paramsDraft12
		case Both:
			params |= paramsDraft12
		}
		// One statement each: the order of two conversions within one is not
		// defined, and they share the buffer.
		out = append(out, Header{"RateLimit-Policy", string(appendPolicies(stack[:0], items))})
		return append(out, Header{"RateLimit", string(appendStates(stack[:0], items, params))})
	case LegacyTriple:
		return appendTriple(out, items, "RateLimit-", false, time.Time{})
	case XRateLimit:
		return appendTriple(out, items, "X-RateLimit-", true, time.Time{})
	case XRateLimitEpoch:
		return appendTriple(out, items, "X-RateLimit-", true, now)
	case Off:
	}
	return out
}

// appendPolicies writes RateLimit-Policy: a list of strings with parameters.
func appendPolicies(b []byte, items []item) []byte {
	for i := range items {
		it := &items[i]
		if i > 0 {
			b = append(b, ", "...)
		}
		b = appendString(b, it.name)
		b = appendParam(b, ";q=", it.quota)
		if it.unit != "" {
			b = append(b, ";qu="...)
			b = appendString(b, it.unit)
		}
		if it.window > 0 {
			b = appendParam(b, ";w=", it.window)
		}
		if it.burst > 0 {
			b = appendParam(b, ";weir-burst=", it.burst)
		}
	}
	return b
}

// appendStates writes RateLimit.
func appendStates(b []byte, items []item, params int) []byte {
	for i := range items {
		it := &items[i]
		if i > 0 {
			b = append(b, ", "...)
		}
		b = appendString(b, it.name)
		if params&paramsDraft11 != 0 {
			b = appendState(b, ";r=", ";t=", it)
		}
		if params&paramsDraft12 != 0 {
			b = appendState(b, ";a=", ";w=", it)
			if it.cost > 0 {
				b = appendParam(b, ";c=", it.cost)
			}
		}
	}
	return b
}

func appendState(b []byte, available, window string, it *item) []byte {
	b = appendParam(b, available, it.remaining)
	if it.reset >= 0 {
		b = appendParam(b, window, it.reset)
	}
	return b
}

// appendTriple writes the three headers of the older drafts. The numbers are
// those of the strictest policy; the limits of all follow, and named tells
// whose they are.
func appendTriple(out []Header, items []item, prefix string, named bool, epoch time.Time) []Header {
	var stack [512]byte
	first := &items[0]
	// The number beside remaining is what remaining can reach.
	b := appendInt(stack[:0], first.capacity)
	for i := range items {
		it := &items[i]
		b = append(b, ", "...)
		b = appendInt(b, it.quota)
		if it.window > 0 {
			b = appendParam(b, ";w=", it.window)
		}
		if named {
			b = append(b, ";name="...)
			b = appendString(b, it.name)
		}
	}
	out = append(out, Header{prefix + "Limit", string(b)})
	out = append(out, Header{prefix + "Remaining", string(appendInt(stack[:0], first.remaining))})
	if first.reset < 0 {
		return out
	}
	reset := first.reset
	if !epoch.IsZero() {
		// Rounded up like every wait, so that nobody comes back too early.
		reset += ceilSeconds(time.Duration(epoch.UnixNano()))
	}
	return append(out, Header{prefix + "Reset", string(appendInt(stack[:0], reset))})
}

func appendParam(b []byte, key string, v int64) []byte {
	return appendInt(append(b, key...), v)
}

// appendInt clamps v to what a structured field can hold.
func appendInt(b []byte, v int64) []byte {
	return strconv.AppendInt(b, min(max(v, 0), sfMax), 10)
}

// appendString writes a structured fields string. What is not printable ASCII
// cannot be in one and becomes a question mark.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '?')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
