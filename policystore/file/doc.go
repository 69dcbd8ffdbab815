// Package file keeps a policy store equal to a YAML file.
//
// The file's directory is watched, not the file, because most ways to change a
// file replace it: an atomic rename, an editor's temporary file, the symlink
// swap of a Kubernetes ConfigMap. What happened is not read from the events;
// they only say when to look. After a quiet moment the file is read, and its
// content decides:
//
//	content is that of the revision in force  -> nothing
//	content is good and differs               -> one new revision, by "file:<name>"
//	content is bad, empty, or cannot be read  -> refused; the store is left alone
//	the store does not take it                -> failed; tried again at each poll
//
// A slow poll looks as well, for what the events do not show: network file
// systems, a directory that was itself replaced, a kernel out of watches. Each
// distinct content is reported once, however often it is looked at.
//
// A file that goes away is refused like a bad one: taking all limits away must
// be said ("policies: []"), not guessed from an absence.
package file
