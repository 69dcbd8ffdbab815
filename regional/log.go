package regional

import (
	"log/slog"
	"sync"
	"time"
)

// logGap is how often one message is logged at most; those between are counted.
const logGap = 10 * time.Second

// boundedLog keeps a failing store from flooding the log: each message appears
// at most once per logGap, with the number left out since.
type boundedLog struct {
	*slog.Logger
	mu   sync.Mutex
	last map[string]time.Time // messages are constants, so the map is small
	held map[string]int
}

func newBoundedLog(l *slog.Logger) *boundedLog {
	return &boundedLog{Logger: l, last: map[string]time.Time{}, held: map[string]int{}}
}

func (b *boundedLog) warn(msg string, args ...any) {
	now := time.Now()
	b.mu.Lock()
	if last, ok := b.last[msg]; ok && now.Sub(last) < logGap {
		b.held[msg]++
		b.mu.Unlock()
		return
	}
	held := b.held[msg]
	b.last[msg], b.held[msg] = now, 0
	b.mu.Unlock()
	if held > 0 {
		args = append(args, "suppressed", held)
	}
	b.Warn(msg, args...)
}
