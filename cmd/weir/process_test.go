package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
)

// process is one role in a process of its own.
type process struct {
	cmd *exec.Cmd
	url string
}

// listening finds the address in the line that a server logs when it accepts.
var listening = regexp.MustCompile(`msg="?serving"? address=(\S+)`)

// start runs the binary and waits until it serves.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	weir, err := exec.LookPath("weir") // put there by testscript.Main
	if err != nil {
		t.Fatal(err)
	}
	// Not t.Context(): that ends before the cleanup, which asks the process to stop.
	p := &process{cmd: exec.CommandContext(context.Background(), weir, args...)}
	logs, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	served := make(chan string, 1)
	var all strings.Builder
	go func() {
		defer close(served)
		for lines := bufio.NewScanner(logs); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				served <- m[1]
				_, _ = io.Copy(io.Discard, logs)
				return
			}
			all.WriteString(lines.Text() + "\n")
		}
	}()
	address, ok := <-served
	if !ok {
		t.Fatalf("weir %s does not serve: %v\n%s", args[0], p.cmd.Wait(), all.String())
	}
	p.url = "http://" + address
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.terminate(t)
		}
	})
	return p
}

// terminate asks the process to stop, as an orchestrator does, and wants exit code 0.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("%s: %v", strings.Join(p.cmd.Args[1:3], " "), err)
	}
}

func call(ctx context.Context, client *http.Client, url, body string) (map[string]any, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/weir.v1.LimiterService/Check", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", response.Status, text)
	}
	var answer map[string]any
	return answer, json.Unmarshal(text, &answer)
}

func ready(ctx context.Context, client *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// eventually asks again until the answer is yes.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-tick.C {
		if yes() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

const processPolicies = `
policies:
  - id: jobs
    match: { route: "POST /jobs" }
    key: [tenant]
    algorithm: token-bucket
    capacity: 30
    refill: 30/1d
    storeDeadline: 5s
    onStoreFailure: closed
`

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A coordinator and three regions in processes of their own share one limit over a real
// Redis Cluster (each region under its own prefix), and stop without failing a call.
func TestProcessesShareOneLimit(t *testing.T) {
	cluster := testenv.RedisCluster(t)
	policies := writeFile(t, processPolicies)
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	coordinator := start(t, "coordinator", "--listen", "127.0.0.1:0", "--regions", "a,b,c",
		"--policies", policies, "--rebalance-interval", "1s", "--drain-delay", "0s")
	var nodes []*process
	for _, region := range []string{"a", "b", "c"} {
		nodes = append(nodes, start(t, "regional", "--listen", "127.0.0.1:0", "--region", region,
			"--coordinator", coordinator.url, "--redis", strings.Join(cluster.Addrs, ","),
			"--redis-prefix", testenv.Prefix(t), "--redis-stripes", "16", "--policies", policies, "--drain-delay", "1s"))
	}
	for _, n := range nodes {
		eventually(t, "every node is ready", func() bool { return ready(t.Context(), client, n.url) })
	}

	// Whatever the split does meanwhile, the world admits the limit and no more.
	body := `{"attributes":{"route":"POST /jobs","tenant":"acme"}}`
	admitted := 0
	var last map[string]any
	for i := range 120 {
		answer, err := call(t.Context(), client, nodes[i%3].url, body)
		if err != nil {
			t.Error(err)
		} else if answer["allowed"] == true {
			admitted++
		}
		last = answer
	}
	if admitted > 30 {
		t.Errorf("three regions admitted %d, the limit is 30", admitted)
	}
	if admitted < 6 {
		t.Errorf("three regions admitted %d together, less than their floors; the last answer is %v", admitted, last)
	}
	stopUnderLoad(t, client, nodes, body)
}

// stopUnderLoad stops a node while clients that watch its readiness call it.
func stopUnderLoad(t *testing.T, client *http.Client, nodes []*process, body string) {
	t.Helper()
	var calls, stopped atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ready(t.Context(), client, nodes[0].url) {
				if _, err := call(t.Context(), client, nodes[0].url, body); err != nil {
					t.Errorf("a call failed while the node stopped: %v", err)
					return
				}
				calls.Add(1)
			}
			stopped.Add(1)
		})
	}
	eventually(t, "the load runs", func() bool { return calls.Load() > 100 })
	nodes[0].terminate(t)
	clients.Wait()
	if stopped.Load() != 4 {
		t.Errorf("%d of 4 clients saw the node become not ready", stopped.Load())
	}
}
