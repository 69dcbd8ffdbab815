-- Decides one attempt: every quota of the call is charged, or none.
--
-- KEYS  the region record (only when ARGV[3] is 1), then per quota its bucket and,
--       if it has one, its share record; last the remembered outcome (only when
--       ARGV[2] is a number other than 0). All have one hash tag.
-- ARGV  1 cost in milli-tokens; 0 asks without charging
--       2 how long to remember an admitted outcome, ms; 0 does not; p decides
--         without charging and adds the share to the reply
--       3 1 when KEYS[1] is the region record, else 0
--       then per quota, by its first value:
--         1 token bucket, regional numbers: capacity, refill, period, the latter two
--           in lowest terms
--         2 token bucket with a share record: nothing more
--         3 sliding log, regional numbers: limit, window
--         4 sliding log with a share record: nothing more
--         5 as 2, with numbers of its own: capacity, the policy's capacity, how its
--           refill rate relates to the policy's, by what factor its life is longer
--         6 as 4, with numbers of its own: limit, the policy's limit
--       A negative first value marks a shadow: it is decided and charged on its
--       own and stops nobody. Amounts are milli-tokens, periods and windows are
--       microseconds.
-- Reply {1 or 0, now} and per quota {code, level, wait, reset, version} (and after
--       p also share capacity, share refill). Code 1 admits, 0 denies, -1 can never
--       fit. Level is what can still be spent, in milli-tokens; wait and reset are
--       microseconds. A remembered outcome comes back as one string of the same
--       numbers. {-1} says that the region record is missing, {-2, i} that the
--       share record of quota i is; nothing was charged then.
--
-- Every number is an integer below 2^53, so a double holds it exactly. The formats
-- of the values, and the argument for them, are in doc.go.

