-- Writes the region record of one stripe: a dataset gets its id.
--
-- KEYS  the region record
-- ARGV  1 the dataset's id, 2 1 when the region never had another dataset, so that
--       nothing can have been spent under one; else 0
-- Reply the record in force
--
-- A stripe that has a record keeps its shares and learns the new id. A stripe
-- without one, in a region that is not new, has lost its data: tokens that were
-- given away may still be on their way, so it starts empty and accrues nothing for
-- 1.05 s.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local text = redis.call('GET', KEYS[1])
local epoch, term, lease, hot = 0, 0, 0, 0
if text then
  epoch, term, lease, hot = string.match(text, '^[^:]+:(%d+):(%d+):(%d+):(%d+)$')
elseif ARGV[2] ~= '1' then
  hot = string.format('%.0f', now + 1050000)
end
text = table.concat({ARGV[1], epoch, term, lease, hot}, ':')
redis.call('SET', KEYS[1], text)
return text
