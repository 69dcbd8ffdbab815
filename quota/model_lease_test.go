package quota_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weirhq/weir/quota"
)

const leaseEnd = 1_000_000_000_000 // where the tests' lease ends at first

// leased is a model of one stripe with one bucket under a lease that lasts until
// leaseEnd: a share of 100 tokens, refilled in 10 s, a fifth of it permanent.
type leased struct {
	t     *testing.T
	model *quota.Model
	entry quota.Entry
}

func newLeased(t *testing.T) *leased {
	limit := quota.Limit{Capacity: 200 * quota.Token, Refill: 200 * quota.Token, Period: 10 * time.Second}
	floor := quota.Share{Capacity: 20 * quota.Token, Refill: 20 * quota.Token}
	l := &leased{t: t, model: quota.NewModel(), entry: quota.Entry{
		Bucket: "bucket", ShareKey: "share", Algorithm: quota.TokenBucket, Limit: limit, Base: limit, Floor: floor,
	}}
	start := leaseEnd - 10*time.Second.Microseconds()
	l.model.Initialise(start, 0, "gen", true)
	l.renew(start, start, false)
	_, err := l.model.Apply(start, 0, 1, "gen", []string{"share"}, []quota.Grant{{
		ID: quota.ID{Policy: "p"}, Version: 1, Algorithm: quota.TokenBucket, Limit: limit, Floor: floor, Permanent: floor,
		Share: quota.Share{Capacity: 100 * quota.Token, Refill: 100 * quota.Token}, Gift: 80 * quota.Token,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *leased) renew(now, sent int64, lapsed bool) {
	l.t.Helper()
	got, err := l.model.Renew(now, 0, quota.LeaseExtension{Epoch: 1, Gen: "gen", Sent: sent, TTL: 10 * time.Second}, []string{"share"})
	if err != nil || got != lapsed {
		l.t.Fatalf("renew at %d: lapsed %t, %v", now, got, err)
	}
}

// level is what can be spent at a time, in whole tokens, after taking some.
func (l *leased) level(now int64, take quota.Tokens) int64 {
	l.t.Helper()
	out, err := l.model.Acquire(now, quota.Attempt{Cost: take * quota.Token, Entries: []quota.Entry{l.entry}})
	if err != nil || !out.Allowed {
		l.t.Fatalf("at %d: %+v, %v", now, out, err)
	}
	return out.Verdicts[0].Level.Whole()
}

func (l *leased) want(now int64, take quota.Tokens, level int64) {
	l.t.Helper()
	if got := l.level(now, take); got != level {
		l.t.Errorf("at %+d: level %d, want %d", now-leaseEnd, got, level)
	}
}

const second = 1_000_000

func TestALapseLeavesThePermanentPart(t *testing.T) {
	l := newLeased(t)
	l.want(leaseEnd, 0, 100)
	l.want(leaseEnd+1, 0, 20)
	l.want(leaseEnd+2, 15, 5)
	l.want(leaseEnd+2*second, 0, 8) // two tokens a second, less the drift
}

// TestALapseIsSettled: what passes while the lease is over counts as that, also after
// there is another.
func TestALapseIsSettled(t *testing.T) {
	l := newLeased(t)
	l.want(leaseEnd, 100, 0)
	l.renew(leaseEnd+5*second, leaseEnd+4*second, true)
	l.want(leaseEnd+5*second, 0, 9)
	l.want(leaseEnd+6*second, 0, 19)
	l.want(leaseEnd+14*second, 0, 99)
	l.want(leaseEnd+14*second+1, 0, 20)
}

// TestALapseCutsUntouchedKeys: a key nobody used has the permanent capacity after a lapse,
// and fills the rest by refill.
func TestALapseCutsUntouchedKeys(t *testing.T) {
	l := newLeased(t)
	l.renew(leaseEnd+1, leaseEnd, true)
	l.want(leaseEnd+2, 0, 20)
	l.want(leaseEnd+2+second, 0, 29)
}

func TestARenewalInTimeChangesNothing(t *testing.T) {
	l, other := newLeased(t), newLeased(t)
	for at := int64(leaseEnd - 10*second); at < leaseEnd; at += second {
		l.renew(at, at-second/2, false)
		if got, want := l.level(at, 7), other.level(at, 7); got != want {
			t.Errorf("level %d, want %d", got, want)
		}
	}
}

func TestWhichLeaseCounts(t *testing.T) {
	ends := func(l *leased, want int64) {
		t.Helper()
		if got, err := l.model.LeaseEnd(0); err != nil || got != want {
			t.Errorf("the lease ends at %+d, want %+d (%v)", got-leaseEnd, want-leaseEnd, err)
		}
	}
	l := newLeased(t)
	l.renew(leaseEnd-second, leaseEnd-12*second, false)
	ends(l, leaseEnd) // an answer to an earlier report shortens nothing
	l.renew(leaseEnd+15*second, leaseEnd+4*second, false)
	ends(l, leaseEnd) // one that comes too late extends nothing
	l.want(leaseEnd+15*second, 0, 20)
	l.renew(leaseEnd-20*second, leaseEnd-21*second, false)
	ends(l, leaseEnd-11*second) // the clock stepped back: no lease is that long

	for _, ext := range []quota.LeaseExtension{
		{Epoch: 1, Gen: "other", Sent: leaseEnd, TTL: time.Hour}, {Epoch: 0, Gen: "gen", Sent: leaseEnd, TTL: time.Hour},
	} {
		if _, err := l.model.Renew(leaseEnd, 0, ext, nil); !errors.Is(err, quota.ErrFenced) {
			t.Errorf("%+v: %v", ext, err)
		}
	}
	if _, err := l.model.Renew(leaseEnd, 1, quota.LeaseExtension{}, nil); !errors.Is(err, quota.ErrUninitialised) {
		t.Errorf("a stripe without record: %v", err)
	}
	if _, err := l.model.LeaseEnd(1); !errors.Is(err, quota.ErrUninitialised) {
		t.Errorf("a stripe without record: %v", err)
	}
}
