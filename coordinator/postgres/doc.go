// Package postgres keeps the ledger of the coordinators in PostgreSQL 15 or newer,
// and is where they elect the one that leads.
//
// # Fencing
//
// The one row of ledger_state holds the epoch. Load raises it in a statement of
// its own; Commit is one statement that locks the row, and writes only while the
// epoch is its own. So a commit of an earlier epoch is either in the ledger before
// Load reads it, or refused for ever. Nobody has to know whether the earlier leader
// still runs: Load is the fence.
//
// Each statement has reached the server whole before it takes a lock, and each is a
// transaction. A process that is paused, or cut off, between two statements
// therefore holds no lock that its successor would wait for.
//
// The outcome of a commit whose connection breaks is unknown, and the server may
// still be at it. Commits are numbered within their epoch: before the next one, the
// number is raised, which waits for the late one or refuses it. An older state of
// a row never replaces a newer one.
//
// # Lost commits
//
// All of this takes a commit for durable, which a fail-over to an asynchronous
// standby, or a restore from a backup, breaks. It shows when the number or the epoch
// in the database is lower than one that was confirmed, or when a region follows a
// later epoch than the ledger has ever begun. The ledger is then marked lossy and a
// new epoch begins: rows are kept, nothing grows until every region has reported all
// it holds. Where nothing shows it, as when the leader has died with the primary, an
// operator who knows says so: Distrust. With a synchronous standby nothing is lost.
//
// The sum of the bounds of a quota is not checked here: while a lowered limit waits
// for acknowledgements it may rightly be above, and rows do not tell that from a fault.
package postgres
