package quota

import (
	"errors"
	"fmt"
)

// Sentinels that adapters translate at their edge. Being denied is a Decision,
// not an error.
var (
	// ErrInvalid: the caller's input is wrong; the text names the field and the remedy.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: no such policy, revision or override.
	ErrNotFound = errors.New("not found")
	// ErrConflict: somebody else changed what the caller wanted to change.
	ErrConflict = errors.New("conflict")
	// ErrUnavailable: a store or a peer did not answer.
	ErrUnavailable = errors.New("unavailable")
	// ErrUnauthenticated: the caller did not say who it is, or not so that it can be believed.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrForbidden: the caller is known and may not do this.
	ErrForbidden = errors.New("forbidden")
	// ErrOverloaded: a bounded queue is full.
	ErrOverloaded = errors.New("overloaded")
	// ErrUninitialised: the stripe holds no region record yet: it is new, or has lost its data.
	ErrUninitialised = errors.New("stripe uninitialised")
	// ErrFenced: a newer leader or a newer dataset exists; the caller's writes are refused.
	ErrFenced = errors.New("fenced")
	// ErrRequestID: the request id is remembered for a request of another shape.
	ErrRequestID = fmt.Errorf("request_id: it was used for another request within the last minute; use a new one: %w", ErrInvalid)
)
