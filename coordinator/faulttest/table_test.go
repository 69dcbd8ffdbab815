package faulttest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/weirhq/weir/quota"
)

const (
	bucket = quota.TokenBucket
	window = quota.SlidingLog
)

// table lists the mutants, behind the protocol itself.
var table = []row{
	{"this protocol", bucket, mutant{}, faulty, quota.Hold},
	{"this protocol", window, mutant{}, faulty, quota.Hold},
	{"this protocol", bucket, mutant{}, faulty, quota.Strict},
	{"this protocol", window, mutant{}, faulty, quota.Strict},
	{"textbook push", bucket, mutant{textbook: true}, faulty, quota.Hold},
	{"textbook push, no faults but delay", bucket, mutant{textbook: true}, calm, quota.Hold},
	{"textbook push", window, mutant{textbook: true}, faulty, quota.Hold},
	{"grow before shrink", bucket, mutant{growBeforeShrink: true}, faulty, quota.Hold},
	{"grow before shrink", window, mutant{growBeforeShrink: true}, faulty, quota.Hold},
	{"grow gives full new capacity (absent key)", bucket, mutant{absentIsFull: true}, faulty, quota.Hold},
	{"window: grow right after shrink applied", window, mutant{noDrain: true}, faulty, quota.Hold},
	{"no version check", bucket, mutant{noVersionCheck: true}, faulty, quota.Hold},
	{"acknowledged before applied", bucket, mutant{ackOnReceipt: true}, faulty, quota.Hold},
	{"sent before persisted", bucket, mutant{sendBeforePersist: true}, faulty, quota.Hold},
	{"volatile ledger at failover", bucket, mutant{volatileLedger: true}, faulty, quota.Hold},
	{"refill not derated for drift", bucket, mutant{notDerated: true}, faulty, quota.Hold},
	{"window not stretched for drift", window, mutant{notDerated: true}, faulty, quota.Hold},
	{"data loss restores default share", bucket, mutant{lossRestoresShare: true}, faulty, quota.Hold},
	{"data loss restores default share", window, mutant{lossRestoresShare: true}, faulty, quota.Hold},
	{"gift survives a limit decrease", bucket, mutant{giftSurvives: true}, faulty, quota.Hold},
	{"gift under way while its region loses its data is given again", bucket, mutant{giftAgain: true}, faulty, quota.Hold},
	{"data lost while a share is taken back: the old share is sent again", bucket, mutant{resendsOld: true}, faulty, quota.Hold},
	{"data lost while a share is taken back: the old share is sent again", window, mutant{resendsOld: true}, faulty, quota.Hold},
	{"lease counted from receipt", bucket, mutant{leaseFromReceipt: true}, faulty, quota.Strict},
	{"lease counted from receipt", window, mutant{leaseFromReceipt: true}, faulty, quota.Strict},
	{"data lost while a share is taken back: the old share is sent again", bucket, mutant{resendsOld: true}, faulty, quota.Strict},
	{"leases go on while a share is taken back", bucket, mutant{leasesGoOn: true}, faulty, quota.Strict},
	{"leases go on while a share is taken back", window, mutant{leasesGoOn: true}, faulty, quota.Strict},
	{"this protocol, slow regions and a fast leader", bucket, mutant{}, edge, quota.Strict},
	{"this protocol, slow regions and a fast leader", window, mutant{}, edge, quota.Strict},
	{"reclaim without drift margin", bucket, mutant{noDriftMargin: true}, edge, quota.Strict},
	{"reclaim without drift margin", window, mutant{noDriftMargin: true}, edge, quota.Strict},
	{"acknowledged revocation is completed nonetheless", window, mutant{revocationGoesOn: true}, faulty, quota.Strict},
	{"permanent part by formula, not from the message", bucket, mutant{permByFormula: true}, faulty, quota.Strict},
	{"permanent part by formula, not from the message", window, mutant{permByFormula: true}, faulty, quota.Strict},
}

type row struct {
	name   string
	kind   quota.Algorithm
	mutant mutant
	place  setting
	mode   quota.PartitionMode
}

// result is what the schedules found of a mutant.
type result struct {
	row
	schedules               int
	envelope, invariant     int
	worstEnvelope, worstInv float64
	// first is how many schedules it took.
	first int
	err   error
}

// try plays at least so many schedules of a mutant, and at most the suite's number
// until one notices.
func (r row) try(atLeast int) result {
	out := result{row: r}
	if r.place == edge { // five times as long
		atLeast = (atLeast + 1) / 2
	}
	for out.schedules < atLeast || (out.first == 0 && r.mutant != (mutant{}) && out.schedules < schedules(500)) {
		o := options{mutant: r.mutant, only: r.kind, setting: r.place, strict: r.mode == quota.Strict, hold: r.mode == quota.Hold}
		w := newWorld(uint64(out.schedules), o)
		for end := r.place.length().Microseconds(); w.now < end && w.err == nil; {
			w.step()
		}
		out.schedules++
		out.err = w.err
		if w.found.envelope.what != "" {
			out.envelope++
			out.worstEnvelope = max(out.worstEnvelope, w.found.envelope.worst)
		}
		if w.found.invariant.what != "" {
			out.invariant++
			out.worstInv = max(out.worstInv, w.found.invariant.worst)
		}
		if out.first == 0 && out.envelope+out.invariant > 0 {
			out.first = out.schedules
		}
	}
	return out
}

// Each way to break the protocol is noticed by the schedules that the protocol passes.
// The table is printed: go test -v -run TestTheSchedulesNoticeMutants.
func TestTheSchedulesNoticeMutants(t *testing.T) {
	t.Parallel()
	atLeast := 10
	if n, err := strconv.Atoi(os.Getenv("WEIR_FUZZ_MUTANT_SCHEDULES")); err == nil {
		atLeast = n
	}
	results := make([]result, len(table))
	var wg sync.WaitGroup
	next := make(chan int)
	for range 4 {
		wg.Go(func() {
			for i := range next {
				results[i] = table[i].try(atLeast)
			}
		})
	}
	for i := range table {
		next <- i
	}
	close(next)
	wg.Wait()
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tab, "| variant\t| kind\t| mode\t| schedules\t| noticed by schedule\t| over the envelope\t| worst %\t| breaking an invariant\t| worst %\t|")
	fmt.Fprintln(tab, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range results {
		fmt.Fprintf(tab, "| %s\t| %s\t| %s\t| %d\t| %d\t| %d\t| %.2f\t| %d\t| %.2f\t|\n",
			r.name, r.kind, r.mode, r.schedules, r.first, r.envelope, r.worstEnvelope, r.invariant, r.worstInv)
		if r.first > 0 && r.mutant == (mutant{}) {
			t.Errorf("schedule %d finds something where nothing is broken", r.first-1)
		}
		if r.first == 0 && r.mutant != (mutant{}) {
			t.Errorf("no schedule of %d notices %q (%s); last error: %v", r.schedules, r.name, r.kind, r.err)
		}
	}
	if err := tab.Flush(); err != nil {
		t.Error(err)
	}
	t.Log("\n" + b.String())
}
