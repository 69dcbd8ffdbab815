// Package migrations holds the schema of Postgres and brings a database to it.
//
// A file that was released is never edited; a change is a new file. Every file
// runs in one transaction, so that a crash in the middle leaves nothing behind,
// and under a session-level advisory lock, so that of several processes one
// migrates while the others wait (a pooler in transaction mode cannot be used
// for it). A released file keeps what older coordinators read and write working,
// since old and new ones run side by side during an upgrade.
//
// Everything lives in the schema that is first in the connection's search_path.
package migrations
