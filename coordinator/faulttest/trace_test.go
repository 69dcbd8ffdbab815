package faulttest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// trace is what happened to one quota, for those who have to find out why.
type trace struct {
	id    quota.ID
	lines []string
	last  map[quota.Epoch]string
}

// note keeps what happened to a quota; without an id, to all.
func (w *world) note(id quota.ID, args ...any) {
	if w.trace == nil || (id != quota.ID{} && id != w.trace.id) {
		return
	}
	line := fmt.Sprintf("%9.2fs  %s", float64(w.now)/1e6, strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
	w.trace.lines = append(w.trace.lines, line)
}

// noteLedgers keeps what those who lead think of the quota, when they change their mind.
func (w *world) noteLedgers() {
	if w.trace == nil {
		return
	}
	for _, l := range append(slices.Clone(w.zombies), w.leader) {
		if l == nil {
			continue
		}
		var b strings.Builder
		for _, q := range l.brain.Status(l.clock.time(w.now)).Quotas {
			if q.ID != w.trace.id {
				continue
			}
			fmt.Fprintf(&b, "%v removed %v effective %v recovering %v", q.Limit.Share(), q.Removed, q.Effective, l.brain.Recovering())
			for _, r := range q.Regions {
				fmt.Fprintf(&b, " | %s wants %v sent %v acked %v bound %v version %d", r.Region, r.Share, r.Sent, r.Acked, r.Bound, r.Version)
			}
		}
		if line := b.String(); line != w.trace.last[l.epoch] {
			w.trace.last[l.epoch] = line
			w.note(quota.ID{}, "ledger of", l.epoch, line)
		}
	}
}

// explain plays a schedule again and returns the last of what happened to a quota.
func explain(seed uint64, o options, id quota.ID) string {
	w := newWorld(seed, o)
	w.trace = &trace{id: id, last: map[quota.Epoch]string{}}
	w.play(120 * time.Second)
	lines := w.trace.lines
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
