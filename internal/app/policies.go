package app

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/policystore/file"
	"github.com/weirhq/weir/quota"
)

// ExamplePolicies is the document that dev mode runs when it is given none.
//
//go:embed example.yaml
var ExamplePolicies []byte

// pollPolicies is how often the policies in force are looked at without being told of
// a change.
const pollPolicies = 30 * time.Second

// policySource hands every revision that comes into force to use.
type policySource struct {
	store policystore.Store
	// inForce is what the store says is in force for this use.
	inForce func(ctx context.Context) (policystore.Snapshot, error)
	use     func(revision int64, policies []*quota.Policy, overrides []quota.Override) error
	log     *slog.Logger

	revision prometheus.Gauge
	refused  prometheus.Counter
	seen     policystore.Position
}

func newPolicySource(store policystore.Store, inForce func(context.Context) (policystore.Snapshot, error), reg prometheus.Registerer, log *slog.Logger) *policySource {
	s := &policySource{
		store: store, inForce: inForce, log: log,
		revision: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_policy_revision", Help: "Policy revision in force.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_policy_refused_total", Help: "Revisions that could not be brought into force.",
		}),
		seen: policystore.Position{Revision: -1},
	}
	reg.MustRegister(s.revision, s.refused)
	return s
}

// load brings the newest revision into force, if it is not yet.
func (s *policySource) load(ctx context.Context) error {
	at, err := s.store.Position(ctx)
	if err != nil || at == s.seen {
		return err
	}
	snapshot, err := s.inForce(ctx)
	if err != nil {
		return err
	}
	overrides, err := listOverrides(ctx, s.store)
	if err != nil {
		return err
	}
	if err := s.use(snapshot.Number, snapshot.Policies, overrides); err != nil {
		s.refused.Inc()
		return fmt.Errorf("revision %d: %w", snapshot.Number, err)
	}
	s.seen = at
	s.revision.Set(float64(snapshot.Number))
	s.log.Info("policy revision in force", "revision", snapshot.Number, "policies", len(snapshot.Policies), "overrides", len(overrides))
	return nil
}

// run follows the store until ctx ends. What cannot be brought into force leaves the
// revision before it in force.
func (s *policySource) run(ctx context.Context) error {
	wake := s.store.Watch(ctx)
	poll := time.NewTicker(pollPolicies)
	defer poll.Stop()
	for {
		if err := s.load(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("policies stay as they are", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-poll.C:
		}
	}
}

func listOverrides(ctx context.Context, store policystore.Store) ([]quota.Override, error) {
	var all []quota.Override
	query := policystore.OverrideQuery{Limit: policystore.MaxPage}
	for {
		page, err := store.ListOverrides(ctx, query)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < policystore.MaxPage {
			return all, nil
		}
		last := policystore.IDOf(page[len(page)-1])
		query.After = &last
	}
}

// indexInto returns what makes an engine's index of a revision.
func indexInto(set func(*quota.Index)) func(int64, []*quota.Policy, []quota.Override) error {
	return func(revision int64, policies []*quota.Policy, list []quota.Override) error {
		overrides, err := quota.NewOverrides(list, time.Now)
		if err != nil {
			return err
		}
		index, err := quota.Compile(revision, policies, overrides)
		if err != nil {
			return err
		}
		set(index)
		return nil
	}
}

// watchFile keeps the store equal to a policy file. The first content must be good:
// a node that starts without policies would limit nothing.
func (l *lifecycle) watchFile(ctx context.Context, path string, store policystore.Store, reg prometheus.Registerer) error {
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_policy_file_reads_total", Help: "Contents of the policy file, by what became of them.",
	}, []string{"outcome"})
	for _, o := range file.Outcomes() {
		results.WithLabelValues(string(o))
	}
	reg.MustRegister(results)
	source, err := file.New(file.Config{
		Path: path, Store: store, Parse: document.Policies, Logger: l.log,
		OnResult: func(r file.Result) { results.WithLabelValues(string(r.Outcome)).Inc() },
	})
	if err != nil {
		return err
	}
	if err := source.Load(ctx); err != nil {
		return err
	}
	l.start("policy file", source.Run)
	return nil
}

// applyExample puts the built-in document into a store.
func applyExample(ctx context.Context, store policystore.Store) error {
	policies, err := document.Policies(ExamplePolicies)
	if err != nil {
		return errors.Join(errors.New("built-in policies"), err)
	}
	_, err = store.Apply(ctx, policystore.Change{
		Edit:    policystore.Edit{Author: "weir dev", Message: "built-in example"},
		Replace: true, Policies: policies,
	})
	return err
}
