package console

import (
	_ "embed"
	"encoding/json"
	"net/http"
)

//go:embed page.html
var page []byte

// Paths that the console serves.
const (
	PagePath   = "/"
	StatusPath = "/status.json"
)

// policy keeps the page from loading or sending anything anywhere else.
const contentPolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"

// Handler serves the page and, beside it, what status returns as JSON. status may be
// called concurrently and must not block for long.
func Handler(status func() any) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PagePath+"{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", contentPolicy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("GET "+StatusPath, func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(status())
		if err != nil {
			http.Error(w, "the status cannot be shown as JSON: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(body)
	})
	return mux
}
