package regional_test

import (
	"context"
	"slices"
	"time"

	"github.com/weirhq/weir/quota"
)

func (s *memStore) HeldKeys(_ context.Context, ids []quota.ID) ([]quota.QuotaReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return nil, s.failing
	}
	s.readKeys += len(ids)
	var out []quota.QuotaReport
	for _, id := range ids {
		bucket, _, err := quota.PlaceOf(id, "rl", testStripes)
		if err != nil {
			return nil, err
		}
		if k, ok := s.model.HeldKey(time.Now().UnixMicro(), bucket); ok {
			out = append(out, quota.QuotaReport{
				ID: id, Version: k.Version, Share: k.Share, Period: time.Minute,
				Hold: k.Hold, Drained: k.Hold <= k.Share.Capacity, Surrendered: k.Surrendered,
			})
		}
	}
	return out, nil
}

func (s *memStore) TrackedKeys(context.Context) ([]quota.ID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return nil, s.failing
	}
	var ids []quota.ID
	for _, bucket := range s.model.Tracked() {
		ids = append(ids, s.names[bucket])
	}
	return ids, nil
}

func (s *memStore) Clocks(context.Context) ([]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return nil, s.failing
	}
	s.clocks++
	return slices.Repeat([]int64{time.Now().UnixMicro()}, testStripes), nil
}

func (s *memStore) Renew(_ context.Context, epoch quota.Epoch, gen string, sent []int64, ttl time.Duration, ids []string) (lapsed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return false, s.failing
	}
	s.renewals++
	for stripe := range testStripes {
		var keys []string
		for _, id := range ids {
			keys = append(keys, string(quota.AppendShareKey(nil, "rl", stripe, id)))
		}
		over, err := s.model.Renew(time.Now().UnixMicro(), stripe, quota.LeaseExtension{Epoch: epoch, Gen: gen, Sent: sent[stripe], TTL: ttl}, keys)
		if err != nil {
			return false, err
		}
		lapsed = lapsed || over
	}
	return lapsed, nil
}

func (s *memStore) LeaseLeft(context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing != nil {
		return 0, s.failing
	}
	end, err := s.model.LeaseEnd(0)
	return time.Duration(max(0, end-time.Now().UnixMicro())) * time.Microsecond, err
}
