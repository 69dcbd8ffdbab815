package policystore

import (
	"context"
	"sync"
)

// Wakeups is the Watcher of a store: Wake reaches every channel that Watch has
// given out. The zero value is ready.
type Wakeups struct {
	mu  sync.Mutex
	out map[chan struct{}]struct{}
}

// Wake tells every watcher that something changed. It never blocks: a watcher
// that has not yet taken the last wake-up needs no second one.
func (w *Wakeups) Wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.out {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// Watch returns a channel of wake-ups that is closed when ctx ends.
func (w *Wakeups) Watch(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	if w.out == nil {
		w.out = make(map[chan struct{}]struct{})
	}
	w.out[ch] = struct{}{}
	w.mu.Unlock()
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.out, ch)
		close(ch)
	})
	return ch
}