local DRIFT = 1.0005         -- how much the clock rates of two regions may differ
local WRAP = 4e15            -- accumulators count modulo this, a multiple of 1e9
local LIFE = 158112000000    -- the longest life of a bucket under a share record, ms
local PAUSE = 2e6            -- longer than any record waits for tokens on their way, microseconds
local WAIT = 9e15            -- the longest wait that a reply states, microseconds
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local sub, match, format = string.sub, string.match, string.format
local call, KEYS, ARGV = redis.call, KEYS, ARGV

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local cost = tonumber(ARGV[1])
local held = call('MGET', unpack(KEYS))
local peek, remember = ARGV[2] == 'p', nil
if ARGV[2] ~= '0' and not peek then
  remember = ARGV[2]
  if held[#KEYS] then return held[#KEYS] end
end

local k, lease_end = 1, nil
if ARGV[3] == '1' then
  k = 2
  if not held[1] then return {-1} end
end

-- Writes a bucket under a share record.
local function put(key, level, mark, modulus, life)
  if modulus == '1000000000' then
    call('SET', key, (level == 0 and '' or level) .. (1000000000 + mark % 1e9), 'PX', life)
  else
    call('SET', key, format('%.0f:%.0f', level, mark), 'PX', life)
  end
end

-- What is left in a value that other numbers or another algorithm wrote. A level is
-- kept, but for what it has gained since; a log counts as spent.
local function foreign(value)
  return tonumber(match(value, '^(-?%d+)[:@]%d+$') or match(value, '^(-?%d*)1%d%d%d%d%d%d%d%d%d$')) or 0
end

-- How many steps of a size it takes from one number to another, both as doubles count.
local function steps(to, from, size)
  local n = ceil((to - from) / size)
  if floor(from + n * size) < to then n = n + 1 end
  return n
end

-- Moves the instant of a share record that lies ahead of the clock by more than it
-- ever should: the clock stepped back, and what counts by the record would stand still
-- until it has caught up.
local function restart(key, rec, at)
  if not peek then
    call('SET', key, (string.gsub(rec, '^(' .. string.rep('%d+:', 8) .. ')%d+', '%1' .. format('%.0f', at))))
  end
end

-- Pass one: what each quota says. What pass two needs is kept per quota as
-- {code, spendable, wait, key, kind, stored level, mark, life, modulus, capacity,
-- pause, version, share capacity, share refill, microseconds per milli-token}.
local quotas, allowed = {}, 1
local a, last = 4, #ARGV
while a <= last do
  local kind = tonumber(ARGV[a])
  local shadow = kind < 0
  if shadow then kind = -kind end
  local key, value = KEYS[k], held[k]
  local code, wait, q = 1, 0, nil

  if kind == 1 then
    -- Regional numbers: the value is a level and its instant, "level@us". Refill is
    -- a whole number of milli-tokens in a whole number of microseconds, in lowest
    -- terms, and the instant only ever moves on by whole such steps, so no sequence of
    -- touches loses a fraction or gains one.
    local capacity, refill, period = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local level, x, from, slow = capacity, capacity, now, period / refill
    if value then
      local l, f = match(value, '^(-?%d+)@(%d+)$')
      local moved = not l
      if l then
        x, from = tonumber(l), tonumber(f)
        local elapsed = now - from
        level = x
        if elapsed > 0 then
          local whole = floor(elapsed / period)
          x, from = x + whole * refill, from + whole * period
          level = x + floor((now - from) * refill / period)
        elseif -elapsed > capacity * slow then
          moved = true -- the clock stepped back by a lot: go on from here; a little: wait for it
        end
      else
        x = foreign(value)
      end
      if moved then
        x, from = min(max(x, 0), capacity), now
        level = x
        if not peek then
          call('SET', key, format('%.0f@%.0f', x, from), 'PX', ceil((capacity - x) * slow / 1000) + 1)
        end
      end
      if level >= capacity then
        x, level, from = capacity, capacity, max(from, now)
      end
    end
    if cost > capacity then
      code = -1
    elseif max(0, level) < cost then
      code = 0
      wait = ceil((cost - x) * period / refill)
      if x + floor(wait * refill / period) < cost then wait = wait + 1 end -- a product above 2^53
      wait = wait + from - now
    end
    q = {code, max(0, level), wait, key, kind, x, from, 0, 0, capacity, from - now, 0, 0, 0, slow}
    k, a = k + 1, a + 4
  elseif kind == 2 or kind == 5 then
    -- A share record: the value is (x, A_x), the level and the policy's accumulator
    -- when it was touched. E1: level = min(ghost, x + A - A_x).
    local rec = held[k + 1]
    if not rec then return {-2, #quotas + 1} end
    local lim, version, c, r, per, pc, pr, acc, at, g0, life, modulus =
      match(rec, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d.]+):(%d+):(%d+)')
    local limit, capacity = tonumber(lim), tonumber(c)
    per = per * DRIFT
    local elapsed, rate, exact = now - at, tonumber(r), 0
    local lapsed = false
    if elapsed < -PAUSE then
      elapsed, at = 0, now
      restart(KEYS[k + 1], rec, now)
    end
    if elapsed > 0 then exact = elapsed * rate / per end
    if pc ~= c or pr ~= r then
      lease_end = lease_end or tonumber(match(held[1], '^[^:]+:%d+:%d+:(%d+)'))
      if lease_end < now then
        -- The lease is over: from there on only the permanent part counts.
        lapsed = true
        local whole = max(0, elapsed)
        local leased = min(whole, max(0, lease_end - at))
        exact = leased * rate / per + (whole - leased) * pr / per
        capacity, rate = min(capacity, tonumber(pc)), tonumber(pr)
      end
    end
    local gained = floor(exact)
    local mark = (acc + (gained < WRAP and gained or math.fmod(gained, WRAP))) % WRAP
    local ghost = min(capacity, floor(g0 + exact))
    local bound, base, scale = ghost, nil, 1
    if kind == 5 then
      limit, base, scale = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
      capacity, bound = floor(capacity * limit / base), floor(ghost * limit / base)
      life, modulus = min(ceil(life * ARGV[a + 4]), LIFE), nil
      a = a + 4
    end
    local short = 0 -- what the accumulator lacks until the bucket has the cost
    if base and limit / base > scale then
      -- Room from a grown share fills more slowly than the ghost's.
      for grown, from in string.gmatch(rec, '|(%d+):(%d+)') do
        local since, first = (mark - grown) % WRAP, from * limit / base
        if since >= WRAP / 2 then since = since - WRAP end
        local filled = floor(first + max(0, since) * scale)
        bound = min(bound, filled)
        if filled < cost then short = max(short, steps(cost, first, scale) - since) end
      end
    end
    local level, slow = bound, per / (rate * scale)
    if value then
      local x, was, wrap = nil, tonumber(sub(value, -9)), 1e9
      if was and string.byte(value, -10) == 49 then
        x = #value == 10 and 0 or tonumber(sub(value, 1, -11))
      end
      if not x then
        local l, m = match(value, '^(-?%d+):(%d+)$')
        if l then x, was, wrap = tonumber(l), tonumber(m), WRAP end
      end
      local moved = not x
      if moved then x, was, wrap = foreign(value), mark, WRAP end
      local since = (mark - was) % wrap
      if since >= wrap / 2 then
        since = since - wrap
        if -since <= capacity / scale then
          mark = was -- the clock stepped back by a little: wait for it
        else
          since, moved = 0, true -- by a lot: go on from here
        end
      end
      if moved and not peek then put(key, x, mark, nil, life) end
      local gain = max(0, since)
      if scale ~= 1 then gain = floor(gain * scale) end
      level = max(0, min(bound, x + gain))
      short = max(short, steps(cost - x, 0, scale) - since)
    end
    if cost > limit then
      code = -1
    elseif level < cost then
      code = 0
      local whole = cost -- what the ghost must be for the bucket to have the cost
      if base then
        whole = ceil(cost * base / limit)
        if floor(whole * limit / base) < cost then whole = whole + 1 end
      end
      short = max(short, whole - g0 - gained)
      if rate > 0 and lapsed then
        wait = ceil(short * per / rate) + 1
      elseif rate > 0 then
        wait = ceil((gained + short) * per / rate) - elapsed + 1
      end
    end
    -- Accumulators are whole milli-tokens. The one that is under way when a bucket
    -- leaves its capacity is not its own.
    if level >= capacity then mark = (mark + 1) % WRAP end
    q = {code, level, wait, key, kind, level, mark, life, modulus, capacity, max(0, -elapsed), version, c, r, slow}
    k, a = k + 2, a + 1
  else
    -- A log: "L", then the instant of each entry in seven bytes, in order of time.
    local function stamp(t)
      local b7 = t % 256; t = (t - b7) / 256
      local b6 = t % 256; t = (t - b6) / 256
      local b5 = t % 256; t = (t - b5) / 256
      local b4 = t % 256; t = (t - b4) / 256
      local b3 = t % 256; t = (t - b3) / 256
      local b2 = t % 256; t = (t - b2) / 256
      return string.char(t, b2, b3, b4, b5, b6, b7)
    end
    -- Age of the i-th entry in microseconds; negative ahead of the clock.
    local function age(entries, i)
      local b1, b2, b3, b4, b5, b6, b7 = string.byte(entries, i * 7 - 6, i * 7)
      return now - ((((((b1 * 256 + b2) * 256 + b3) * 256 + b4) * 256 + b5) * 256 + b6) * 256 + b7)
    end

    local limit, n, window
    local version, share_c, blocked = 0, 0, 0
    if kind == 3 then
      limit, window = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
      n = limit
      k, a = k + 1, a + 3
    else
      local rec = held[k + 1]
      if not rec then return {-2, #quotas + 1} end
      local lim, ver, c, per, pc, from = match(rec, '^(%d+):(%d+):(%d+):%d+:(%d+):(%d+):%d+:%d+:(%d+)')
      limit, version, share_c, n, window = tonumber(lim), ver, c, tonumber(c), ceil(per * DRIFT)
      if pc ~= c then
        lease_end = lease_end or tonumber(match(held[1], '^[^:]+:%d+:%d+:(%d+)'))
        if lease_end < now then n = min(n, tonumber(pc)) end
      end
      if kind == 6 then
        limit = tonumber(ARGV[a + 1])
        n = n * limit / ARGV[a + 2]
        a = a + 2
      end
      if now < tonumber(from) then
        blocked = from - now
        if blocked > window + PAUSE then
          blocked = window
          restart(KEYS[k + 1], rec, now + window)
        end
      end
      k, a = k + 2, a + 1
    end
    n = floor(n / 1000)
    local moved = false
    if not value then
      value = ''
    elseif sub(value, 1, 1) == 'L' then
      value = sub(value, 2)
    else
      -- Left by a token bucket: it may have admitted a whole limit just now.
      value, moved = string.rep(stamp(now), n), true
    end
    local count, entry = #value / 7, now
    if count > 0 then
      local ahead = -age(value, count)
      if ahead > window then
        -- The clock stepped back by more than a window: go on from here.
        value, moved = string.rep(stamp(now), count), true
      elseif ahead > 0 then
        entry = now + ahead
      end
      if moved and not peek then call('SET', key, 'L' .. value, 'PX', ceil(window / 1000) + 1) end
      -- Find the first entry inside the window.
      local lo, hi = 1, count + 1
      while lo < hi do
        local mid = floor((lo + hi) / 2)
        if age(value, mid) >= window then lo = mid + 1 else hi = mid end
      end
      if lo > 1 then
        value = sub(value, lo * 7 - 6)
        count = count - lo + 1
      end
    end
    local want = cost / 1000
    if cost > limit then
      code = -1
    elseif blocked > 0 or count + want > n then
      code = 0
      local gone = min(count + want - n, count)
      wait = max(blocked, gone > 0 and window - age(value, gone) or 0, 1)
    end
    local left = blocked > 0 and 0 or max(0, n - count) * 1000
    local full = count > 0 and max(0, window - age(value, count)) or 0
    if code == 1 and want > 0 then value = value .. string.rep(stamp(entry), want) end
    q = {code, left, wait, key, kind, value, entry, window, 0, 0, full, version, share_c, 0, 0}
  end

  if code ~= 1 and not shadow then allowed = 0 end
  quotas[#quotas + 1] = q
end

-- Pass two: charge, and say what is left. A denied attempt charges nothing.
local out, o = {allowed, now}, 2
local charge = allowed == 1 and cost > 0 and not peek
for i = 1, #quotas do
  local q = quotas[i]
  local spendable, kind, level, reset = q[2], q[5], q[6], 0
  local charged = charge and q[1] == 1
  if charged then spendable = spendable - cost end
  if kind == 1 then
    if charged then level = level - cost end
    if spendable < q[10] then reset = q[11] + ceil((q[10] - level) * q[15]) end
    if charged then call('SET', q[4], format('%.0f@%.0f', level, q[7]), 'PX', ceil(reset / 1000) + 1) end
  elseif kind == 2 or kind == 5 then
    if charged then put(q[4], spendable, q[7], q[9], q[8]) end
    if spendable < q[10] and q[15] < 1e300 then reset = q[11] + ceil((q[10] - spendable) * q[15]) end
  elseif charged then
    reset = q[8] + q[7] - now
    call('SET', q[4], 'L' .. level, 'PX', ceil(reset / 1000) + 1)
  else
    reset = q[11]
  end
  out[o + 1], out[o + 2], out[o + 3], out[o + 4] = q[1], spendable, min(q[3], WAIT), min(reset, WAIT)
  out[o + 5] = tonumber(q[12])
  o = o + 5
  if peek then
    out[o + 1], out[o + 2] = tonumber(q[13]), tonumber(q[14])
    o = o + 2
  end
end
if remember and charge then
  local text = {}
  for i = 1, o do text[i] = format('%.0f', out[i]) end
  call('SET', KEYS[#KEYS], table.concat(text, ' '), 'PX', remember)
end
return out
