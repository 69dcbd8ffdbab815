package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testenv"
)

// leadership is what a coordinator's status says of the election.
type leadership struct {
	Serving bool  `json:"serving"`
	Epoch   int64 `json:"epoch"`
}

func leaderOf(ctx context.Context, client *http.Client, url string) leadership {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/status.json", nil)
	if err != nil {
		return leadership{}
	}
	response, err := client.Do(request)
	if err != nil {
		return leadership{}
	}
	defer func() { _ = response.Body.Close() }()
	var status struct {
		Leadership leadership `json:"leadership"`
		Regions    []struct {
			LastReport time.Time `json:"lastReport"`
		} `json:"regions"`
	}
	if json.NewDecoder(response.Body).Decode(&status) != nil {
		return leadership{}
	}
	// It serves when it leads and a region has reported to it.
	heard := false
	for _, r := range status.Regions {
		heard = heard || !r.LastReport.IsZero()
	}
	status.Leadership.Serving = status.Leadership.Serving && heard
	return status.Leadership
}

// Two coordinators over one database: when the one that leads is killed, the other leads
// under a later epoch, hears the region, and no check notices.
func TestKilledLeaderIsReplaced(t *testing.T) {
	cluster, url := testenv.RedisCluster(t), testenv.Postgres(t)
	if _, errs, code := weir(t, "migrate", "up", "--postgres", url); code != 0 {
		t.Fatal(errs)
	}
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var coordinators []*process
	var urls []string
	for range 2 {
		c := start(t, "coordinator", "--listen", "127.0.0.1:0", "--regions", "a", "--postgres", url, "--auth", "none", "--drain-delay", "0s")
		coordinators, urls = append(coordinators, c), append(urls, c.url)
	}
	if out, errs, code := weir(t, "policy", "apply", "--coordinator", urls[0], "--yes", "-f", writeFile(t, processPolicies)); code != 0 {
		t.Fatal(out, errs)
	}
	node := start(t, "regional", "--listen", "127.0.0.1:0", "--region", "a", "--coordinator", strings.Join(urls, ","),
		"--redis", strings.Join(cluster.Addrs, ","), "--redis-prefix", testenv.Prefix(t), "--redis-stripes", "8",
		"--drain-delay", "0s", "--report-interval", "200ms")

	leader := -1
	var before leadership
	eventually(t, "one of the two leads and hears the region", func() bool {
		for i, u := range urls {
			if l := leaderOf(t.Context(), client, u); l.Serving {
				leader, before = i, l
			}
		}
		return leader >= 0
	})
	eventually(t, "the region has its share", func() bool {
		answer, err := call(t.Context(), client, node.url, `{"attributes":{"route":"POST /jobs","tenant":"first"}}`)
		return err == nil && answer["allowed"] == true
	})
	if err := coordinators[leader].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = coordinators[leader].cmd.Wait()
	killed := time.Now()
	var after leadership
	calls := 0
	eventually(t, "the other leads", func() bool {
		body := fmt.Sprintf(`{"attributes":{"route":"POST /jobs","tenant":"t%d"}}`, calls)
		answer, err := call(t.Context(), client, node.url, body)
		if err != nil || answer["allowed"] != true {
			t.Errorf("a check while nobody leads: %v, %v", answer, err)
		}
		calls++
		after = leaderOf(t.Context(), client, urls[1-leader])
		return after.Serving
	})
	if took := time.Since(killed); took > 12*time.Second {
		t.Errorf("the lead was taken over after %s, want under 12 s", took)
	}
	if after.Epoch <= before.Epoch {
		t.Errorf("the new leader's epoch is %d, the old one's %d", after.Epoch, before.Epoch)
	}
}
