-- Reads the clock of one stripe and until when its lease lasts. It writes nothing.
--
-- KEYS  the region record
-- Reply {clock, end of the lease}, both in microseconds; the latter is 0 where there
--       never was one. {} when there is no region record.

local clock = redis.call('TIME')
local region = redis.call('GET', KEYS[1])
if not region then return {} end
return {clock[1] * 1000000 + clock[2], tonumber(string.match(region, '^[^:]+:%d+:%d+:(%d+)'))}
