package lua

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// DefaultPrefix begins every key when the configuration names no other.
const DefaultPrefix = "rl"

func (s *Store) tag(stripe int) string {
	return s.prefix + ":{" + strconv.Itoa(stripe) + "}"
}

func (s *Store) regionKey(stripe int) string { return s.tag(stripe) + "@region" }

func (s *Store) shareKey(stripe int, policy string) string {
	return s.tag(stripe) + "@share:" + policy
}

// trackedKey names the list of a stripe's tracked keys.
func (s *Store) trackedKey(stripe int) string { return s.tag(stripe) + "@tracked" }

// replyKey names a remembered outcome. The id is the caller's and may be a secret of
// any length, so only its hash is kept.
func (s *Store) replyKey(stripe int, requestID string) string {
	sum := sha256.Sum256([]byte(requestID))
	return s.tag(stripe) + "@reply:" + hex.EncodeToString(sum[:16])
}

func (s *Store) stripesKey() string { return s.tag(0) + "@stripes" }
func (s *Store) demandKey() string  { return s.tag(0) + "@demand" }
func (s *Store) takenKey() string   { return s.tag(0) + "@taken" }
func (s *Store) agentKey() string   { return s.tag(0) + "@agent" }
