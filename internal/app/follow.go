package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

const (
	// followRetry is the first wait before a broken stream is begun again; it
	// doubles up to followRetryMax.
	followRetry    = 100 * time.Millisecond
	followRetryMax = 5 * time.Second
)

// follower keeps a node's policies those that are in force in its region, by a stream
// from the coordinator. Without the coordinator the last good set stays in force,
// over a restart of the node too: it is kept in a file.
type follower struct {
	watch  func(ctx context.Context, known *rpc.WatchPosition, use func(rpc.PolicyUpdate) error) error
	use    func(revision int64, policies []*quota.Policy, overrides []quota.Override) error
	region quota.Region
	path   string // of the snapshot file; empty keeps none
	log    *slog.Logger
	loaded chan struct{} // closed when the first set is in force

	// What the node has. Only the goroutine of run touches it.
	position  *rpc.WatchPosition
	set       policystore.Snapshot
	overrides map[string]quota.Override

	// unsaved is the newest state that is not in the file yet.
	unsaved   atomic.Pointer[policySnapshot]
	saveSoon  chan struct{}
	confirmed atomic.Int64 // when the set was last known to be the newest, Unix nanoseconds

	revision prometheus.Gauge
	refused  prometheus.Counter
	unsavedC prometheus.Counter
}

func newFollower(region quota.Region, path string, reg prometheus.Registerer, log *slog.Logger) *follower {
	f := &follower{
		region: region, path: path, log: log, loaded: make(chan struct{}), saveSoon: make(chan struct{}, 1),
		overrides: map[string]quota.Override{},
		revision:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_policy_revision", Help: "Policy revision in force."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_policy_refused_total", Help: "Revisions that could not be brought into force.",
		}),
		unsavedC: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_policy_snapshot_errors_total", Help: "Times that the policies in force could not be written to the snapshot file.",
		}),
	}
	reg.MustRegister(f.revision, f.refused, f.unsavedC, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_policy_age_seconds", Help: "Time since the policies in force were last known to be the newest.",
	}, f.age))
	return f
}

func (f *follower) age() float64 {
	at := f.confirmed.Load()
	if at == 0 {
		return 0
	}
	return time.Since(time.Unix(0, at)).Seconds()
}

// run follows the stream until ctx ends, and begins it anew whenever it breaks.
func (f *follower) run(ctx context.Context) error {
	wait := followRetry
	for {
		begun := time.Now()
		err := f.watch(ctx, f.position, f.take)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // being stopped is no failure
		}
		if time.Since(begun) > followRetryMax {
			wait = followRetry // it had been well
		}
		f.log.Warn("policies stay as they are: the coordinator's stream broke", "error", err, "again_in", wait)
		pause := time.NewTimer(wait/2 + rand.N(wait/2+1)) //nolint:gosec // jitter guards nothing
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		wait = min(2*wait, followRetryMax)
	}
}

// take brings an update into force. An update that cannot be is left aside whole, and
// asked for again with the next stream.
func (f *follower) take(u rpc.PolicyUpdate) error {
	f.confirmed.Store(time.Now().UnixNano())
	if u.Empty() && f.position != nil {
		f.position = &u.Position
		return nil
	}
	set, overrides := f.set, f.overrides
	if u.Set != nil {
		set = *u.Set
	}
	if u.Reset {
		overrides = make(map[string]quota.Override, len(u.Overrides))
	} else if len(u.Changes) > 0 {
		overrides = make(map[string]quota.Override, len(f.overrides)+len(u.Changes))
		maps.Copy(overrides, f.overrides)
	}
	for _, o := range u.Overrides {
		overrides[policystore.IDOf(o).MapKey()] = o
	}
	for _, c := range u.Changes {
		if c.Override == nil {
			delete(overrides, c.ID.MapKey())
		} else {
			overrides[c.ID.MapKey()] = *c.Override
		}
	}
	if err := f.enforce(set, overrides); err != nil {
		f.refused.Inc()
		return err
	}
	f.position = &u.Position
	f.save()
	return nil
}

