package chaos_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/internal/testenv"
)

func TestMain(m *testing.M) {
	// A toxiproxy connection that ends while a toxic swallows it leaves goroutines behind.
	testenv.Main(m,
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
	)
}

// What a run can be told by its environment.
const (
	// envRounds is how often each fault happens.
	envRounds = "WEIR_CHAOS_ROUNDS"
	// envSeed repeats the choices of an earlier run, though not its timing.
	envSeed = "WEIR_CHAOS_SEED"
	// envFaults chooses the faults whose names contain it.
	envFaults = "WEIR_CHAOS_FAULTS"
	// envReport names a file that gets the tables.
	envReport = "WEIR_CHAOS_REPORT"
	// envInterval is how often regions report, if not every 200 ms.
	envInterval = "WEIR_CHAOS_REPORT_INTERVAL"
	// envOutage is how long the coordinators and Postgres are away.
	envOutage = "WEIR_TEST_OUTAGE"
)

// rounds returns how often a fault happens: what the environment says, else few.
func rounds(tb testing.TB, few int) int {
	tb.Helper()
	return int(number(tb, envRounds, uint64(few)))
}

// seeded returns the source of all choices of a test and prints how to repeat them.
func seeded(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := number(tb, envSeed, rand.Uint64N(1_000_000))
	tb.Logf("%s=%d repeats the choices of this run", envSeed, seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func number(tb testing.TB, name string, otherwise uint64) uint64 {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return n
}

func outage(tb testing.TB) time.Duration {
	tb.Helper()
	text := os.Getenv(envOutage)
	if text == "" {
		return 5 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		tb.Fatalf("%s: %v", envOutage, err)
	}
	return d
}

// publish logs a text and appends it to the file of the report, if there is one.
func publish(tb testing.TB, text string) {
	tb.Helper()
	tb.Log("\n" + text)
	path := os.Getenv(envReport)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Errorf("%s: %v", envReport, err)
		return
	}
	if _, err := f.WriteString(text + "\n"); err != nil {
		tb.Errorf("%s: %v", envReport, err)
	}
	if err := f.Close(); err != nil {
		tb.Errorf("%s: %v", envReport, err)
	}
}

// pause waits on a timer, for what no event marks the end of.
func pause(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
	}
}

// between draws a duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// eventually asks again until the answer is yes, and says whether it ever was.
func eventually(tb testing.TB, what string, yes func() bool) bool {
	tb.Helper()
	const patience = 40 * time.Second
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if yes() {
			return true
		}
	}
	tb.Errorf("did not happen in %s: %s", patience, what)
	return false
}
