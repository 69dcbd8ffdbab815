// Package document reads and writes policy documents: YAML and JSON text on one
// side, validated quota policies on the other.
//
// The language is the small part of YAML that people write by hand: mappings,
// lists and scalars. Anchors, aliases, merge keys, tags, explicit keys and
// several documents in one file are refused, so that no document expands to
// more than its own size and every value stands where it is used.
package document