func (f *follower) enforce(set policystore.Snapshot, overrides map[string]quota.Override) error {
	list := make([]quota.Override, 0, len(overrides))
	for _, o := range overrides {
		list = append(list, o)
	}
	if err := f.use(set.Number, set.Policies, list); err != nil {
		return fmt.Errorf("revision %d: %w", set.Number, err)
	}
	if set.Number != f.set.Number || f.set.Policies == nil {
		f.log.Info("policy revision in force", "revision", set.Number, "author", set.Author, "policies", len(set.Policies))
	}
	f.set, f.overrides = set, overrides
	f.revision.Set(float64(set.Number))
	select {
	case <-f.loaded:
	default:
		close(f.loaded)
	}
	return nil
}

// policySnapshot is the file that carries the policies in force over a restart.
type policySnapshot struct {
	Format    int               `json:"format"`
	Region    quota.Region      `json:"region"`
	Position  rpc.WatchPosition `json:"position"`
	Revision  int64             `json:"revision"`
	Policies  []json.RawMessage `json:"policies"`
	Overrides []quota.Override  `json:"overrides"`

	set       policystore.Snapshot
	overrides map[string]quota.Override
}

// snapshotFormat is raised when an older binary could not read the file any more.
const snapshotFormat = 1

// save notes what is to be written; the writing is not for the stream to wait for.
func (f *follower) save() {
	if f.path == "" {
		return
	}
	f.unsaved.Store(&policySnapshot{Region: f.region, Position: *f.position, set: f.set, overrides: f.overrides})
	select {
	case f.saveSoon <- struct{}{}:
	default:
	}
}

// keep writes the newest set to the file whenever there is one, until ctx ends.
func (f *follower) keep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return f.write() // what came last
		case <-f.saveSoon:
			if err := f.write(); err != nil {
				f.unsavedC.Inc()
				f.log.Warn("the policies in force would not survive a restart", "error", err)
			}
		}
	}
}

// write replaces the file whole, so that no reader finds half of it.
func (f *follower) write() error {
	s := f.unsaved.Swap(nil)
	if s == nil {
		return nil
	}
	s.Format, s.Revision = snapshotFormat, s.set.Number
	for _, p := range s.set.Policies {
		text, err := policystore.EncodePolicy(p)
		if err != nil {
			return fmt.Errorf("policy snapshot: %w", err)
		}
		s.Policies = append(s.Policies, text)
	}
	for _, o := range s.overrides {
		s.Overrides = append(s.Overrides, o)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("policy snapshot: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.path), ".policies-*")
	if err != nil {
		return fmt.Errorf("policy snapshot: %w", err)
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.path)
	}
	if err != nil {
		return fmt.Errorf("policy snapshot: %w", errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// restore brings the set in the file into force. A file that is not there or cannot
// be used is no error: the coordinator has the set.
func (f *follower) restore() {
	if f.path == "" {
		return
	}
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s policySnapshot
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil && s.Format != snapshotFormat {
		err = fmt.Errorf("format %d, this binary knows %d", s.Format, snapshotFormat)
	}
	if err == nil && s.Region != f.region {
		err = fmt.Errorf("it is of region %q, this is %q", s.Region, f.region)
	}
	set := policystore.Snapshot{Revision: policystore.Revision{Number: s.Revision}}
	for _, text := range s.Policies {
		p, decodeErr := policystore.DecodePolicy(text)
		err = errors.Join(err, decodeErr)
		set.Policies = append(set.Policies, p)
	}
	overrides := make(map[string]quota.Override, len(s.Overrides))
	for _, o := range s.Overrides {
		overrides[policystore.IDOf(o).MapKey()] = o
	}
	if err == nil {
		err = f.enforce(set, overrides)
	}
	if err != nil {
		f.log.Warn("the policy snapshot is of no use", "path", f.path, "error", err)
		return
	}
	f.position = &s.Position
}
