package lua_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/quota"
)

// renew extends the lease of every stripe, at times too late, or as a leader or for a
// dataset that is not the region's.
func (a *agreement) renew() error {
	gen, epoch := a.gen, a.epoch
	switch a.r.IntN(12) {
	case 0:
		a.epoch++
		epoch = a.epoch
	case 1:
		epoch = -1 // of no stripe, so that all refuse alike
	case 2:
		gen = "other"
	}
	if gen == "" {
		gen = "none"
	}
	spans := []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 30 * day}
	ttl := time.Duration(1 + a.r.Int64N(int64(spans[a.r.IntN(len(spans))])))
	ttl = max(ttl.Truncate(time.Microsecond), time.Microsecond)
	sent := make([]int64, agreementStripes)
	for stripe := range sent {
		sent[stripe] = a.now - a.r.Int64N(ttl.Microseconds()*5/4+1)
	}
	var ids []string
	for id := range a.limits {
		if a.r.IntN(20) > 0 {
			ids = append(ids, id)
		}
	}
	a.note("renew %q %d sent %v ttl %v", gen, epoch, sent, ttl)
	var wantErr error
	wantLapsed := false
	for stripe := range agreementStripes {
		if err := a.tick(stripe); err != nil {
			return err
		}
		keys := make([]string, len(ids))
		for i, id := range ids {
			keys[i] = a.store.ShareKey(stripe, id)
		}
		lapsed, err := a.models[stripe].Renew(a.now, stripe, quota.LeaseExtension{Epoch: epoch, Gen: gen, Sent: sent[stripe], TTL: ttl}, keys)
		wantLapsed = wantLapsed || lapsed
		if err != nil {
			wantErr = err
		}
	}
	lapsed, err := a.store.Renew(a.t.Context(), epoch, gen, sent, ttl, ids)
	for _, kind := range []error{quota.ErrFenced, quota.ErrUninitialised} {
		if errors.Is(wantErr, kind) && errors.Is(err, kind) {
			return nil
		}
	}
	if err != nil || wantErr != nil || lapsed != wantLapsed {
		return fmt.Errorf("model says %t and %w, scripts %t and %w", wantLapsed, wantErr, lapsed, err)
	}
	return a.sameLeases()
}

// sameLeases compares until when the leases last.
func (a *agreement) sameLeases() error {
	for stripe := range agreementStripes {
		want, err := a.models[stripe].LeaseEnd(stripe)
		if err != nil {
			return err
		}
		record, err := a.store.Client().Get(a.t.Context(), a.store.RegionKey(stripe)).Result()
		if err != nil {
			return err
		}
		if fields := strings.Split(record, ":"); fields[3] != strconv.FormatInt(want, 10) {
			return fmt.Errorf("stripe %d: the lease lasts until %s, want %d", stripe, fields[3], want)
		}
	}
	clocks, err := a.store.Clocks(a.t.Context())
	if err != nil {
		return err
	}
	for stripe, now := range clocks {
		if now != a.now {
			return fmt.Errorf("stripe %d: the clock is %d, want %d", stripe, now, a.now)
		}
	}
	end, err := a.models[0].LeaseEnd(0)
	if err != nil {
		return err
	}
	left, err := a.store.LeaseLeft(a.t.Context())
	if want := time.Duration(max(0, end-a.now)) * time.Microsecond; err != nil || left != want {
		return fmt.Errorf("%v are left, want %v, error %w", left, want, err)
	}
	return nil
}
