-- Adds one node's demand to what the region's nodes have offered since it was last taken.
--
-- KEYS  the region's demand, a hash
-- ARGV  1 how long it may wait for an agent, ms; 2 most fields it may hold; 3 most
--       flagged keys of one policy
--       then per quota: the letters of its two fields, policy NUL key, offered, admitted
--       (milli-tokens)
-- Reply how many quotas were left out because the hash is full
--
-- A field is one of the letters before the quota's name: o and a of a policy or one of
-- its busiest keys, f and g of a flagged key, t and u of a tracked one, s and v of what met too low a level. Field n and the
-- policy counts its flagged keys. The bounds keep a region without an agent, or one that
-- is attacked with random keys, from growing; what is left out is only measurement. The
-- total of a policy, which has no key, is never left out.

local call = redis.call
local sub, held, left_out = string.sub, call('HLEN', KEYS[1]), 0
for i = 4, #ARGV, 4 do
  local letters, name = ARGV[i], ARGV[i + 1]
  local offered, admitted = sub(letters, 1, 1) .. name, sub(letters, 2, 2) .. name
  local total = string.byte(name, -1) == 0
  local room = total or call('HEXISTS', KEYS[1], offered) == 1
  if not room and held < tonumber(ARGV[2]) then
    room = true
    if letters == 'fg' then
      local count = 'n' .. sub(name, 1, (string.find(name, '\0', 1, true)))
      room = tonumber(call('HGET', KEYS[1], count) or 0) < tonumber(ARGV[3])
      if room then call('HINCRBY', KEYS[1], count, 1) end
    end
    held = held + 2
  end
  if room then
    call('HINCRBY', KEYS[1], offered, ARGV[i + 2])
    call('HINCRBY', KEYS[1], admitted, ARGV[i + 3])
  else
    left_out = left_out + 1
  end
end
call('PEXPIRE', KEYS[1], ARGV[1])
return left_out
