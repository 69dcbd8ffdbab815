-- Adds one node's demand to what the region's nodes have offered since it was last taken.
--
-- KEYS  the region's demand, a hash
-- ARGV  1 how long it may wait for an agent, ms; 2 most fields it may hold
--       then per quota: policy NUL key, offered, admitted (milli-tokens)
-- Reply how many quotas were left out because the hash is full
--
-- A field is "o" or "a" before the quota's name. The bound keeps a region without an
-- agent from growing; what is left out is only measurement.

local call = redis.call
local held, left_out = call('HLEN', KEYS[1]), 0
for i = 3, #ARGV, 3 do
  local name = ARGV[i]
  if held < tonumber(ARGV[2]) or call('HEXISTS', KEYS[1], 'o' .. name) == 1 then
    call('HINCRBY', KEYS[1], 'o' .. name, ARGV[i + 1])
    call('HINCRBY', KEYS[1], 'a' .. name, ARGV[i + 2])
    held = held + 2
  else
    left_out = left_out + 1
  end
end
call('PEXPIRE', KEYS[1], ARGV[1])
return left_out
