-- Applies shares to one stripe: compare-and-set on (epoch, version), and only for
-- the dataset that the coordinator spoke of.
--
-- KEYS  the region record, then the share record of each grant
-- ARGV  1 the dataset's id; * writes floors where there is no record, and fences nothing
--       2 the leader's epoch
--       then per grant thirteen values: limit's capacity, version, share capacity,
--       share refill, period, permanent capacity, permanent refill, gift, level
--       that untouched buckets start from where there is no record, lifetime of a
--       bucket in ms, its form (n narrow, w wide), what to do (B token bucket, L sliding
--       log, D drop), 1 when a log without record is blocked for a window after a
--       lost dataset
-- Reply {1} and per grant the version now in force; {0} when the dataset or the
--       epoch is not the region's; {-1} when there is no region record.
--
-- Rules E1, E2, W2 and L4: a share change settles what the old share has accrued,
-- clamps the level of untouched buckets to the new capacity, and never raises it
-- except by the gift.

local DRIFT, WRAP = 1.0005, 4e15
local GROWN = 8 -- the most instants of growth that a record remembers
local call, floor = redis.call, math.floor
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local region = call('GET', KEYS[1])
if not region then return {-1} end
local gen, epoch, term, lease, hot = string.match(region, '^([^:]+):(%d+):(%d+):(%d+):(%d+)$')
local mine, floors = tonumber(ARGV[2]), ARGV[1] == '*'
if not floors and (gen ~= ARGV[1] or mine < tonumber(epoch)) then return {0} end

-- What a record has gained in a time since it was settled, and the capacity it ends
-- with: once the lease is over, only the permanent part counts.
local function accrued(rec, elapsed)
  local per = rec[5] * DRIFT
  if (rec[11] == rec[3] and rec[12] == rec[4]) or tonumber(lease) >= now then
    return elapsed * rec[4] / per, rec[3]
  end
  local leased = math.min(elapsed, math.max(0, lease - rec[7]))
  return leased * rec[4] / per + (elapsed - leased) * rec[12] / per, math.min(rec[3], rec[11])
end

-- The part of a milli-token that a refill is ahead by, in millionths and no more
-- than it is; of large capacities, which have no such digits left, a whole one.
local function phase(part, c)
  if part <= 0 then return 0 end
  if c > 1e9 then return 1 end
  return math.max(0, floor(part * 1e6) - 1) / 1e6
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
    if from < math.min(room, c) and (age < WRAP / 4 or age >= WRAP / 2) then
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

local out = {1}
local a = 3
for i = 2, #KEYS do
  local limit, version, capacity, refill, period = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local perm_c, perm_r, gift, initial = ARGV[a + 5], ARGV[a + 6], ARGV[a + 7], ARGV[a + 8]
  local life, form, kind, blocks = ARGV[a + 9], ARGV[a + 10], ARGV[a + 11], ARGV[a + 12]
  a = a + 13
  local rec = {}
  local text = call('GET', KEYS[i])
  if text then
    for field in string.gmatch(text, '[^:|]+') do rec[#rec + 1] = tonumber(field) or field end
  end
  -- limit, version, capacity, refill, period, accumulator, settled at, ghost, life,
  -- form, permanent capacity, permanent refill, hold, shrunk at, epoch, then pairs of
  -- growth
  local newer = not text or mine > rec[15] or (mine == rec[15] and tonumber(version) > rec[2])
  if floors then newer = not text end
  if not newer then
    out[i] = rec[2]
  elseif kind == 'D' then
    call('DEL', KEYS[i])
    out[i] = tonumber(version)
  else
    local c = tonumber(capacity)
    local acc, at, ghost, hold, shrunk = 0, now, 0, 0, 0
    local growth = {}
    if kind == 'L' then
      at = 0
      if text then
        at = rec[7]
        hold, shrunk = rec[13], rec[14]
        if now - shrunk >= rec[5] * DRIFT then hold = 0 end
        if c < rec[3] then
          -- W4: entries admitted under the larger share may stay for a window.
          hold, shrunk = math.max(hold, rec[3]), now
        end
      elseif tonumber(hot) > 0 then
        at = tonumber(hot) + (blocks == '1' and math.ceil(period * DRIFT) or 0)
      end
    elseif text then
      at = math.max(now, rec[7])
      local exact, held = accrued(rec, at - rec[7])
      local gained = floor(exact)
      acc = (rec[6] + math.fmod(gained, WRAP)) % WRAP
      -- The milli-token under way goes on under the new refill, or a policy that
      -- is settled often would never refill. The ghost has its own part of one.
      local r, per = tonumber(refill), period * DRIFT
      local carry = r > 0 and floor((exact - gained) * per / r) or 0
      at = at - carry
      ghost = math.min(c, math.min(held, rec[8] + exact) + gift) - phase(carry * r / per, c)
      ghost = math.max(0, floor(ghost * 1e6 + 0.5) / 1e6)
      growth = grown(rec, acc, gift, held + gift, c)
    else
      -- Nothing was spent here yet, unless the data was lost. Only the first grant of
      -- a new policy brings a gift, so that one is known to be unspent.
      at = math.max(now, tonumber(hot))
      if hot == '0' or gift ~= '0' then ghost = math.min(c, tonumber(initial)) end
      if ghost < c then growth = {0, ghost} end
    end
    local tail = ''
    for g = 1, #growth, 2 do tail = tail .. string.format('|%.0f:%.0f', growth[g], growth[g + 1]) end
    if perm_c ~= capacity or perm_r ~= refill then form = string.upper(form) end
    call('SET', KEYS[i], table.concat({limit, version, capacity, refill, period, string.format('%.0f', acc),
      string.format('%.0f', at), number(ghost), life, form, perm_c, perm_r,
      string.format('%.0f', hold), string.format('%.0f', shrunk), ARGV[2]}, ':') .. tail)
    out[i] = tonumber(version)
  end
end
if floors then return out end
if mine > tonumber(epoch) then
  call('SET', KEYS[1], table.concat({gen, ARGV[2], term, lease, hot}, ':'))
end
return out
