// Package postgres keeps policies in PostgreSQL 15 or newer.
//
// Every change is one transaction that first locks the one row of store_state.
// So changes are serial across all coordinators, revision and audit numbers have
// no gaps, and positions of override changes become visible in their order.
//
// A policy is stored once for each version of it, with the revisions it belongs
// to; a revision of ten thousand policies of which one changed adds one row. What
// belongs to a committed revision never changes, so reading one needs neither a
// lock nor a transaction, and the last one read is kept in memory.
//
// Changes are announced by NOTIFY. That is a wake-up and carries nothing: whoever
// waits reads the tables, and polls slowly besides. Channels belong to the whole
// database, so the name of ours carries the schema.
//
// When the connection is lost while a change is being committed the outcome is
// unknown and reported as unavailable. A caller that states the revision it
// expects may try again: it gets a conflict that names itself.
package postgres
