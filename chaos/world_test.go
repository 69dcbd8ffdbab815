package chaos_test

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/rpc"
	"github.com/weirhq/weir/internal/testenv"
	"github.com/weirhq/weir/policystore/document"
	"github.com/weirhq/weir/quota"
)

// Limits that are small against what callers ask for, so that a share given twice shows
// at once. Failing closed, nothing is admitted but by the store; the deadline is far
// above what a check takes, so that a busy machine is not taken for a broken store.
const movingPolicies = `
policies:
  - id: jobs
    match: { route: "POST /jobs" }
    key: [tenant]
    algorithm: token-bucket
    capacity: 60
    refill: 60/1s
    storeDeadline: 1s
    onStoreFailure: closed
  - id: logins
    match: { route: "POST /logins" }
    key: [tenant]
    algorithm: sliding-log
    limit: 60
    window: 3s
    storeDeadline: 1s
    onStoreFailure: closed
`

// worldConfig is what differs between worlds.
type worldConfig struct {
	policies string
	// alone gives every region the whole of every limit: there is no coordinator.
	alone bool
	// ownRedis gives every region a Redis Cluster of its own, behind links that can fail;
	// else they share one under different prefixes, without links.
	ownRedis bool
}

// site is one region.
type site struct {
	name   string
	node   *process
	client *rpc.Client
	// coordinators are the links to them, redis those to the cluster's nodes.
	coordinators, redis []*link
}

// world is a whole deployment.
type world struct {
	worldConfig

	tb           testing.TB
	r            *rand.Rand
	began        time.Time
	set          []*quota.Policy
	coordinators []*process
	// postgres are the links of each coordinator to the database.
	postgres []*link
	sites    []*site
	http     *http.Client
	load     *load
}

func newWorld(tb testing.TB, r *rand.Rand, cfg worldConfig) *world {
	tb.Helper()
	w := &world{worldConfig: cfg, tb: tb, r: r, began: time.Now()}
	w.http = &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true},
		Timeout:   callTimeout,
	}
	tb.Cleanup(w.http.CloseIdleConnections)
	var err error
	if w.set, err = document.Policies([]byte(cfg.policies)); err != nil {
		tb.Fatal(err)
	}
	if !cfg.alone {
		w.startCoordinators()
	}
	w.startSites()
	for _, s := range w.sites {
		eventually(tb, s.name+" is ready", func() bool { return w.ready(s.node.url) })
	}
	return w
}

// limit returns the numbers of a policy.
func (w *world) policy(id string) *quota.Policy {
	for _, p := range w.set {
		if p.ID == id {
			return p
		}
	}
	w.tb.Fatalf("no policy %s", id)
	return nil
}

// now is the clock of all records: microseconds since the world began, monotonic.
func (w *world) now() int64 { return time.Since(w.began).Microseconds() }

func (w *world) file() string {
	path := filepath.Join(w.tb.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(w.policies), 0o600); err != nil {
		w.tb.Fatal(err)
	}
	return path
}

func (w *world) startCoordinators() {
	tb := w.tb
	direct, err := url.Parse(testenv.Postgres(tb))
	if err != nil {
		tb.Fatal(err)
	}
	w.run("migrate", "up", "--postgres", direct.String())
	for i := range 2 {
		l := newLink(tb, w.r, direct.Host)
		w.postgres = append(w.postgres, l)
		proxied := *direct
		proxied.Host = l.addr
		// A port of its own, so that it comes back at the same address.
		listen := net.JoinHostPort("127.0.0.1", freePort(tb, w.r))
		w.coordinators = append(w.coordinators, start(tb, "coordinator "+string(rune('1'+i)),
			"coordinator", "--listen", listen, "--regions", "a,b,c", "--postgres", proxied.String(),
			"--auth", "none", "--drain-delay", "0s", "--rebalance-interval", "1s"))
	}
	w.run("policy", "apply", "--coordinator", w.coordinators[0].url, "--yes", "-f", w.file())
}

