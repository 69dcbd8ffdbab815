package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// buildTimeout bounds the build of a binary with a cold build cache.
const buildTimeout = 10 * time.Minute

var binaries struct {
	mu    sync.Mutex
	dir   string
	built map[string]string
}

// Binary builds a main package of this module, at its first use in this process, and
// returns the path of the binary. It is built as `make build` builds it, without the
// race detector, and removed by Close.
func Binary(tb testing.TB, pkg string) string {
	tb.Helper()
	binaries.mu.Lock()
	defer binaries.mu.Unlock()
	if path := binaries.built[pkg]; path != "" {
		return path
	}
	path, err := build(pkg)
	if err != nil {
		tb.Fatalf("testenv: build %s: %v", pkg, err)
	}
	if binaries.built == nil {
		binaries.built = map[string]string{}
	}
	binaries.built[pkg] = path
	return path
}

func build(pkg string) (string, error) {
	if binaries.dir == "" {
		dir, err := os.MkdirTemp("", "weir-test-")
		if err != nil {
			return "", err
		}
		binaries.dir = dir
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	path := filepath.Join(binaries.dir, filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, pkg) //nolint:gosec // tests name the package
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
}

// removeBinaries is the part of Close for what Binary built.
func removeBinaries() error {
	binaries.mu.Lock()
	defer binaries.mu.Unlock()
	if binaries.dir == "" {
		return nil
	}
	err := os.RemoveAll(binaries.dir)
	if err != nil {
		err = errors.Join(errors.New("remove what was built"), err)
	}
	binaries.dir, binaries.built = "", nil
	return err
}
