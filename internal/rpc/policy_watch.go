package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	weirv1 "github.com/weirhq/weir/gen/weir/v1"
	"github.com/weirhq/weir/policystore"
	"github.com/weirhq/weir/quota"
)

// DefaultHeartbeat is how often a stream without news shows that it lives.
const DefaultHeartbeat = 5 * time.Second

// sendTimeout bounds how long a node may take to read one message; one that
// takes longer is cut off and begins anew from where it was.
const sendTimeout = 30 * time.Second

// errStopping ends the streams of a server that stops.
var errStopping = fmt.Errorf("%w: the server is stopping", quota.ErrUnavailable)

// watcher is one stream. Nothing is queued for it: when it has sent something it
// looks at the newest state, and so a node that reads slowly skips what was between.
type watcher struct {
	feed    *feed
	region  quota.Region
	stream  *connect.ServerStream[weirv1.WatchPoliciesResponse]
	control *http.ResponseController

	instance string
	// What the node has; -1 is nothing.
	revision, overrides int64
}

func (h *policyHandler) WatchPolicies(
	ctx context.Context, m *weirv1.WatchPoliciesRequest, stream *connect.ServerStream[weirv1.WatchPoliciesResponse],
) error {
	var p problems
	region := p.region("region", m.GetRegion())
	if len(m.GetKnown().GetInstance()) > maxInstance {
		p.add("known.instance", "%d bytes long; use at most %d", len(m.GetKnown().GetInstance()), maxInstance)
	}
	if err := p.err(); err != nil {
		return err
	}
	if err := mayActFor(ctx, region); err != nil {
		return err
	}
	leave, err := h.feed.join() //nolint:contextcheck // it reads for all watchers, not for this one
	if err != nil {
		return err
	}
	defer leave()
	h.changes.watchers.Inc()
	defer h.changes.watchers.Dec()
	w := &watcher{
		feed: h.feed, region: region, stream: stream, control: controlOf(ctx),
		instance: h.cfg.Instance, revision: -1, overrides: -1,
	}
	if known := m.GetKnown(); known != nil && known.GetInstance() == w.instance {
		w.revision, w.overrides = known.GetRevision(), known.GetOverrides()
	}
	return h.serve(ctx, w)
}

// serve keeps one node up to date until it leaves or the server stops.
func (h *policyHandler) serve(ctx context.Context, w *watcher) error {
	interval := h.cfg.Heartbeat
	if interval <= 0 {
		interval = DefaultHeartbeat
	}
	// The request has been read; from here on the node only listens.
	w.unbound()
	if err := w.heartbeat(interval, false); err != nil {
		return lost(ctx, err)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		state, changed := h.feed.latest()
		behind := state == nil
		if state != nil {
			err := w.catchUp(ctx, state)
			if _, ok := errors.AsType[*sendError](err); ok {
				return lost(ctx, err)
			}
			// The store did not answer; the node keeps what it has and we try again.
			behind = err != nil
		}
		select {
		case <-changed:
		case <-ticker.C:
			if err := h.stillAllowed(ctx); err != nil {
				return err
			}
			if err := w.heartbeat(interval, !behind); err != nil {
				return lost(ctx, err)
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-h.stopping:
			return errStopping
		}
	}
}

// stillAllowed ends a stream whose token was revoked or has expired. A store
// that is away ends none.
func (h *policyHandler) stillAllowed(ctx context.Context) error {
	p, ok := principalOf(ctx)
	if !ok || h.auth == nil {
		return nil
	}
	if err := h.auth.confirm(ctx, p); errors.Is(err, quota.ErrUnauthenticated) {
		return err
	}
	return nil
}

// sendError tells what could not be sent from what could not be read.
type sendError struct{ err error }

func (e *sendError) Error() string { return e.err.Error() }

func (e *sendError) Unwrap() error { return e.err }

// lost says why a node cannot be sent anything: it has left, or it does not read.
func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %v", quota.ErrUnavailable, err) //nolint:errorlint // connect's type would pass for an answer
}

// catchUp sends what the node lacks of a state, closed by a position.
func (w *watcher) catchUp(ctx context.Context, state *feedState) error {
	set, err := state.set(ctx, w.region)
	if err != nil {
		return err
	}
	sent := false
	if set.number != w.revision {
		if err := w.send(set.message); err != nil {
			return err
		}
		sent = true
	}
	position, sentOverrides, err := w.sendOverrides(ctx, state)
	if err != nil {
		// Had the set been sent, it is sent again in the next round: without a
		// position the node has not applied it.
		return err
	}
	w.revision, w.overrides = set.number, position
	if !sent && !sentOverrides {
		return nil
	}
	return w.send(&weirv1.WatchPoliciesResponse{Position: w.position()})
}

// sendOverrides sends the changes since the node's position, or everything.
func (w *watcher) sendOverrides(ctx context.Context, state *feedState) (position int64, sent bool, err error) {
	position = w.overrides
	all := position < 0
	for {
		if all {
			listing, err := w.feed.overrides(ctx)
			if err != nil {
				return 0, sent, err
			}
			for _, part := range listing.parts {
				if err := w.send(part); err != nil {
					return 0, sent, err
				}
			}
			position, sent, all = listing.position, true, false
		}
		if position == state.at.Overrides {
			return position, sent, nil
		}
		step, err := state.changesAfter(ctx, position)
		switch {
		case errors.Is(err, policystore.ErrCompacted):
			all = true
			continue
		case err != nil:
			return 0, sent, err
		case step.message != nil:
			if err := w.send(step.message); err != nil {
				return 0, sent, err
			}
			position, sent = step.position, true
		}
		if !step.more {
			return position, sent, nil
		}
	}
}

func (w *watcher) position() *weirv1.WatchPosition {
	return &weirv1.WatchPosition{Instance: w.instance, Revision: w.revision, Overrides: w.overrides}
}

// heartbeat vouches for the node's position only when it is known to be the newest.
func (w *watcher) heartbeat(interval time.Duration, current bool) error {
	m := &weirv1.WatchPoliciesResponse{Event: &weirv1.WatchPoliciesResponse_Heartbeat{
		Heartbeat: &weirv1.Heartbeat{Interval: durationpb.New(interval)},
	}}
	if current && w.feed.trusted() {
		m.Position = w.position()
	}
	return w.send(m)
}

func (w *watcher) send(m *weirv1.WatchPoliciesResponse) error {
	if w.control != nil {
		_ = w.control.SetWriteDeadline(time.Now().Add(sendTimeout)) // as in boundCall
	}
	if err := w.stream.Send(m); err != nil {
		return &sendError{err}
	}
	return nil
}

// unbound lifts the deadline that bounds the reading of a request: a connection
// of HTTP/1.1 is read on for as long as the stream goes, and an error of that
// would end it.
func (w *watcher) unbound() {
	if w.control != nil {
		_ = w.control.SetReadDeadline(time.Time{}) // as in boundCall
	}
}
