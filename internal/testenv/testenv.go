package testenv

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Addresses of backends that somebody else started.
const (
	// EnvRedisCluster lists primaries of a Redis Cluster: host:port,host:port,...
	EnvRedisCluster = "WEIR_TEST_REDIS_CLUSTER"
	// EnvPostgres is a postgres:// URL whose user may create schemas.
	EnvPostgres = "WEIR_TEST_POSTGRES"
)

// Main is the body of a TestMain: it runs the tests, removes the containers this
// process started, fails on goroutines that outlived the tests, and exits.
func Main(m *testing.M, opts ...goleak.Option) {
	code := m.Run()
	if err := Close(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(opts...); err != nil {
			fmt.Fprintln(os.Stderr, "testenv: goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code) //nolint:forbidigo // the body of a TestMain, as goleak.VerifyTestMain is
}

// Prefix returns a key prefix that no other test, run or process uses. It holds
// none of the characters that mean something in a key ("{", "}", ":", "@").
func Prefix(tb testing.TB) string {
	tb.Helper()
	return "t" + token(tb)
}

// token returns 16 random hexadecimal digits.
func token(tb testing.TB) string {
	tb.Helper()
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	return hex.EncodeToString(b[:])
}

// unavailable ends a test whose backend is missing: a skip on a developer's
// machine, a failure in CI.
func unavailable(tb testing.TB, backend string, err error) {
	tb.Helper()
	if os.Getenv("CI") == "" {
		tb.Skipf("testenv: no %s: %v", backend, err)
	} else {
		tb.Fatalf("testenv: no %s, and CI is set: %v", backend, err)
	}
}
