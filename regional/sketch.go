package regional

import "github.com/weirhq/weir/quota"

// sketchKeys is how many of a policy's busiest keys one shard keeps apart. A key
// that makes up more than 1/sketchKeys of the policy's load is never missed.
const sketchKeys = 64

// sketch finds the busiest keys of a stream in bounded memory (Space-Saving,
// weighted by cost). The zero value is empty and ready. It is not safe for
// concurrent use.
type sketch struct {
	// The hashes lie together, so that finding a key reads one or two cache
	// lines and not the strings.
	hashes   []uint64
	counters []counter
}

// counter is one key of a sketch. The key's true offered load is between
// offered-inherited and offered.
type counter struct {
	key       string
	offered   quota.Tokens
	admitted  quota.Tokens
	inherited quota.Tokens
}

// add counts cost under key, whose hash the caller has at hand. It allocates
// only while the sketch grows to its full size.
func (s *sketch) add(hash uint64, key string, cost quota.Tokens, admitted bool) {
	i := s.find(hash, key)
	if i < 0 {
		i = s.place(hash, key)
	}
	c := &s.counters[i]
	c.offered += cost
	if admitted {
		c.admitted += cost
	}
}

func (s *sketch) find(hash uint64, key string) int {
	for i, h := range s.hashes {
		if h == hash && s.counters[i].key == key {
			return i
		}
	}
	return -1
}

// place makes room for a new key: a free counter, or that of the least busy
// key, whose count the newcomer inherits because it may have been in it before.
func (s *sketch) place(hash uint64, key string) int {
	if len(s.counters) < sketchKeys {
		s.hashes = append(s.hashes, hash)
		s.counters = append(s.counters, counter{key: key})
		return len(s.counters) - 1
	}
	least := 0
	for i := range s.counters {
		if s.counters[i].offered < s.counters[least].offered {
			least = i
		}
	}
	floor := s.counters[least].offered
	s.hashes[least] = hash
	s.counters[least] = counter{key: key, offered: floor, inherited: floor}
	return least
}

// drain calls yield for each key with what is certain of it, and empties the
// sketch. What a key may have inherited from others is left out: an attacker's
// random keys must not look like one busy key.
func (s *sketch) drain(yield func(key string, offered, admitted quota.Tokens)) {
	for i := range s.counters {
		c := &s.counters[i]
		yield(c.key, c.offered-c.inherited, c.admitted)
		*c = counter{}
	}
	s.hashes = s.hashes[:0]
	s.counters = s.counters[:0]
}
