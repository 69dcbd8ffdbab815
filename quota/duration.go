package quota

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Calendar-free units of policy documents. A year is 365 days in every year:
// windows roll, they do not follow a calendar.
const (
	Day  = 24 * time.Hour
	Week = 7 * Day
	Year = 365 * Day
)

// The bounds of a period or a window. The longest keeps microseconds exact in a double.
const (
	MinPeriod = time.Millisecond
	MaxPeriod = 100 * Year
)

type durationUnit struct {
	name string
	size time.Duration
}

// durationUnits is sorted by size, largest first.
var durationUnits = []durationUnit{
	{"y", Year}, {"w", Week}, {"d", Day}, {"h", time.Hour}, {"m", time.Minute},
	{"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond},
}

// unitAliases leads from what people write to the unit that they mean.
var unitAliases = map[string]string{
	"sec": "s", "second": "s", "seconds": "s", "min": "m", "minute": "m", "minutes": "m",
	"hr": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "week": "w", "weeks": "w",
	"yr": "y", "year": "y", "years": "y", "µs": "us", "μs": "us",
}

var (
	errDurationEmpty = errors.New("is empty")
	errDurationLarge = errors.New("is too long to be represented")
	errDurationFine  = errors.New("is not a whole number of microseconds")
)

// ParseDuration reads a duration such as 60s, 1h30m, 1.5h, 30d, 1w or 1y. The
// units are us, ms, s, m, h, d (24 hours), w (7 days) and y (365 days); the
// result is a whole number of microseconds. The error says what is wrong with
// text and does not repeat it.
func ParseDuration(text string) (time.Duration, error) {
	if text == "" {
		return 0, errDurationEmpty
	}
	if text == "0" {
		return 0, nil
	}
	var total time.Duration
	for rest := text; rest != ""; {
		end := strings.IndexFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		switch {
		case end < 0:
			return 0, errors.New("has a number without a unit")
		case end == 0:
			return 0, errors.New("is not a number followed by a unit")
		}
		number := rest[:end]
		rest = rest[end:]
		end = strings.IndexFunc(rest, func(r rune) bool { return r >= '0' && r <= '9' || r == '.' })
		if end < 0 {
			end = len(rest)
		}
		part, err := durationPart(number, rest[:end])
		if err != nil {
			return 0, err
		}
		rest = rest[end:]
		if total > math.MaxInt64-part {
			return 0, errDurationLarge
		}
		total += part
	}
	return total, nil
}

func durationPart(number, unit string) (time.Duration, error) {
	var size time.Duration
	for _, u := range durationUnits {
		if u.name == unit {
			size = u.size
		}
	}
	if size == 0 {
		return 0, unknownUnit(unit)
	}
	whole, fraction, dotted := strings.Cut(number, ".")
	if whole == "" || dotted && fraction == "" || strings.Contains(fraction, ".") {
		return 0, errors.New("has a malformed number")
	}
	w, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || w > int64(math.MaxInt64/size) {
		return 0, errDurationLarge
	}
	result := time.Duration(w) * size
	fraction = strings.TrimRight(fraction, "0")
	// Each digit of the fraction must leave whole microseconds.
	for _, digit := range []byte(fraction) {
		if size%(10*time.Microsecond) != 0 {
			return 0, errDurationFine
		}
		size /= 10
		part := time.Duration(digit-'0') * size
		if result > math.MaxInt64-part {
			return 0, errDurationLarge
		}
		result += part
	}
	return result, nil
}

func unknownUnit(unit string) error {
	unknown := "has the unknown unit " + quoteShort(unit)
	lower := strings.ToLower(strings.TrimSpace(unit))
	if lower == "mo" || lower == "month" || lower == "months" || unit == "M" {
		return errors.New(unknown + ": months differ in length (did you mean 30d?)")
	}
	known := unitAliases[lower]
	for _, u := range durationUnits {
		if u.name == lower {
			known = lower
		}
	}
	if known != "" {
		return fmt.Errorf("%s (did you mean %s?)", unknown, known)
	}
	return errors.New(unknown + ": the units are us, ms, s, m, h, d, w and y")
}

// FormatDuration writes d so that ParseDuration reads it back: a count of the
// largest unit that divides it. Anything finer than a microsecond is cut off.
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	for _, u := range durationUnits {
		if d%u.size == 0 {
			return strconv.FormatInt(int64(d/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(d.Microseconds(), 10) + "us"
}
