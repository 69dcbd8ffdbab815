package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// Defaults of Config.
const (
	DefaultPoll     = 10 * time.Second
	DefaultQuiet    = 100 * time.Millisecond
	DefaultMaxBytes = 8 << 20
)

// burstFactor is how many quiet times a burst of events may last before the
// file is read all the same.
const burstFactor = 20

// Store is what a source writes to.
type Store interface {
	Apply(ctx context.Context, c policystore.Change) (policystore.Applied, error)
}

// Outcome is what became of one content of the file.
type Outcome string

// The outcomes, a closed set that can be the values of a label.
const (
	// Applied: the store has a new revision.
	Applied Outcome = "applied"
	// Unchanged: the content says what the store already holds.
	Unchanged Outcome = "unchanged"
	// Refused: the file cannot be read, or what it says is wrong.
	Refused Outcome = "refused"
	// Failed: the store did not take it; the source tries again.
	Failed Outcome = "failed"
)

// Outcomes lists all outcomes.
func Outcomes() []Outcome { return []Outcome{Applied, Unchanged, Refused, Failed} }

// Result reports one content of the file.
type Result struct {
	Outcome Outcome
	// Revision is the store's after Applied and Unchanged, when it is known.
	Revision int64
	// Err is set after Refused and Failed.
	Err error
}

// Config says what to watch and whom to tell.
type Config struct {
	// Path is the file. It may be a symbolic link, or lie below one.
	Path string
	// Store takes the revisions.
	Store Store
	// Parse reads a document; all problems in one error.
	Parse func([]byte) ([]*quota.Policy, error)
	// Poll is the time between looks without any event; zero means DefaultPoll.
	Poll time.Duration
	// Quiet is how long the file must be left alone before it is read; zero
	// means DefaultQuiet. A writer that pauses longer in the middle of a file is
	// read in the middle of it.
	Quiet time.Duration
	// MaxBytes bounds the file; zero means DefaultMaxBytes.
	MaxBytes int64
	// OnResult, when set, is called after each content, from one goroutine at a
	// time. It is the place for metrics, and must not block.
	OnResult func(Result)
	// Logger may be nil.
	Logger *slog.Logger
}

// Source follows one file. Load and Run must not run at the same time; Status
// may be called at any time.
type Source struct {
	cfg    Config
	author string

	// seen is the content (or the error of reading) that was dealt with last;
	// applied is the content that the store took last. Both by their key.
	seen, applied string

	mu     sync.Mutex
	status Status
}

// Status is the state of a source, for readiness and for people.
type Status struct {
	// Err is why the file as it is now is not in force; nil when it is.
	Err error
	// Revision is the newest revision that came from the file, zero before the
	// first. LoadedAt is when.
	Revision int64
	LoadedAt time.Time
}

// New returns a source. It touches neither the file nor the store.
func New(cfg Config) (*Source, error) {
	switch {
	case cfg.Path == "":
		return nil, fmt.Errorf("%w: policy file: no path is given", quota.ErrInvalid)
	case cfg.Store == nil || cfg.Parse == nil:
		return nil, fmt.Errorf("%w: policy file: a store and a parser are needed", quota.ErrInvalid)
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("policy file %s: %w", cfg.Path, err)
	}
	cfg.Path = path
	if cfg.Poll <= 0 {
		cfg.Poll = DefaultPoll
	}
	if cfg.Quiet <= 0 {
		cfg.Quiet = DefaultQuiet
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.OnResult == nil {
		cfg.OnResult = func(Result) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{cfg: cfg, author: "file:" + filepath.Base(path)}, nil
}

// Status returns the state of the source.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Load reads the file once and returns why it is not in force, if so. A
// process calls it before it serves, so that a bad file is noticed at the start.
func (s *Source) Load(ctx context.Context) error {
	s.check(ctx)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("policy file %s: %w", s.cfg.Path, err)
	}
	return s.Status().Err
}

// changed reports whether the file is not as it was when last dealt with.
func (s *Source) changed() bool {
	_, key, _ := s.look()
	return key != s.seen
}

// look reads the file. Equal keys mean equal contents, or the same trouble.
func (s *Source) look() (data []byte, key string, err error) {
	data, err = s.read()
	if err != nil {
		return nil, "error: " + err.Error(), err
	}
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:]), nil
}

// check looks at the file and deals with its content if that is new.
func (s *Source) check(ctx context.Context) {
	data, key, err := s.look()
	if key == s.seen {
		return
	}
	result := s.take(ctx, key, data, err)
	if ctx.Err() != nil {
		return
	}
	s.seen = key
	if result.Outcome == Failed {
		s.seen = "" // so that the next poll tries again
		if told := s.Status().Err; told != nil && told.Error() == result.Err.Error() {
			return
		}
	}
	s.report(result)
}

// take decides what a new content means.
func (s *Source) take(ctx context.Context, key string, data []byte, err error) Result {
	if err != nil {
		return Result{Outcome: Refused, Err: err}
	}
	if key == s.applied {
		return Result{Outcome: Unchanged, Revision: s.Status().Revision}
	}
	policies, err := s.cfg.Parse(data)
	if err != nil {
		return Result{Outcome: Refused, Err: fmt.Errorf("policy file %s: %w", s.cfg.Path, err)}
	}
	applied, err := s.cfg.Store.Apply(ctx, policystore.Change{
		Edit:     policystore.Edit{Author: s.author, Message: "content " + key[:12]},
		Replace:  true,
		Policies: policies,
	})
	if err != nil {
		outcome := Failed
		if errors.Is(err, quota.ErrInvalid) {
			outcome = Refused // trying again would not help
		}
		return Result{Outcome: outcome, Err: fmt.Errorf("policy file %s: applying: %w", s.cfg.Path, err)}
	}
	s.applied = key
	if !applied.Committed {
		return Result{Outcome: Unchanged, Revision: applied.Revision.Number}
	}
	return Result{Outcome: Applied, Revision: applied.Revision.Number}
}

func (s *Source) report(r Result) {
	s.mu.Lock()
	s.status.Err = r.Err
	if r.Err == nil {
		s.status.Revision = r.Revision
		s.status.LoadedAt = time.Now()
	}
	s.mu.Unlock()

	log := s.cfg.Logger.With("path", s.cfg.Path)
	switch r.Outcome {
	case Applied:
		log.Info("policies loaded", "revision", r.Revision)
	case Unchanged:
		log.Info("policy file says what is in force already", "revision", r.Revision)
	case Refused:
		log.Error("policy file refused; the policies in force stay", "error", r.Err)
	case Failed:
		log.Error("policy store did not take the policy file; trying again", "error", r.Err)
	}
	s.cfg.OnResult(r)
}

// read returns the content of a regular, non-empty file of bounded size.
func (s *Source) read() ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	// Looked at before it is opened, since opening a pipe would wait for a writer.
	info, err := os.Stat(s.cfg.Path)
	if err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() {
		return fail(fmt.Errorf("%s is not a regular file", s.cfg.Path))
	}
	f, err := os.Open(s.cfg.Path)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }() // only read from, so nothing can be lost
	data, err := io.ReadAll(io.LimitReader(f, s.cfg.MaxBytes+1))
	switch {
	case err != nil:
		return fail(err)
	case int64(len(data)) > s.cfg.MaxBytes:
		return fail(fmt.Errorf("%s is larger than %d bytes", s.cfg.Path, s.cfg.MaxBytes))
	case len(bytes.TrimSpace(data)) == 0:
		return fail(fmt.Errorf("%s is empty; write \"policies: []\" for none", s.cfg.Path))
	}
	return data, nil
}
