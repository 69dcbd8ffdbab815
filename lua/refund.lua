-- Gives back tokens that an attempt took. A bucket is never lifted above what its
-- capacity allows at the next check; a log drops entries.
--
-- KEYS  per quota its bucket; last the remembered outcome to forget (only when
--       ARGV[1] is 1)
-- ARGV  1 1 when the last key is a remembered outcome, else 0
--       then per quota: kind (as in acquire.lua, 1 to 6), amount in milli-tokens,
--       the instant of the attempt in microseconds (0 when unknown), and the
--       capacity that a level must not pass
-- Reply 1
--
-- A log that knows the instant drops exactly the entries of that attempt. Else it
-- drops its oldest: those that stay leave later than the dropped ones would have,
-- so the window is never counted too low.

local call, KEYS, ARGV = redis.call, KEYS, ARGV
local k, a = 1, 2

local function stamp(t)
  local bytes = {}
  for i = 7, 1, -1 do
    bytes[i] = t % 256
    t = (t - bytes[i]) / 256
  end
  return string.char(unpack(bytes))
end

-- Removes up to n entries: those with the given stamp, or the oldest.
local function drop(entries, n, at)
  if at == 0 then
    return string.sub(entries, n * 7 + 1)
  end
  local mark, kept = stamp(at), {}
  for i = 1, #entries, 7 do
    local entry = string.sub(entries, i, i + 6)
    if n > 0 and entry == mark then
      n = n - 1
    else
      kept[#kept + 1] = entry
    end
  end
  return table.concat(kept)
end

-- Behind its own share record, a tracked key has what any key has; it has no TTL.
local function put(head, key, value)
  if head == '' then
    call('SET', key, value, 'KEEPTTL')
  else
    call('SET', key, head .. value)
  end
end

while a <= #ARGV do
  local kind, amount, at = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local key = KEYS[k]
  local value, head = call('GET', key), ''
  if value and string.byte(value) == 84 then
    local own, rest = string.match(value, '^(T%d+:%d+:%d+:%d+:%d+:%d+:%d+:[%d.]+:%d+:%a:%d+:%d+:%d+:%d+:%d+[|:%d]*;?[%d:.]*#)(.*)$')
    if own then head, value = own, rest end
  end
  local capacity = tonumber(ARGV[a + 3])
  local log = kind == 3 or kind == 4 or kind == 6
  k, a = k + 1, a + 4
  -- An absent bucket is full and an absent log is empty: nothing to give back.
  if value and log and string.sub(value, 1, 1) == 'L' then
    local left = drop(string.sub(value, 2), math.floor(amount / 1000), at)
    if left ~= '' then
      put(head, key, 'L' .. left)
    elseif head ~= '' then
      put(head, key, '')
    else
      call('DEL', key)
    end
  elseif value and not log then
    local x, rest = string.match(value, '^(-?%d+)([@:]%d+)$')
    if x then
      put(head, key, string.format('%.0f', math.min(x + amount, capacity)) .. rest)
    elseif string.match(value, '^-?%d+$') then
      local level = math.min((tonumber(string.sub(value, 1, -11)) or 0) + amount, capacity)
      put(head, key, (level == 0 and '' or string.format('%.0f', level)) .. string.sub(value, -10))
    end
  end
end
if ARGV[1] == '1' then
  call('DEL', KEYS[#KEYS])
end
return 1
