package lua

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// virtual stands in for redis.call in scripts of a store with a clock of its own: time
// is a key of the stripe, and keys expire by it.
const virtual = `
local real = redis.call
local tag = string.match(KEYS[1], '^(.-{%d+})')
local T = tonumber(real('GET', tag .. '@testclock'))
local expiries = tag .. '@testexpiry'
local all = real('HGETALL', expiries)
for i = 1, #all, 2 do
  if tonumber(all[i + 1]) < T then
    real('DEL', all[i])
    real('HDEL', expiries, all[i])
  end -- expired
end
local function virtual(name, key, value, option, px, ...)
  if name == 'TIME' then
    return {string.format('%.0f', math.floor(T / 1000000)), string.format('%.0f', T % 1000000)}
  elseif name == 'DEL' then
    real('HDEL', expiries, key)
  elseif name == 'SET' and option == 'PX' then
    local ms = tonumber(px)
    if not ms or ms <= 0 or ms ~= math.floor(ms) or ms > 9e15 then error('bad expiry ' .. px) end
    real('HSET', expiries, key, string.format('%.0f', T + ms * 1000))
    return real('SET', key, value)
  elseif name == 'SET' and option == 'KEEPTTL' then
    return real('SET', key, value)
  elseif name == 'SET' and option == nil then
    real('HDEL', expiries, key)
  end
  return real(unpack({name, key, value, option, px, ...}))
end
`

// OpenVirtual opens a store whose scripts read the clock that SetClock sets.
func OpenVirtual(ctx context.Context, cfg Config) (*Store, error) {
	return open(ctx, cfg, func(source string) string {
		return virtual + strings.ReplaceAll(source, "redis.call", "virtual")
	})
}

// SetClock sets the clock of one stripe, in microseconds since 1970.
func (s *Store) SetClock(ctx context.Context, stripe int, us int64) error {
	return s.rdb.Set(ctx, s.tag(stripe)+"@testclock", us, 0).Err()
}

// Wipe deletes every key of a stripe but the clock, as a lost shard does.
func (s *Store) Wipe(ctx context.Context, stripe int) error {
	keys, err := s.KeysOf(ctx, stripe)
	if err != nil || len(keys) == 0 {
		return err
	}
	return s.rdb.Del(ctx, keys...).Err()
}

// KeysOf lists the keys of a stripe.
func (s *Store) KeysOf(ctx context.Context, stripe int) ([]string, error) {
	node, err := s.rdb.MasterForKey(ctx, s.regionKey(stripe))
	if err != nil {
		return nil, err
	}
	var keys []string
	it := node.Scan(ctx, 0, s.tag(stripe)+"[@:]*", 1000).Iterator()
	for it.Next(ctx) {
		if !strings.HasSuffix(it.Val(), "@testclock") && !strings.HasSuffix(it.Val(), "@stripes") {
			keys = append(keys, it.Val())
		}
	}
	return keys, it.Err()
}

// Client is the store's client, to look at what is in Redis.
func (s *Store) Client() *redis.ClusterClient { return s.rdb }

// ShareKey, RegionKey and ReplyKey name keys of a stripe.
func (s *Store) ShareKey(stripe int, policy string) string { return s.shareKey(stripe, policy) }
func (s *Store) RegionKey(stripe int) string               { return s.regionKey(stripe) }
func (s *Store) ReplyKey(stripe int, id string) string     { return s.replyKey(stripe, id) }
func (s *Store) StripesKey() string                        { return s.stripesKey() }

// BucketKey names a bucket of a stripe.
func (s *Store) BucketKey(stripe int, name string) string {
	return fmt.Sprintf("%s:%s", s.tag(stripe), name)
}

// Hashes returns what the scripts are called by.
func (s *Store) Hashes() map[string]string {
	return map[string]string{"acquire": s.scripts.acquire.sha, "refund": s.scripts.refund.sha, "apply": s.scripts.apply.sha}
}

// Decode and AddHeld are what a fuzzer feeds.
var Decode = decode

// AddHeld reads one share record as Held does.
func AddHeld(text string, now int64) error {
	var h heldShare
	return h.add(text, now)
}

// ParseRegion reads a region record.
var ParseRegion = parseRegion
