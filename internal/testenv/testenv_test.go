package testenv_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestRedisClusterIsThreePrimariesOfRedis7(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t)
	if len(c.Addrs) != 3 {
		t.Fatalf("Addrs = %v, want three", c.Addrs)
	}
	for i := range c.Addrs {
		info := do(t, c, i, "INFO", "server")
		if !strings.Contains(info, "redis_version:7.") {
			t.Errorf("node %d is no Redis 7:\n%s", i, info)
		}
		role := do(t, c, i, "ROLE")
		if !strings.HasPrefix(role, "master") {
			t.Errorf("node %d: ROLE = %q, want master", i, role)
		}
		// What a client that knows one node learns must be reachable from here.
		slots := do(t, c, i, "CLUSTER", "SLOTS")
		for _, addr := range c.Addrs {
			_, port, _ := strings.Cut(addr, ":")
			if !strings.Contains(slots, "127.0.0.1\n"+port) {
				t.Errorf("node %d does not announce %s:\n%s", i, addr, slots)
			}
		}
	}
}

func TestClusterRefusesKeysOfTwoSlots(t *testing.T) {
	t.Parallel()
	c := testenv.RedisCluster(t)
	p := testenv.Prefix(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := c.Do(ctx, 0, "MGET", p+"{a}", p+"{b}")
	if err == nil || !strings.Contains(err.Error(), "CROSSSLOT") {
		t.Errorf("MGET over two slots: %v, want CROSSSLOT", err)
	}
}

func TestFlushScripts(t *testing.T) {
	// A cluster of its own, since other packages flush the shared one at any time.
	c := testenv.PrivateRedisCluster(t)
	for i := range c.Addrs {
		sha := do(t, c, i, "SCRIPT", "LOAD", "return 7")
		if got := do(t, c, i, "SCRIPT", "EXISTS", sha); got != "1" {
			t.Fatalf("node %d: SCRIPT EXISTS = %s before the flush", i, got)
		}
		c.FlushScripts(t)
		if got := do(t, c, i, "SCRIPT", "EXISTS", sha); got != "0" {
			t.Errorf("node %d: SCRIPT EXISTS = %s after the flush", i, got)
		}
	}
}

func TestNodesPauseDieAndComeBack(t *testing.T) {
	c := testenv.PrivateRedisCluster(t)
	try := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		_, err := c.Do(ctx, 1, "PING")
		return err
	}

	c.Pause(t, 1)
	if err := try(100 * time.Millisecond); err == nil {
		t.Error("a paused node answered")
	}
	c.Resume(t, 1)
	if err := try(10 * time.Second); err != nil {
		t.Errorf("a resumed node did not answer: %v", err)
	}

	c.Kill(t, 1)
	if err := try(10 * time.Second); err == nil {
		t.Error("a killed node answered")
	}
	c.Start(t, 1)
	if err := try(10 * time.Second); err != nil {
		t.Errorf("a restarted node did not answer: %v", err)
	}
}

func TestPrefixIsUniqueAndPlain(t *testing.T) {
	t.Parallel()
	a, b := testenv.Prefix(t), testenv.Prefix(t)
	if a == b {
		t.Errorf("the same prefix twice: %s", a)
	}
	if strings.ContainsAny(a, "{}:@ ") {
		t.Errorf("prefix %q holds a character that means something in a key", a)
	}
}

func TestPostgresSchemasAreApart(t *testing.T) {
	t.Parallel()
	first, second := connect(t, testenv.Postgres(t)), connect(t, testenv.Postgres(t))
	for _, conn := range []*pgx.Conn{first, second} {
		if _, err := conn.Exec(t.Context(), "CREATE TABLE things (id int PRIMARY KEY)"); err != nil {
			t.Fatalf("the schema is not empty: %v", err)
		}
	}
	if _, err := first.Exec(t.Context(), "INSERT INTO things VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := second.QueryRow(t.Context(), "SELECT count(*) FROM things").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("one test sees %d rows of another", n)
	}
}

func TestPostgresSchemaIsDroppedWithItsTest(t *testing.T) {
	t.Parallel()
	var schema string
	t.Run("owner", func(t *testing.T) {
		conn := connect(t, testenv.Postgres(t))
		if err := conn.QueryRow(t.Context(), "SELECT current_schema").Scan(&schema); err != nil {
			t.Fatal(err)
		}
	})
	conn := connect(t, testenv.Postgres(t))
	var n int
	err := conn.QueryRow(t.Context(),
		"SELECT count(*) FROM information_schema.schemata WHERE schema_name = $1", schema).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("schema %s is still there", schema)
	}
}

func do(t *testing.T, c *testenv.Cluster, i int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	reply, err := c.Do(ctx, i, args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return conn
}
