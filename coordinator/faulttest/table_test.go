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
	{"this protocol", bucket, mutant{}, false, quota.Hold},
	{"this protocol", window, mutant{}, false, quota.Hold},
	{"this protocol", bucket, mutant{}, false, quota.Strict},
	{"this protocol", window, mutant{}, false, quota.Strict},
	{"textbook push", bucket, mutant{textbook: true}, false, quota.Hold},
	{"textbook push, no faults but delay", bucket, mutant{textbook: true}, true, quota.Hold},
	{"textbook push", window, mutant{textbook: true}, false, quota.Hold},
	{"grow before shrink", bucket, mutant{growBeforeShrink: true}, false, quota.Hold},
	{"grow before shrink", window, mutant{growBeforeShrink: true}, false, quota.Hold},
	{"grow gives full new capacity (absent key)", bucket, mutant{absentIsFull: true}, false, quota.Hold},
	{"window: grow right after shrink applied", window, mutant{noDrain: true}, false, quota.Hold},
	{"no version check", bucket, mutant{noVersionCheck: true}, false, quota.Hold},
	{"acknowledged before applied", bucket, mutant{ackOnReceipt: true}, false, quota.Hold},
	{"sent before persisted", bucket, mutant{sendBeforePersist: true}, false, quota.Hold},
	{"volatile ledger at failover", bucket, mutant{volatileLedger: true}, false, quota.Hold},
	{"refill not derated for drift", bucket, mutant{notDerated: true}, false, quota.Hold},
	{"window not stretched for drift", window, mutant{notDerated: true}, false, quota.Hold},
	{"data loss restores default share", bucket, mutant{lossRestoresShare: true}, false, quota.Hold},
	{"data loss restores default share", window, mutant{lossRestoresShare: true}, false, quota.Hold},
	{"gift survives a limit decrease", bucket, mutant{giftSurvives: true}, false, quota.Hold},
	{"gift under way while its region loses its data is given again", bucket, mutant{giftAgain: true}, false, quota.Hold},
	{"data lost while a share is taken back: the old share is sent again", bucket, mutant{resendsOld: true}, false, quota.Hold},
	{"data lost while a share is taken back: the old share is sent again", window, mutant{resendsOld: true}, false, quota.Hold},
	{"lease counted from receipt", bucket, mutant{leaseFromReceipt: true}, false, quota.Strict},
	{"lease counted from receipt", window, mutant{leaseFromReceipt: true}, false, quota.Strict},
	{"data lost while a share is taken back: the old share is sent again", bucket, mutant{resendsOld: true}, false, quota.Strict},
	{"leases go on while a share is taken back", bucket, mutant{leasesGoOn: true}, false, quota.Strict},
	{"leases go on while a share is taken back", window, mutant{leasesGoOn: true}, false, quota.Strict},
	{"permanent part by formula, not from the message", bucket, mutant{permByFormula: true}, false, quota.Strict},
	{"permanent part by formula, not from the message", window, mutant{permByFormula: true}, false, quota.Strict},
}

type row struct {
	name   string
	kind   quota.Algorithm
	mutant mutant
	calm   bool
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
	for out.schedules < atLeast || (out.first == 0 && r.mutant != (mutant{}) && out.schedules < schedules(500)) {
		o := options{mutant: r.mutant, only: r.kind, calm: r.calm, strict: r.mode == quota.Strict, hold: r.mode == quota.Hold}
		w := newWorld(uint64(out.schedules), o)
		for end := length.Microseconds(); w.now < end && w.err == nil; {
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
