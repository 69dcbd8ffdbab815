// Package app wires the roles of Weir: it turns a configuration into a coordinator, a
// regional node, or a whole deployment in one process, and runs it until it is told
// to stop or a part fails.
//
// Every part is started by one straight function that registers a named stop step
// right after it has made something. A later failure and an ordinary stop run the
// same steps, newest first: first the server becomes not ready and drains, then what
// it called is closed, then the connections below that.
package app