// run runs one command to its end.
func (w *world) run(args ...string) {
	binary := testenv.Binary(w.tb, "github.com/weirhq/weir/cmd/weir")
	ctx, cancel := context.WithTimeout(w.tb.Context(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput(); err != nil {
		w.tb.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (w *world) startSites() {
	tb := w.tb
	clusters := make([]*testenv.Cluster, 3)
	if w.ownRedis {
		var starting sync.WaitGroup
		for i := range clusters {
			starting.Go(func() { clusters[i] = testenv.PrivateRedisCluster(tb) })
		}
		starting.Wait()
	}
	for i, name := range []string{"a", "b", "c"} {
		s := &site{name: name}
		w.sites = append(w.sites, s)
		addrs := w.redisOf(s, clusters[i])
		args := []string{
			"regional", "--listen", "127.0.0.1:0", "--region", name, "--redis", strings.Join(addrs, ","),
			"--redis-prefix", testenv.Prefix(tb), "--redis-stripes", "8", "--drain-delay", "0s", "--report-interval", cmp.Or(os.Getenv(envInterval), "200ms"),
		}
		if w.alone {
			args = append(args, "--policies", w.file())
		} else {
			args = append(args, "--coordinator", strings.Join(w.coordinatorsOf(s, time.Duration(1+i*12)*time.Millisecond), ","))
		}
		s.node = start(tb, "region "+name, args...)
		client, err := rpc.NewClient(rpc.ClientConfig{URL: s.node.url, Timeout: callTimeout, HTTPClient: w.http})
		if err != nil {
			tb.Fatal(err)
		}
		s.client = client
	}
}

// redisOf returns where a region finds its Redis.
func (w *world) redisOf(s *site, own *testenv.Cluster) (addrs []string) {
	if own == nil {
		return testenv.RedisCluster(w.tb).Addrs
	}
	var ports []string
	for _, addr := range own.Addrs {
		l := newLink(w.tb, w.r, addr)
		_, port, err := net.SplitHostPort(l.addr)
		if err != nil {
			w.tb.Fatal(err)
		}
		s.redis, addrs, ports = append(s.redis, l), append(addrs, l.addr), append(ports, port)
	}
	own.Announce(w.tb, ports)
	return addrs
}

// coordinatorsOf returns where a region finds the coordinators: each behind a link that
// is as slow as a distance.
func (w *world) coordinatorsOf(s *site, distance time.Duration) (urls []string) {
	for _, c := range w.coordinators {
		l := newLink(w.tb, w.r, strings.TrimPrefix(c.url, "http://"))
		l.delay(w.tb, distance)
		s.coordinators, urls = append(s.coordinators, l), append(urls, "http://"+l.addr)
	}
	return urls
}

func (w *world) ready(url string) bool { return w.get(url+"/readyz", nil) }

// get reads a page, into a value unless that is nil, and reports whether it could.
func (w *world) get(url string, into any) bool {
	ctx, cancel := context.WithTimeout(w.tb.Context(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := w.http.Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return false
	}
	return into == nil || json.NewDecoder(response.Body).Decode(into) == nil
}

// status is what a coordinator says of itself.
type status struct {
	Leadership struct {
		Serving bool  `json:"serving"`
		Epoch   int64 `json:"epoch"`
	} `json:"leadership"`
	Regions []struct {
		Region     string    `json:"region"`
		LastReport time.Time `json:"lastReport"`
		Pending    int       `json:"pending"`
	} `json:"regions"`
}

// heard says when a region last reported.
func (s status) heard(region string) time.Time {
	for _, r := range s.Regions {
		if r.Region == region {
			return r.LastReport
		}
	}
	return time.Time{}
}

// moving says whether a grant is on its way that is not acknowledged.
func (s status) moving() bool {
	for _, r := range s.Regions {
		if r.Pending > 0 {
			return true
		}
	}
	return false
}

func (w *world) status(i int) (s status) {
	if !w.get(w.coordinators[i].url+"/status.json", &s) {
		return status{}
	}
	return s
}

// hearsAll says whether a coordinator leads and has heard every region since it does.
func (w *world) hearsAll(s status) bool { return w.hears(s) == len(w.sites) }

// hears returns how many regions a coordinator that leads has heard.
func (w *world) hears(s status) (n int) {
	for _, site := range w.sites {
		if s.Leadership.Serving && !s.heard(site.name).IsZero() {
			n++
		}
	}
	return n
}

// leader waits until a coordinator leads and has heard all regions.
func (w *world) leader() (index int, s status) {
	index = -1
	eventually(w.tb, "a coordinator leads and hears all regions", func() bool {
		for i := range w.coordinators {
			if s = w.status(i); w.hearsAll(s) {
				index = i
				return true
			}
		}
		return false
	})
	return index, s
}
