package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
)

// Readiness is whether a node should receive traffic, and the state of its
// parts. A node whose store is away is still ready: it answers by the policies'
// failure modes, which is better than no answer.
type Readiness struct {
	Ready bool
	// Detail is shown as JSON; it must not hold secrets.
	Detail map[string]any
}

// readiness is what /readyz says.
type readiness struct {
	Ready  bool           `json:"ready"`
	Status string         `json:"status"`
	Detail map[string]any `json:"detail,omitempty"`
}

func (s *Server) readiness(ctx context.Context) readiness {
	out := readiness{Ready: true}
	if s.cfg.Ready != nil {
		r := s.cfg.Ready(ctx)
		out.Ready, out.Detail = r.Ready, r.Detail
	}
	switch {
	case s.draining.Load():
		out.Ready, out.Status = false, "draining"
	case out.Ready:
		out.Status = "ready"
	default:
		out.Status = "not ready"
	}
	return out
}

// serveHealthz says that the process lives. It depends on nothing, so that no
// outage of a store makes an orchestrator restart the nodes.
func serveHealthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

func (s *Server) serveReadyz(w http.ResponseWriter, r *http.Request) {
	state := s.readiness(r.Context())
	body, err := json.Marshal(state)
	if err != nil {
		s.cfg.Logger.ErrorContext(r.Context(), "readiness detail is not JSON", "error", err)
		body = fmt.Appendf(nil, `{"ready":%t,"status":%q}`, state.Ready, state.Status)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !state.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(append(body, '\n'))
}

// healthChecker is the gRPC health service over the same readiness.
type healthChecker struct {
	server *Server
	served []string
}

func (h *healthChecker) Check(ctx context.Context, r *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if r.Service != "" && !slices.Contains(h.served, r.Service) {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("unknown service %.64q", r.Service))
	}
	status := grpchealth.StatusNotServing
	if h.server.readiness(ctx).Ready {
		status = grpchealth.StatusServing
	}
	return &grpchealth.CheckResponse{Status: status}, nil
}
