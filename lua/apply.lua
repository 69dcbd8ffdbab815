-- Applies shares to one stripe: compare-and-set on (epoch, version), and only for
-- the dataset that the coordinator spoke of.
--
-- KEYS  the region record, then per grant: of a policy its share record; of a tracked
--       key its bucket and its policy's share record; last, with any grant of a tracked
--       key, the list of the stripe's tracked keys
-- ARGV  1 the dataset's id; * writes floors where there is no record, and fences nothing
--       2 the leader's epoch
--       then per grant thirteen values: limit's capacity, version, share capacity,
--       share refill, period, permanent capacity, permanent refill, gift, level
--       that untouched buckets start from where there is no record, lifetime of a
--       bucket in ms, its form (n narrow, w wide), what to do (B token bucket, L sliding
--       log, D drop; small letters for a tracked key), 1 when a log without record is
--       blocked for a window after a lost dataset; of a tracked key two more: its name
--       in all regions, and its policy
-- Reply {1} and per grant the version now in force; {0} when the dataset or the
--       epoch is not the region's; {-1} when there is no region record.
--
-- Rules E1, E2, W2 and L4: a share change settles what the old share has accrued,
-- clamps the level of untouched buckets to the new capacity, and never raises it
-- except by the gift. A tracked key's first grant gives it a copy of its policy's record;
-- a drop puts it back under that, at its level. The formats are in doc.go.

local DRIFT, WRAP = 1.0005, 4e15
local NARROW = 1e9
local LIFE = 158112000000 -- the longest life of a bucket under a share record, ms
local GROWN = 8 -- the most instants of growth that a record remembers
local call, floor, ceil, max, min, match = redis.call, math.floor, math.ceil, math.max, math.min, string.match
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local region = call('GET', KEYS[1])
if not region then return {-1} end
local gen, epoch, term, lease, hot = match(region, '^([^:]+):(%d+):(%d+):(%d+):(%d+)$')
local mine, floors = tonumber(ARGV[2]), ARGV[1] == '*'
if not floors and (gen ~= ARGV[1] or mine < tonumber(epoch)) then return {0} end

-- What a record has gained in a time since it was settled, and the capacity it ends
-- with: once the lease is over, only the permanent part counts.
local function accrued(rec, elapsed)
  local per = rec[5] * DRIFT
  if (rec[11] == rec[3] and rec[12] == rec[4]) or tonumber(lease) >= now then
    return elapsed * rec[4] / per, rec[3]
  end
  local leased = min(elapsed, max(0, lease - rec[7]))
  return leased * rec[4] / per + (elapsed - leased) * rec[12] / per, min(rec[3], rec[11])
end

-- The part of a milli-token that a refill is ahead by, in millionths and no more
-- than it is; of large capacities, which have no such digits left, a whole one.
local function phase(part, c)
  if part <= 0 then return 0 end
  if c > 1e9 then return 1 end
  return max(0, floor(part * 1e6) - 1) / 1e6
end

local function number(x)
  return string.format(x == floor(x) and '%.0f' or '%.6f', x)
end

