// Package policystore is the contract for keeping policies: append-only
// revisions of the whole policy set, per-key overrides beside them, and an audit
// row for every change.
//
// A revision is one committed state of the whole set. Revisions are numbered
// from 1 without gaps and are never changed or removed, so that any of them can
// be compared with another and made live again. Revision 0 is the empty set
// that every store begins with.
//
// What a change makes of a set (Plan), the difference of two sets (Compare) and
// what is a valid override (CheckOverrides) are pure functions here; a store adds
// only storage, locking and time. Stores never share memory with their callers:
// what goes in is copied, and what comes out is the caller's own.
//
// Every implementation passes the suite in policystore/storetest.
package policystore
