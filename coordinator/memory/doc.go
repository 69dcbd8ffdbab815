// Package memory keeps the ledger of a coordinator in memory, for development
// and tests. It does not outlive the process, so that a coordinator which starts
// on a new one first has to hear what the regions hold.
package memory
