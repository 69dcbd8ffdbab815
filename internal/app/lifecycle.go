package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

// stopTimeout bounds each stop step, so that a part that hangs cannot keep the
// process from ending.
const stopTimeout = 15 * time.Second

// Role is a role that runs.
type Role struct {
	// URL is where it serves.
	URL  string
	life *lifecycle
}

// startRole runs a start function, or the stop steps of what it had started.
func startRole(log *slog.Logger, start func(*lifecycle) (net.Listener, error)) (*Role, error) {
	l := newLifecycle(log)
	ln, err := start(l)
	if err != nil {
		return nil, errors.Join(err, l.stop())
	}
	return &Role{URL: "http://" + ln.Addr().String(), life: l}, nil
}

// Wait blocks until ctx ends or a part fails, then stops everything.
func (r *Role) Wait(ctx context.Context) error { return r.life.wait(ctx) }

// Stop stops everything. It may be called again.
func (r *Role) Stop() error { return r.life.stop() }

// lifecycle holds what has been started and how to stop it.
type lifecycle struct {
	log    *slog.Logger
	steps  []stopStep
	failed chan error
	once   sync.Once
	err    error
}

type stopStep struct {
	name string
	stop func(ctx context.Context) error
}

func newLifecycle(log *slog.Logger) *lifecycle {
	return &lifecycle{log: log, failed: make(chan error, 1)}
}

// onStop registers a step. Steps run newest first.
func (l *lifecycle) onStop(name string, stop func(ctx context.Context) error) {
	l.steps = append(l.steps, stopStep{name, stop})
}

// start runs a part in the background until it is stopped. A part that returns
// before that takes everything down.
func (l *lifecycle) start(name string, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		select {
		case l.failed <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
	l.onStop(name, func(stopping context.Context) error {
		cancel()
		select {
		case <-done:
			return nil
		case <-stopping.Done():
			return stopping.Err()
		}
	})
}

// wait blocks until ctx ends or a part fails, then stops everything. It returns the
// failure, if there was one.
func (l *lifecycle) wait(ctx context.Context) error {
	var failure error
	select {
	case <-ctx.Done():
		l.log.Info("stopping")
	case failure = <-l.failed:
		l.log.Error("a part failed; stopping", "error", failure)
	}
	return errors.Join(failure, l.stop())
}

// stop runs the steps, newest first. It may be called again.
func (l *lifecycle) stop() error {
	l.once.Do(func() {
		for _, step := range slices.Backward(l.steps) {
			ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
			if err := step.stop(ctx); err != nil {
				l.err = errors.Join(l.err, fmt.Errorf("stop %s: %w", step.name, err))
			}
			cancel()
		}
	})
	return l.err
}
