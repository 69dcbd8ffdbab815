package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// What the network does to a message.
const (
	minDelay   = 25 * time.Millisecond
	maxDelay   = 150 * time.Millisecond
	resendWait = 300 * time.Millisecond
)

// network carries messages: it is the queue of what is to happen, and when.
type network struct {
	rng *rand.Rand
	// loss is the part of transmissions that get lost.
	loss float64
	// instant delivers everything at once.
	instant bool
	queue   events
	sent    int64
}

// event is something that happens at an instant.
type event struct {
	at, number int64
	do         func(now int64) error
}

// send has do called when a message sent now arrives.
func (n *network) send(now int64, do func(now int64) error) error {
	if n.instant {
		return do(now)
	}
	for wait := micros(resendWait); n.rng.Float64() < n.loss; wait *= 2 {
		now += wait
	}
	n.at(now+micros(minDelay)+n.rng.Int64N(micros(maxDelay-minDelay)+1), do)
	return nil
}

// at has do called at an instant. What is to happen at one instant happens in the
// order in which it was asked for.
func (n *network) at(when int64, do func(now int64) error) {
	n.sent++
	heap.Push(&n.queue, event{when, n.sent, do})
}

// advance does everything that is due.
func (n *network) advance(now int64) error {
	for len(n.queue) > 0 && n.queue[0].at <= now {
		e, _ := heap.Pop(&n.queue).(event)
		if err := e.do(e.at); err != nil {
			return err
		}
	}
	return nil
}

// events is a heap.Interface.
type events []event //nolint:recvcheck // as container/heap has it

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || (e[i].at == e[j].at && e[i].number < e[j].number)
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) } //nolint:errcheck,forcetypeassert // heap.Interface; only events are pushed
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}
