package faulttest

import (
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

// message is under way until at: a report, or the answer to one.
type message struct {
	at     int64
	report *quota.Report
	answer *quota.Instructions
	region *region
}

// send gives a message to the network, which may lose, repeat and delay it.
func (w *world) send(m message) {
	copies := 1
	switch x := w.rng.Float64(); {
	case w.setting != faulty:
	case x < w.loss || w.cut(m):
		return
	case x > 1-w.duplicates:
		copies = 2
	}
	for range copies {
		m.at = w.now + w.between(10*time.Millisecond, 650*time.Millisecond)
		if w.chance(3) || w.setting == edge {
			m.at = w.now + tick
		}
		if w.setting == faulty && w.chance(30) {
			m.at += w.between(0, 12*time.Second)
		}
		w.flight = append(w.flight, m)
	}
}

// cut reports whether the way of a message is cut.
func (w *world) cut(m message) bool {
	if m.answer != nil {
		return w.now < max(w.cutAll, m.region.cutFrom)
	}
	return w.now < max(w.cutAll, m.region.cutTo)
}

// deliver hands out what is due. Messages that arrive together are in no order.
func (w *world) deliver() {
	var due []message
	w.flight = slices.DeleteFunc(w.flight, func(m message) bool {
		if m.at <= w.now {
			due = append(due, m)
		}
		return m.at <= w.now
	})
	w.rng.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, m := range due {
		switch l := w.leader; {
		case w.cut(m):
		case m.answer != nil:
			w.answered(m)
		case len(w.zombies) > 0 && (l == nil || w.chance(2)):
			w.handle(w.zombies[w.rng.IntN(len(w.zombies))], *m.report)
		case l != nil:
			w.handle(l, *m.report)
		}
	}
}
