package app

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/quota"
)

// coordinators are all that a region knows of. One of them leads; every one serves
// policies.
type coordinators struct {
	regions  []*rpc.RegionClient
	policies []*rpc.PolicyClient
	// leader is the one that answered last, reader the one that policies come from.
	leader, reader atomic.Int64
}

func (l *lifecycle) dial(cfg RegionalConfig) (*coordinators, error) {
	token, err := secretFile("token-file", cfg.TokenFile)
	if err != nil {
		return nil, err
	}
	c := &coordinators{}
	l.onStop("coordinator clients", func(context.Context) error { return c.close() })
	for _, url := range cfg.Coordinator {
		client := rpc.ClientConfig{URL: url, Token: rpc.Secret(token), Timeout: reportTimeout, Logger: l.log}
		region, err := rpc.NewRegionClient(client)
		if err != nil {
			return nil, err
		}
		c.regions = append(c.regions, region)
		policy, err := rpc.NewPolicyClient(client)
		if err != nil {
			return nil, err
		}
		c.policies = append(c.policies, policy)
	}
	return c, nil
}

func (c *coordinators) close() error {
	var err error
	for _, r := range c.regions {
		err = errors.Join(err, r.Close())
	}
	for _, p := range c.policies {
		err = errors.Join(err, p.Close())
	}
	return err
}

// Report asks the coordinator that led last, and then the others. It implements
// regional.Coordinator.
func (c *coordinators) Report(ctx context.Context, rep quota.Report) (quota.Instructions, error) {
	first := c.leader.Load()
	var failed error
	for i := range int64(len(c.regions)) {
		at := (first + i) % int64(len(c.regions))
		answer, err := c.regions[at].Report(ctx, rep)
		if err == nil {
			c.leader.Store(at)
			return answer, nil
		}
		if ctx.Err() != nil {
			return answer, err
		}
		// Whatever is wrong with this one, another may lead.
		failed = errors.Join(failed, err)
	}
	return quota.Instructions{}, fmt.Errorf("no coordinator took the report: %w", failed)
}

// watch follows one coordinator's policies until its stream breaks; the next call
// follows another.
func (c *coordinators) watch(ctx context.Context, region quota.Region, known *rpc.WatchPosition, use func(rpc.PolicyUpdate) error) error {
	at := c.reader.Load()
	err := c.policies[at].Watch(ctx, region, known, use)
	c.reader.Store((at + 1) % int64(len(c.policies)))
	return err
}
