package file

import "time"

// debounce turns a burst of events into one moment to act: when no event has
// come for quiet, or limit after the first, whichever is earlier. It has no clock.
type debounce struct {
	quiet, limit time.Duration
	// first and last are the events of the burst; zero when there is none.
	first, last time.Time
}

func (d *debounce) event(now time.Time) {
	if d.first.IsZero() {
		d.first = now
	}
	d.last = now
}

// due returns when to act, or zero when nothing is pending.
func (d *debounce) due() time.Time {
	if d.first.IsZero() {
		return time.Time{}
	}
	quiet, limit := d.last.Add(d.quiet), d.first.Add(d.limit)
	if limit.Before(quiet) {
		return limit
	}
	return quiet
}

func (d *debounce) reset() { d.first, d.last = time.Time{}, time.Time{} }