-- The instants at which a share grew, as pairs of the accumulator and the capacity
-- before, for keys whose room fills more slowly than the ghost: see doc.go. held is
-- the capacity until now, room that and the gift.
local function grown(rec, acc, gift, room, c)
  local list = {}
  for i = 16, #rec, 2 do
    local was, from = rec[i], rec[i + 1] + gift
    local age = (acc - was) % WRAP
    -- Past a quarter of the accumulator's range an instant is long filled.
    if from < min(room, c) and (age < WRAP / 4 or age >= WRAP / 2) then
      list[#list + 1] = was
      list[#list + 1] = from
    end
  end
  if c > room then
    list[#list + 1] = (acc + 1) % WRAP
    list[#list + 1] = room
  end
  while #list > 2 * GROWN do
    -- Two that differ least become one that is no higher than either.
    local least = 2
    for i = 4, #list - 2, 2 do
      if list[i + 2] - list[i] < list[least + 2] - list[least] then least = i end
    end
    table.remove(list, least + 2)
    table.remove(list, least - 1)
  end
  return list
end

-- A record is a list: limit, version, capacity, refill, period, accumulator, settled at,
-- ghost, life, form, permanent capacity, permanent refill, hold, shrunk at, epoch, then
-- pairs of growth.
local function parse(text)
  if not text then return nil end
  local rec = {}
  for field in string.gmatch(text, '[^:|]+') do rec[#rec + 1] = tonumber(field) or field end
  return rec
end

local function newer(rec, g)
  return not rec or mine > rec[15] or (mine == rec[15] and tonumber(g.version) > rec[2])
end

-- The text of the record that follows on another, or on none, under a grant. hold is
-- what a tracked bucket surrenders by it.
local function settled(rec, g, hold)
  local c, gift = tonumber(g.capacity), tonumber(g.gift)
  local acc, at, ghost, shrunk = 0, now, 0, 0
  local growth, form = {}, g.form
  if g.log then
    at = 0
    hold = 0
    if rec then
      at = rec[7]
      hold, shrunk = rec[13], rec[14]
      if now - shrunk >= rec[5] * DRIFT then hold = 0 end
      if c < rec[3] then
        -- W4: entries admitted under the larger share may stay for a window.
        hold = max(hold, rec[3])
        shrunk = now
      end
    elseif tonumber(hot) > 0 then
      at = tonumber(hot) + (g.blocks == '1' and ceil(g.period * DRIFT) or 0)
    end
  elseif rec then
    at = max(now, rec[7])
    local exact, held = accrued(rec, at - rec[7])
    local gained = floor(exact)
    acc = (rec[6] + math.fmod(gained, WRAP)) % WRAP
    -- The milli-token under way goes on under the new refill, or a policy that
    -- is settled often would never refill. The ghost has its own part of one.
    local r, per = tonumber(g.refill), g.period * DRIFT
    local carry = r > 0 and floor((exact - gained) * per / r) or 0
    at = at - carry
    ghost = min(c, min(held, rec[8] + exact) + gift) - phase(carry * r / per, c)
    ghost = max(0, floor(ghost * 1e6 + 0.5) / 1e6)
    growth = grown(rec, acc, gift, held + gift, c)
  else
    -- Nothing was spent here yet, unless the data was lost. Only the first grant of
    -- a new policy brings a gift, so that one is known to be unspent.
    at = max(now, tonumber(hot))
    if hot == '0' or gift ~= 0 then ghost = min(c, tonumber(g.initial)) end
    if ghost < c then growth = {0, ghost} end
  end
  local tail = ''
  for i = 1, #growth, 2 do tail = tail .. string.format('|%.0f:%.0f', growth[i], growth[i + 1]) end
  if g.perm_c ~= g.capacity or g.perm_r ~= g.refill then form = string.upper(form) end
  return table.concat({g.limit, g.version, g.capacity, g.refill, g.period, string.format('%.0f', acc),
    string.format('%.0f', at), number(ghost), g.life, form, g.perm_c, g.perm_r,
    string.format('%.0f', hold), string.format('%.0f', shrunk), ARGV[2]}, ':') .. tail
end

-- A tracked key: what its value holds, and what its record says at this instant.

-- The record of a value, the scale of the key's quota as text, what any key holds behind
-- them, and of that the level and the mark if it is a bucket's.
local function pieces(value)
  local key = {inner = value or '', scale = ''}
  local rec, scale, inner = match(key.inner, '^T(%d+:%d+:%d+:%d+:%d+:%d+:%d+:[%d.]+:%d+:%a:%d+:%d+:%d+:%d+:%d+[|:%d]*)(;?[%d:.]*)#(.*)$')
  if rec then key.rec, key.scale, key.inner = parse(rec), scale, inner end
  if key.scale ~= '' then
    local limit, base, refill, life = match(key.scale, '^;(.*):(.*):(.*):(.*)$')
    key.limit, key.base, key.refill, key.life = tonumber(limit), tonumber(base), tonumber(refill), tonumber(life)
  end
  local x, mark = match(key.inner, '^(-?%d+):(%d+)$')
  key.x, key.mark = tonumber(x), tonumber(mark)
  return key
end

local function signed(d, wrap)
  d = d % wrap
  return d >= wrap / 2 and d - wrap or d
end

-- Accumulator, capacity and ghost of a record, the latter two as the key has them.
local function view(rec, key)
  local exact, capacity = accrued(rec, max(0, now - rec[7]))
  local ghost = min(capacity, floor(rec[8] + exact))
  local v = {acc = (rec[6] + math.fmod(floor(exact), WRAP)) % WRAP, capacity = capacity, ghost = ghost}
  if key.limit then
    v.capacity, v.ghost = floor(capacity * key.limit / key.base), floor(ghost * key.limit / key.base)
  end
  return v
end

-- The level of a key whose scale is known, or nil when what it holds is no bucket.
local function level(rec, key, v)
  local ghost = v.ghost
  if key.limit / key.base > key.refill then
    for i = 16, #rec, 2 do
      local since = signed(v.acc - rec[i], WRAP)
      ghost = min(ghost, floor(rec[i + 1] * key.limit / key.base + max(0, since) * key.refill))
    end
  end
  if key.inner == '' then return ghost end
  if not key.x then return nil end
  local since = signed(v.acc - key.mark, WRAP)
  if since < 0 and not (-since <= v.capacity / key.refill) then since = 0 end
  local gain = max(0, since)
  if key.refill ~= 1 then gain = floor(gain * key.refill) end
  return max(0, min(ghost, key.x + gain))
end

-- What a capacity cuts off the level of a key, in its policy's tokens and never more:
-- others may be given as much.
local function surrendered(rec, key, c)
  local v = view(rec, key)
  if key.limit then
    local held = level(rec, key, v)
    local cut = (held or 0) - floor(c * key.limit / key.base)
    if not held or cut <= 0 or key.limit <= 0 then return 0 end
    return floor(cut * key.base / key.limit)
  end
  if key.inner ~= '' then return 0 end
  -- An untouched quota has its part of the ghost, or of less where it is one that
  -- fills more slowly.
  local least = v.ghost
  for i = 16, #rec, 2 do least = min(least, rec[i + 1]) end
  return max(0, least - c)
end

-- Writes a tracked key under a newer grant; rec is its own record or its policy's.
local function put(name, rec, key, g)
  g.form = 'w'
  local hold = 0
  if rec and not g.log then hold = surrendered(rec, key, tonumber(g.capacity)) end
  local text = settled(rec, g, hold)
  if key.rec and key.x and key.limit and not g.log then
    key.inner = string.format('%.0f:%.0f', key.x + floor(g.gift * key.limit / key.base), key.mark)
  end
  call('SET', name, 'T' .. text .. key.scale .. '#' .. key.inner)
end

-- Gives a key its own record.
local function pin(name, rec, key, g)
  local x, mark = match(key.inner, '^(-?%d*)1(%d%d%d%d%d%d%d%d%d)$')
  if x then
    -- Only a quota that is not overridden is kept in the narrow form. A bucket that no
    -- longer expires may outlive half the range of its marks.
    local acc = rec and view(rec, {}).acc or 0
    key.x, key.mark = tonumber(x) or 0, (acc - signed(acc - tonumber(mark), NARROW)) % WRAP
    key.inner = string.format('%.0f:%.0f', key.x, key.mark)
    key.limit, key.base, key.refill, key.life, key.scale = 1, 1, 1, 1, ';1:1:1:1'
  end
  key.rec = rec
  put(name, rec, key, g)
end

-- Puts a key back under its policy's record, with no token more.
local function drop(name, whole, key)
  local own, inner = key.rec, key.inner
  if string.byte(inner) == 76 and #inner > 1 and #inner % 7 == 1 then
    local last = 0
    for i = #inner - 6, #inner do last = last * 256 + string.byte(inner, i) end
    last = last + ceil(own[5] * DRIFT)
    if last <= now then
      call('DEL', name)
    else
      call('SET', name, inner, 'PX', ceil((last - now) / 1000) + 1)
    end
    return
  end
  if inner ~= '' and (not whole or not key.x) then
    call('SET', name, inner, 'PX', own[9]) -- nothing can be told of it: it goes on as it is
    return
  elseif not whole then
    call('DEL', name)
    return
  end
  local v, w = view(own, key), view(whole, key)
  local since = key.x and signed(v.acc - key.mark, WRAP) or 0
  -- The milli-token under way is not the bucket's own; a clock that stepped back is
  -- waited for.
  local x, mark, life = 0, (w.acc + max(0, -since) + 1) % WRAP, whole[9]
  if key.limit then
    x, life = level(own, key, v), min(ceil(life * key.life), LIFE)
    if x >= w.capacity or x > w.ghost then x = nil end -- as good as one that nobody uses
  else
    local above = v.ghost >= w.capacity or v.ghost > w.ghost
    for i = 16, #own, 2 do
      above = above and own[i + 1] + max(0, signed(v.acc - own[i], WRAP)) >= w.capacity
    end
    -- If not above, whatever the key's numbers are, it has no less than nothing.
    if above and key.x then
      x, mark = key.x, (w.acc - since + 1) % WRAP
    elseif above then
      x = nil
    end
  end
  if x then
    call('SET', name, string.format('%.0f:%.0f', x, mark), 'PX', life)
  else
    call('DEL', name)
  end
end

local out = {1}
local a, k = 3, 2
while a <= #ARGV do
  local g = {
    limit = ARGV[a], version = ARGV[a + 1], capacity = ARGV[a + 2], refill = ARGV[a + 3], period = ARGV[a + 4],
    perm_c = ARGV[a + 5], perm_r = ARGV[a + 6], gift = ARGV[a + 7], initial = ARGV[a + 8],
    life = ARGV[a + 9], form = ARGV[a + 10], blocks = ARGV[a + 12],
  }
  local kind, name = ARGV[a + 11], KEYS[k]
  g.log = kind == 'L' or kind == 'l'
  a, k = a + 13, k + 1
  local applied = tonumber(g.version)
  if kind == 'B' or kind == 'L' or kind == 'D' then
    local rec = parse(call('GET', name))
    if rec and (floors or not newer(rec, g)) then
      applied = rec[2]
    elseif kind == 'D' then
      call('DEL', name)
    else
      call('SET', name, settled(rec, g, 0))
    end
  else
    local key = pieces(call('GET', name))
    local list = KEYS[#KEYS]
    if key.rec and not newer(key.rec, g) then
      applied = key.rec[2]
    elseif kind == 'd' then
      if key.rec then drop(name, parse(call('GET', KEYS[k])), key) end
      call('HDEL', list, ARGV[a])
    else
      if key.rec then
        put(name, key.rec, key, g)
      else
        pin(name, parse(call('GET', KEYS[k])), key, g)
      end
      call('HSET', list, ARGV[a], ARGV[a + 1])
    end
    a, k = a + 2, k + 1
  end
  out[#out + 1] = applied
end
if floors then return out end
if mine > tonumber(epoch) then
  call('SET', KEYS[1], table.concat({gen, ARGV[2], term, lease, hot}, ':'))
end
return out
