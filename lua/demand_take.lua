-- Takes the demand of the region and starts counting anew.
--
-- KEYS  the region's demand, a hash; when it was last taken, microseconds
-- ARGV  1 how long to remember the time of this call, ms
-- Reply {microseconds since it was last taken (0 when unknown), field, value, ...}

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local was = redis.call('GET', KEYS[2])
local out = redis.call('HGETALL', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], string.format('%.0f', now), 'PX', ARGV[1])
table.insert(out, 1, was and math.max(0, now - was) or 0)
return out
