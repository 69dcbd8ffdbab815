package testenv

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
)

var sharedPostgres = sync.OnceValues(func() (string, error) {
	if env := os.Getenv(EnvPostgres); env != "" {
		return env, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return StartPostgres(ctx)
})

// Postgres returns the URL of a database whose search_path is an empty schema
// made for this test and dropped after it. NOTIFY channels are shared by the
// whole database: put the schema's name (select current_schema) into theirs.
func Postgres(tb testing.TB) string {
	tb.Helper()
	base, err := sharedPostgres()
	if err != nil {
		unavailable(tb, "PostgreSQL", err)
	}
	schema := "t" + token(tb)
	if err := execute(tb.Context(), base, "CREATE SCHEMA "+schema); err != nil {
		unavailable(tb, "PostgreSQL", err)
	}
	tb.Cleanup(func() {
		if err := execute(context.WithoutCancel(tb.Context()), base, "DROP SCHEMA "+schema+" CASCADE"); err != nil {
			tb.Errorf("testenv: drop schema: %v", err)
		}
	})
	u, err := url.Parse(base)
	if err != nil {
		tb.Fatalf("testenv: %s: %v", EnvPostgres, err)
	}
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	return u.String()
}

// StartPostgres starts a server that lives until Close and returns its URL.
func StartPostgres(ctx context.Context) (string, error) {
	const port = "5432/tcp"
	inside, err := network.ParsePort(port)
	if err != nil {
		return "", err
	}
	ctr, err := start(ctx, postgresImage, "postgres ready",
		testcontainers.WithExposedPorts(port),
		testcontainers.WithTmpfs(map[string]string{"/data": "rw,mode=1777"}),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{inside: {{HostIP: netip.MustParseAddr("127.0.0.1")}}}
		}),
	)
	if err != nil {
		return "", err
	}
	endpoint, err := ctr.PortEndpoint(ctx, port, "")
	if err != nil {
		return "", err
	}
	u := "postgres://postgres@" + endpoint + "/postgres?sslmode=disable"
	return u, execute(ctx, u, "SELECT 1")
}

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, url, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
