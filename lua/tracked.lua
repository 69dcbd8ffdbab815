-- Says what a stripe holds of tracked keys.
--
-- KEYS  their buckets
-- Reply per key {version, share capacity, share refill, period, entries of a log that
--       are inside its window, entries that may still stay from a larger share,
--       surrendered by the last grant, and how the key's quota follows from its policy's:
--       its limit, the policy's limit (both 0 while no attempt has told)}; {} for a key
--       that has no share record of its own. Periods are microseconds, entries a count,
--       all else milli-tokens.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local held = redis.call('MGET', unpack(KEYS))
local out = {}
for i = 1, #KEYS do
  local rec, scale, inner = string.match(held[i] or '', '^T(%d+:%d+:%d+:%d+:%d+:%d+:%d+:[%d.]+:%d+:%a:%d+:%d+:%d+:%d+:%d+[|:%d]*)(;?[%d:.]*)#(.*)$')
  out[i] = {}
  if rec then
    local version, c, r, period, hold, shrunk =
      string.match(rec, '^%d+:(%d+):(%d+):(%d+):(%d+):%d+:%d+:[%d.]+:%d+:%a:%d+:%d+:(%d+):(%d+)')
    local window, live = math.ceil(period * 1.0005), 0
    if string.byte(inner) == 76 and #inner % 7 == 1 then
      -- In order of time: the first that is inside, and all behind it.
      for at = 2, #inner, 7 do
        local stamp = 0
        for b = at, at + 6 do stamp = stamp * 256 + string.byte(inner, b) end
        if now - stamp < window then
          live = (#inner - at + 1) / 7
          break
        end
      end
    end
    local stays = shrunk ~= '0' and now - shrunk < window and hold or 0
    local limit, base = string.match(scale, '^;(%d+):(%d+)')
    out[i] = {tonumber(version), tonumber(c), tonumber(r), tonumber(period), live, tonumber(stays),
      shrunk == '0' and tonumber(hold) or 0, tonumber(limit) or 0, tonumber(base) or 0}
  end
end
return out
