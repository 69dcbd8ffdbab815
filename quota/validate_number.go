package quota

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// MaxLogEntries is the largest limit of a sliding log: it keeps every entry of
// the window, and one decision reads them all.
const MaxLogEntries = 65536

// maxConcurrency is the largest number of slots of a concurrency limit.
const maxConcurrency = 65536

// MaxFillTime bounds the time in which an empty token bucket becomes full, which
// is how long the store must remember it.
const MaxFillTime = MaxPeriod

// complaint says what is wrong with a value and what to do about it.
type complaint struct {
	reason, remedy string
}

// parseTokens reads a plain decimal number of tokens. With fraction it may have
// up to three decimals that count.
func parseTokens(text string, fraction bool) (Tokens, *complaint) {
	if c := notPlain(text); c != nil {
		return 0, c
	}
	whole, decimals, _ := strings.Cut(text, ".")
	decimals = strings.TrimRight(decimals, "0")
	if decimals != "" && !fraction {
		return 0, &complaint{"must be a whole number, is " + text, "write digits only, such as 100"}
	}
	if len(decimals) > 3 {
		return 0, &complaint{
			"is not exact in thousandths of a token: " + text,
			"state whole tokens over a longer time, such as refill: 100/3m",
		}
	}
	tooLarge := &complaint{"is above the largest number, 1099511627776 (2^40): " + quoteNumber(text), "state a smaller number, or unlimited: true for no limit"}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > int64(MaxTokens/Token) {
		return 0, tooLarge
	}
	t := Tokens(n) * Token
	for i, unit := 0, Token/10; i < len(decimals); i, unit = i+1, unit/10 {
		t += Tokens(decimals[i]-'0') * unit
	}
	if t > MaxTokens {
		return 0, tooLarge
	}
	return t, nil
}

// notPlain explains why text is not a plain decimal number of zero or more.
func notPlain(text string) *complaint {
	lower := strings.ToLower(text)
	if strings.Contains(lower, "inf") || strings.Contains(lower, "nan") {
		return &complaint{"must be a finite number, is " + quoteNumber(text), "state a number, or unlimited: true for no limit"}
	}
	if strings.HasPrefix(text, "-") {
		return &complaint{"must not be negative, is " + quoteNumber(text), "state 0 to deny always, or unlimited: true for no limit"}
	}
	whole, decimals, dotted := strings.Cut(text, ".")
	if !allDigits(whole) || dotted && !allDigits(decimals) {
		return &complaint{"is not a plain decimal number: " + quoteNumber(text), "write digits only, such as 1000"}
	}
	if len(whole) > 1 && whole[0] == '0' {
		return &complaint{"has a leading zero, which some readers take for octal: " + quoteNumber(text), "write it without the leading zero"}
	}
	return nil
}

func allDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// quoteNumber shortens a number for a message.
func quoteNumber(text string) string {
	if len(text) > 40 {
		return text[:40] + "..."
	}
	return text
}

// checkPeriod explains why d is no period or window.
func checkPeriod(d time.Duration) *complaint {
	switch {
	case d == 0:
		return &complaint{"must not be zero", "state a time such as 60s"}
	case d < MinPeriod:
		return &complaint{"is shorter than 1ms", "state at least 1ms"}
	case d > MaxPeriod:
		return &complaint{"is longer than 100y", "state at most 100y"}
	case d%time.Microsecond != 0:
		return &complaint{"is not a whole number of microseconds", "round it to microseconds"}
	}
	return nil
}

// checkBucket explains why the numbers of a token bucket do not go together.
func checkBucket(l Limit) *complaint {
	if l.Capacity == 0 {
		return nil
	}
	if l.Refill == 0 {
		return &complaint{
			"must not be zero: the bucket would never refill, and the store would have to keep it for ever",
			"state a refill above zero, or capacity: 0 to deny always",
		}
	}
	if FillTime(l) > MaxFillTime {
		return &complaint{
			"is so slow that an empty bucket needs more than 100 years to fill",
			"raise the refill or lower the capacity",
		}
	}
	return nil
}

// FillTime returns how long a token bucket takes from empty to full, rounded up
// to microseconds; math.MaxInt64 nanoseconds when that cannot be represented.
func FillTime(l Limit) time.Duration {
	if l.Refill <= 0 || l.Capacity < 0 || l.Period < 0 {
		return math.MaxInt64
	}
	hi, lo := bits.Mul64(uint64(l.Capacity), uint64(l.Period.Microseconds()))
	if hi >= uint64(l.Refill) {
		return math.MaxInt64
	}
	us, rest := bits.Div64(hi, lo, uint64(l.Refill))
	if rest != 0 {
		us++
	}
	if us > math.MaxInt64/uint64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
