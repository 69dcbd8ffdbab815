// Package console is the web page that shows how the limits are split between the
// regions right now. It is one page without dependencies, drawn from the status that
// the coordinator also serves as JSON.
package console
