// Command testrun runs `go test` with its arguments over one Redis Cluster and
// one PostgreSQL that it starts, hands to all packages in the environment, and
// removes at the end.
//
// It sets CI, so that a missing backend fails, and counts a skipped test as
// failed. Its last line is "N passed, N failed".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/internal/testenv"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	defer func() { err = errors.Join(err, testenv.Close()) }()
	env, err := backends(ctx)
	if err != nil {
		return fmt.Errorf("the tests need Docker (Debian: apt-get install docker.io) and the images of `make images`: %w", err)
	}

	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...) //nolint:gosec // the arguments are the caller's own
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	// go test passes an interrupt on to the test binaries and waits for them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	sum, readErr := summarise(events, os.Stdout)
	waitErr := cmd.Wait()
	if waitErr != nil && sum.failed == 0 {
		sum.failed++
		fmt.Printf("go test: %v\n", waitErr)
	}
	fmt.Println(sum)
	if readErr != nil {
		return readErr
	}
	return sum.err()
}

// backends starts what the environment does not name and returns its addresses as variables.
func backends(ctx context.Context) ([]string, error) {
	env := []string{"CI=true"}
	began := time.Now()
	var redis, postgres string
	var g errgroup.Group
	if os.Getenv(testenv.EnvRedisCluster) == "" {
		g.Go(func() error {
			c, err := testenv.StartRedisCluster(ctx)
			if err != nil {
				return err
			}
			redis = testenv.EnvRedisCluster + "=" + strings.Join(c.Addrs, ",")
			return nil
		})
	}
	if os.Getenv(testenv.EnvPostgres) == "" {
		g.Go(func() error {
			url, err := testenv.StartPostgres(ctx)
			postgres = testenv.EnvPostgres + "=" + url
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, v := range []string{redis, postgres} {
		if v != "" {
			env = append(env, v)
		}
	}
	fmt.Printf("backends ready in %.1fs\n", time.Since(began).Seconds())
	return env, nil
}
