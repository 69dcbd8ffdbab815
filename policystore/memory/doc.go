// Package memory keeps policies in the memory of one process: for development,
// for a region that runs from a file, and for tests. Nothing survives a restart.
package memory
