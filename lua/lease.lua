-- Extends the lease of one stripe.
--
-- KEYS  the region record, then share records to settle if the lease was over
-- ARGV  1 the dataset's id
--       2 the leader's epoch
--       3 this stripe's clock when the report was sent, microseconds
--       4 how long the lease lasts from there, microseconds
--       5 t extends a lease in time only; s settles records only; e extends, and
--         settles first where the lease was over
-- Reply 1 the lease lasts until then, or longer; 2 so it does, and the one before was
--       over; 3 it is over and nothing was extended; 0 when the dataset or the epoch is not the
--       region's; -1 when there is no region record
--
-- The end of a lease must enter the accumulator and the ghost before there is another,
-- or the time of the lapse would count as time under the lease: a record accrues at the
-- rate of its permanent part from the end of the lease on, and is clamped to its
-- capacity. See doc.go for the values.

local DRIFT, WRAP, GROWN = 1.0005, 4e15, 8
local call, floor = redis.call, math.floor
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local region = call('GET', KEYS[1])
if not region then return -1 end
local gen, epoch, term, lease, hot = string.match(region, '^([^:]+):(%d+):(%d+):(%d+):(%d+)$')
if gen ~= ARGV[1] or tonumber(ARGV[2]) < tonumber(epoch) then return 0 end
lease = tonumber(lease)
local ttl, mode = tonumber(ARGV[4]), ARGV[5]
local stop = ARGV[3] + ttl

local function extend(to)
  epoch = math.max(epoch, tonumber(ARGV[2]))
  call('SET', KEYS[1], table.concat({gen, string.format('%.0f', epoch), term, string.format('%.0f', to), hot}, ':'))
end

if lease > now + ttl then
  -- Nobody gives a lease of that length: the clock stepped back.
  if mode ~= 's' then extend(math.min(stop, now + ttl)) end
  return 1
end
if stop <= lease then return 1 end
if stop < now then return lease < now and 3 or 1 end
local over = lease < now
if over and mode == 't' then return 3 end

-- The part of a milli-token that a refill is ahead by: see apply.lua.
local function phase(part, c)
  if part <= 0 then return 0 end
  if c > 1e9 then return 1 end
  return math.max(0, floor(part * 1e6) - 1) / 1e6
end

-- The instants of growth: the capacity fell to that of the permanent part, and is
-- back. See apply.lua.
local function grown(rec, acc, room, c)
  local list = {}
  for i = 16, #rec, 2 do
    local age = (acc - rec[i]) % WRAP
    if rec[i + 1] < math.min(room, c) and (age < WRAP / 4 or age >= WRAP / 2) then
      list[#list + 1] = rec[i]
      list[#list + 1] = rec[i + 1]
    end
  end
  if c > room then
    list[#list + 1] = (acc + 1) % WRAP
    list[#list + 1] = room
  end
  while #list > 2 * GROWN do
    local least = 2
    for i = 4, #list - 2, 2 do
      if list[i + 2] - list[i] < list[least + 2] - list[least] then least = i end
    end
    table.remove(list, least + 2)
    table.remove(list, least - 1)
  end
  return list
end

-- Returns a share record after the lapse; nothing when there is nothing to settle.
local function settled(text)
  local rec = {}
  for field in string.gmatch(text, '[^:|]+') do rec[#rec + 1] = tonumber(field) or field end
  local c, r, pc, pr = rec[3], rec[4], rec[11], rec[12]
  if (c == pc and r == pr) or (r == 0 and pr == 0 and rec[8] == 0) then return nil end
  local per, at = rec[5] * DRIFT, math.max(now, rec[7])
  local elapsed = at - rec[7]
  local leased = math.min(elapsed, math.max(0, lease - rec[7]))
  local exact, room = leased * r / per + (elapsed - leased) * pr / per, math.min(c, pc)
  local gained = floor(exact)
  local acc = (rec[6] + math.fmod(gained, WRAP)) % WRAP
  local carry = r > 0 and floor((exact - gained) * per / r) or 0
  local ghost = math.min(c, math.min(room, rec[8] + exact)) - phase(carry * r / per, c)
  ghost = math.max(0, floor(ghost * 1e6 + 0.5) / 1e6)
  local head, tail = string.match(text, '^(%d+:%d+:%d+:%d+:%d+):%d+:%d+:[%d.]+(:[^|]*)')
  local out = {head, string.format(':%.0f:%.0f:', acc, at - carry),
    string.format(ghost == floor(ghost) and '%.0f' or '%.6f', ghost), tail}
  local growth = grown(rec, acc, room, c)
  for g = 1, #growth, 2 do out[#out + 1] = string.format('|%.0f:%.0f', growth[g], growth[g + 1]) end
  return table.concat(out)
end

if over then
  for i = 2, #KEYS do
    local text = call('GET', KEYS[i])
    local new = text and settled(text)
    if new then call('SET', KEYS[i], new) end
  end
end
if mode == 's' then return 3 end
extend(stop)
return over and lease > 0 and 2 or 1
