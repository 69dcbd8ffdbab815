package regional

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/weirhq/weir/quota"
)

// Refund gives back what an earlier check took and returns the policies that
// were given something, in order of precedence. It asks the store only: what a
// failure mode admitted was never taken there. An error with a non-empty list
// means that some stripes did not answer; repeating it may refund the others twice.
func (e *Engine) Refund(ctx context.Context, r quota.RefundRequest) ([]string, error) {
	if r.Amount <= 0 || r.Amount > quota.MaxTokens {
		return nil, fmt.Errorf("%w: amount: %v is not between one milli-token and %v", quota.ErrInvalid, r.Amount, quota.MaxTokens)
	}
	p, err := e.plan(quota.Request{Attributes: r.Attributes, Policies: r.Policies, Cost: r.Amount}, true)
	if err != nil {
		return nil, err
	}
	defer e.release(p)
	var wg sync.WaitGroup
	for i := range p.groups {
		g := &p.groups[i]
		wg.Go(func() { g.failure = e.refundGroup(ctx, g, r.Amount) })
	}
	wg.Wait()
	var errs []error
	done := make([]bool, len(p.steps))
	for i := range p.groups {
		g := &p.groups[i]
		if g.failure != nil {
			errs = append(errs, g.failure)
			continue
		}
		for _, at := range g.steps {
			done[at] = true
		}
	}
	var refunded []string
	for i := range p.steps {
		if done[i] {
			refunded = append(refunded, p.steps[i].decision.PolicyID)
		}
	}
	return refunded, errors.Join(errs...)
}

func (e *Engine) refundGroup(ctx context.Context, g *group, amount quota.Tokens) error {
	refunds := make([]quota.Refund, len(g.entries))
	for i := range g.entries {
		refunds[i] = quota.Refund{Entry: g.entries[i], Amount: amount}
	}
	if !e.gate.enter(g.stripe) {
		return fmt.Errorf("refund on stripe %d: %w", g.stripe, quota.ErrOverloaded)
	}
	defer e.gate.leave(g.stripe)
	ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	if err := e.store.Refund(ctx, g.stripe, refunds); err != nil {
		return fmt.Errorf("refund on stripe %d: %w", g.stripe, err)
	}
	return nil
}
