package file

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Run follows the file until ctx ends, and returns nil then. Neither a bad file
// nor a store that is away ends it. Without Load it also loads the file, after Quiet.
func (s *Source) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		s.cfg.Logger.Warn("no file events, the policy file is only polled", "path", s.cfg.Path, "interval", s.cfg.Poll, "error", err)
		s.loop(ctx, nil, nil, noWatch{})
		return nil
	}
	defer func() { _ = w.Close() }() // a watcher holds nothing that could be lost
	s.loop(ctx, w.Events, w.Errors, &watch{
		watcher: w, path: s.cfg.Path, dirs: make(map[string]bool),
		warn: func(dir string, err error) {
			s.cfg.Logger.Warn("a directory cannot be watched, the policy file is polled", "directory", dir, "interval", s.cfg.Poll, "error", err)
		},
	})
	return nil
}

// follower decides which events matter.
type follower interface {
	// follow begins or renews watching what the path now leads through.
	follow()
	// concerns reports whether an event may have changed the file.
	concerns(e fsnotify.Event) bool
}

// loop waits for events and for the poll. It returns when ctx ends.
func (s *Source) loop(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error, f follower) {
	poll := time.NewTicker(s.cfg.Poll)
	defer poll.Stop()
	burst := debounce{quiet: s.cfg.Quiet, limit: burstFactor * s.cfg.Quiet}
	due := time.NewTimer(s.cfg.Poll)
	due.Stop() // nothing is due before the first event
	defer due.Stop()
	event := func() {
		burst.event(time.Now())
		due.Reset(time.Until(burst.due()))
	}
	f.follow()
	event() // for what changed before the watch began
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-events:
			if !open {
				events = nil
			} else if f.concerns(e) {
				event()
			}
		case err, open := <-errs:
			if !open {
				errs = nil
				continue
			}
			// Events may have been lost, so the file may have changed.
			s.cfg.Logger.Warn("watching the policy file", "path", s.cfg.Path, "error", err)
			event()
		case <-due.C:
			burst.reset()
			f.follow()
			s.check(ctx)
		case <-poll.C:
			f.follow()
			// It may be being written just now, so it gets its quiet moment too.
			if burst.due().IsZero() && s.changed() {
				event()
			}
		}
	}
}

// watch follows a path through the directories it leads through.
type watch struct {
	watcher *fsnotify.Watcher
	path    string
	// target is where the path led when last looked at; empty if nowhere.
	target string
	// dirs are watched; false marks one that could not be and was warned of.
	dirs map[string]bool
	warn func(dir string, err error)
}

// follow watches the directory of the path, where renames and symlink swaps
// show, and that of the file it leads to, where writes show. A directory that
// was replaced by another of the same name is watched anew.
func (w *watch) follow() {
	w.target = resolve(w.path)
	want := map[string]bool{filepath.Dir(w.path): true}
	if w.target != "" {
		want[filepath.Dir(w.target)] = true
	}
	for dir, watched := range w.dirs {
		if !want[dir] {
			if watched {
				_ = w.watcher.Remove(dir) // it may be gone already, and its watch with it
			}
			delete(w.dirs, dir)
		}
	}
	for dir := range want {
		err := w.watcher.Add(dir)
		if watched, known := w.dirs[dir]; err != nil && (watched || !known) {
			w.warn(dir, err)
		}
		w.dirs[dir] = err == nil
	}
}

// concerns is true for events of the file itself, by either name, and for
// anything that made the path lead elsewhere.
func (w *watch) concerns(e fsnotify.Event) bool {
	return e.Name == w.path || e.Name == w.target || resolve(w.path) != w.target
}

// resolve returns where a path leads, or "" if nowhere.
func resolve(path string) string {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return target
}

// noWatch is the follower when there are no events.
type noWatch struct{}

func (noWatch) follow() {}

func (noWatch) concerns(fsnotify.Event) bool { return false }
