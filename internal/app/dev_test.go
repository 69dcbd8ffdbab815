package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/app"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func startDev(t *testing.T, traffic bool) *app.Dev {
	t.Helper()
	d, err := app.StartDev(t.Context(), app.DevConfig{Host: "127.0.0.1", Traffic: traffic, Rebalance: time.Second}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return d
}

func post(t *testing.T, url, body string) map[string]any {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	return fetch(t, request)
}

func fetch(t *testing.T, request *http.Request) map[string]any {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", request.URL, response.Status, text)
	}
	var answer map[string]any
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatalf("%s: %v in %s", request.URL, err, text)
	}
	return answer
}

// What the README shows: the limit of ten logins holds over all three regions, exactly.
func TestDevSharesOneLimit(t *testing.T) {
	start := time.Now()
	d := startDev(t, false)
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("dev mode took %s to answer", took)
	}
	body := `{"attributes":{"route":"POST /auth/login","ip":"203.0.113.7","username":"ada"}}`
	admitted := 0
	for range 20 {
		for _, region := range d.Regions {
			if post(t, region+"/weir.v1.LimiterService/Check", body)["allowed"] == true {
				admitted++
			}
		}
	}
	if admitted != 10 {
		t.Errorf("three regions admitted %d logins together, want 10", admitted)
	}
}

func TestDevServesTheConsole(t *testing.T) {
	d := startDev(t, true)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.Coordinator+"/status.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	status := fetch(t, request)
	if regions, _ := status["regions"].([]any); len(regions) != 3 {
		t.Errorf("status lists %d regions, want 3", len(regions))
	}
	if traffic, _ := status["traffic"].([]any); len(traffic) != 3 {
		t.Errorf("status lists the clients of %d regions, want 3", len(traffic))
	}
	request.URL.Path = "/"
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	if err != nil || !bytes.Contains(page, []byte("<title>Weir</title>")) {
		t.Errorf("the console is not a page: %v", err)
	}
	if csp := response.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("content security policy is %q", csp)
	}
}

// lines is a writer that hands out what is written, line by line.
type lines struct {
	mu   sync.Mutex
	rest []byte
	out  chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.rest = rest
		select {
		case l.out <- string(line):
		default:
		}
	}
}

func TestDevNarratesEveryRebalance(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out := &lines{out: make(chan string, 1000)}
	done := make(chan error, 1)
	go func() {
		done <- app.RunDev(ctx, app.DevConfig{Host: "127.0.0.1", Traffic: true, Rebalance: time.Second}, quiet(), out)
	}()
	want := []string{"console   http://", "curl -s http://", "demand", "demand"}
	for len(want) > 0 {
		select {
		case line := <-out.out:
			if strings.Contains(line, want[0]) {
				want = want[1:]
			}
		case <-ctx.Done():
			t.Fatalf("never saw %q", want)
		}
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
