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
--         1 token bucket, regional numbers: capacity, refill, period
--         2 token bucket with a share record: nothing more
--         3 sliding log, regional numbers: limit, window
--         4 sliding log with a share record: nothing more
--         5 as 2, with numbers of its own: capacity, capacity scale, refill scale
--         6 as 4, with numbers of its own: limit, scale
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

local DRIFT = 1.0005 -- how much the clock rates of two regions may differ
local WRAP = 4e15    -- accumulators count modulo this, a multiple of 1e9
local floor, ceil, sub = math.floor, math.ceil, string.sub
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

-- Pass one: what each quota says. What pass two needs is kept per quota as
-- {code, spendable, wait, key, kind, level, mark, life, modulus, capacity,
-- microseconds per milli-token, version, share capacity, share refill}.
local quotas, allowed = {}, 1
local a, last = 4, #ARGV
while a <= last do
  local kind = tonumber(ARGV[a])
  local shadow = kind < 0
  if shadow then kind = -kind end
  local key, value = KEYS[k], held[k]
  local code, wait, q = 1, 0, nil

  if kind <= 2 or kind == 5 then
    local limit, capacity, level, slow, mark, life, modulus
    local pause, version, share_c, share_r = 0, 0, 0, 0
    if kind == 1 then
      -- Regional numbers: the value is what was left and when, "level:s:us".
      -- Counting whole periods since 1970 makes the gains of any sequence of
      -- touches add up to the gain of the whole: no fraction is ever lost.
      limit = tonumber(ARGV[a + 1])
      local refill, period = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
      capacity, level, slow = limit, limit, period / refill
      mark = clock[1] .. ':' .. clock[2]
      if value then
        local x, s, u = string.match(value, '^(-?%d+):(%d+):(%d+)$')
        local was = x and s * 1000000 + u
        level = tonumber(x)
        if not x then
          -- Left by other numbers or another algorithm: keep a level, never refill.
          level = tonumber(string.match(value, '^(-?%d+):%d+$') or string.match(value, '^(-?%d*)1%d%d%d%d%d%d%d%d%d$')) or 0
          call('SET', key, level .. ':' .. mark, 'PX', ceil((capacity - level) * slow / 1000) + 1)
        elseif was <= now then
          local p, n = floor(was / period), floor(now / period)
          level = level + (n - p) * refill
            + floor((now - n * period) * refill / period) - floor((was - p * period) * refill / period)
        elseif was - now <= capacity * slow then
          mark, pause = s .. ':' .. u, was - now -- ahead of the clock: wait for it
        end
        if level > capacity then level = capacity end
      end
      if level == capacity and slow < 1e300 then
        local from = now + ceil(slow)
        mark = floor(from / 1000000) .. ':' .. from % 1000000
      end
      k, a = k + 1, a + 4
    else
      -- A share record: the value is (x, A_x), the level and the policy's
      -- accumulator when it was touched. E1: level = min(ghost, x + A - A_x).
      local rec = held[k + 1]
      if not rec then return {-2, #quotas + 1} end
      local lim, ver, c, r, per, pc, pr, acc, at, ghost, lf, mod =
        string.match(rec, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)')
      limit, version, share_c, share_r, life, modulus = tonumber(lim), ver, c, r, lf, mod
      capacity, per = tonumber(c), per * DRIFT
      slow = per / r
      local gained, elapsed = 0, now - at
      if elapsed > 0 then
        gained = floor(elapsed * r / per)
      else
        pause = -elapsed
      end
      if pc ~= c or pr ~= r then
        lease_end = lease_end or tonumber(string.match(held[1], '^[^:]+:%d+:%d+:(%d+)'))
        if lease_end < now then
          -- The lease is over: from there on only the permanent part counts.
          local leased = math.min(elapsed, math.max(0, lease_end - at))
          gained = floor(leased * r / per + (elapsed - leased) * pr / per)
          capacity, slow = math.min(capacity, tonumber(pc)), per / pr
        end
      end
      mark = (acc + gained) % WRAP
      ghost = ghost + gained
      if ghost > capacity then ghost = capacity end
      local scale = 1
      if kind == 5 then
        limit, scale = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 3])
        local wide = tonumber(ARGV[a + 2])
        capacity, ghost, slow = floor(capacity * wide), floor(ghost * wide), slow / scale
        life = ceil(life * math.max(1, wide / scale))
        a = a + 3
      end
      level = ghost
      if value then
        local x, was, wrap = nil, tonumber(sub(value, -9)), 1e9
        if was and string.byte(value, -10) == 49 then
          x = #value == 10 and 0 or tonumber(sub(value, 1, -11))
        end
        if not x then
          local l, m = string.match(value, '^(-?%d+):(%d+)$')
          if l then
            x, was, wrap = tonumber(l), tonumber(m), WRAP
          else
            -- Left by other numbers or another algorithm: keep a level, never refill.
            x, was, wrap = tonumber(string.match(value, '^(-?%d+):%d+:%d+$')) or 0, mark, WRAP
            call('SET', key, string.format('%.0f:%.0f', x, mark), 'PX', life)
          end
        end
        local since = (mark - was) % wrap
        if since >= wrap / 2 then
          -- The mark is ahead: a little, wait for it; a lot, go on from here.
          if wrap - since <= capacity / scale then
            mark, pause = was, pause + ceil((wrap - since) * slow * scale)
          end
          since = 0
        end
        if scale ~= 1 then since = floor(since * scale) end
        if x + since < ghost then level = x + since end
      end
      if level == capacity then mark = (mark + 1) % WRAP end
      k, a = k + 2, a + 1
    end
    -- The mark of a full bucket is one milli-token ahead. Accrual is rounded to whole
    -- ones, so without that the first one after a full bucket could come early, and
    -- capacity + refill be passed by a fraction.
    if cost > limit then
      code = -1
    elseif level < cost then
      code = 0
      if slow < 1e300 then wait = ceil((cost - level) * slow) + pause + 1 end
    end
    q = {code, level, wait, key, kind, level, mark, life, modulus, capacity, slow, version, share_c, share_r}
  else
    -- A log: "L", then six bytes an entry, the clock modulo 2^48, in order of time.
    local SPAN = 2 ^ 48
    local function stamp(t)
      local b6 = t % 256; t = (t - b6) / 256
      local b5 = t % 256; t = (t - b5) / 256
      local b4 = t % 256; t = (t - b4) / 256
      local b3 = t % 256; t = (t - b3) / 256
      local b2 = t % 256; t = (t - b2) / 256
      return string.char(t % 256, b2, b3, b4, b5, b6)
    end
    -- Age of the i-th entry in microseconds; negative ahead of the clock.
    local function age(entries, i)
      local b1, b2, b3, b4, b5, b6 = string.byte(entries, i * 6 - 5, i * 6)
      local d = (now - (((((b1 * 256 + b2) * 256 + b3) * 256 + b4) * 256 + b5) * 256 + b6)) % SPAN
      return d < SPAN / 2 and d or d - SPAN
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
      local lim, ver, c, per, pc, from = string.match(rec, '^(%d+):(%d+):(%d+):%d+:(%d+):(%d+):%d+:%d+:(%d+)')
      limit, version, share_c, n, window = tonumber(lim), ver, c, tonumber(c), ceil(per * DRIFT)
      if pc ~= c then
        lease_end = lease_end or tonumber(string.match(held[1], '^[^:]+:%d+:%d+:(%d+)'))
        if lease_end < now then n = math.min(n, tonumber(pc)) end
      end
      if kind == 6 then
        limit, n = tonumber(ARGV[a + 1]), n * ARGV[a + 2]
        a = a + 2
      end
      if now < tonumber(from) then blocked = from - now end
      k, a = k + 2, a + 1
    end
    n = floor(n / 1000)
    if not value then
      value = ''
    elseif sub(value, 1, 1) == 'L' then
      value = sub(value, 2)
    else
      -- Left by a token bucket: it may have admitted a whole limit just now.
      value = string.rep(stamp(now % SPAN), n)
      call('SET', key, 'L' .. value, 'PX', ceil(window / 1000) + 1)
    end
    local count, entry = #value / 6, now
    if count > 0 then
      local ahead = -age(value, count)
      if ahead > window then
        value = string.rep(stamp(now % SPAN), count) -- the clock stepped back by more than a window
      elseif ahead > 0 then
        entry = now + ahead
      end
      -- Find the first entry inside the window.
      local lo, hi = 1, count + 1
      while lo < hi do
        local mid = floor((lo + hi) / 2)
        if age(value, mid) >= window then lo = mid + 1 else hi = mid end
      end
      if lo > 1 then
        value = sub(value, lo * 6 - 5)
        count = count - lo + 1
      end
    end
    local want = cost / 1000
    if cost > limit then
      code = -1
    elseif blocked > 0 or count + want > n then
      code = 0
      local gone = math.min(count + want - n, count)
      wait = math.max(blocked, gone > 0 and window - age(value, gone) or 0, 1)
    end
    local left = blocked > 0 and 0 or math.max(0, n - count) * 1000
    local full = count > 0 and math.max(0, window - age(value, count)) or 0
    if code == 1 and want > 0 then value = value .. string.rep(stamp(entry % SPAN), want) end
    q = {code, left, wait, key, kind, value, entry, window, 0, full, 0, version, share_c, 0}
  end

  if code ~= 1 and not shadow then allowed = 0 end
  quotas[#quotas + 1] = q
end

-- Pass two: charge, and say what is left. A denied attempt writes nothing.
local out, o = {allowed, now}, 2
local charge = allowed == 1 and cost > 0 and not peek
for i = 1, #quotas do
  local q = quotas[i]
  local spendable, kind, reset = q[2], q[5], 0
  local charged = charge and q[1] == 1
  if charged then spendable = spendable - cost end
  if kind <= 2 or kind == 5 then
    local level, slow = q[6], q[11]
    if charged then
      level = level - cost
      if kind == 1 then
        local full = slow < 1e300 and ceil((q[10] - level) * slow / 1000) + 1 or 31536000000
        call('SET', q[4], level .. ':' .. q[7], 'PX', full)
      elseif q[9] == '1000000000' then
        call('SET', q[4], (level == 0 and '' or level) .. (1000000000 + q[7] % 1e9), 'PX', q[8])
      else
        call('SET', q[4], string.format('%.0f:%.0f', level, q[7]), 'PX', q[8])
      end
    end
    if level < q[10] and slow < 1e300 then reset = ceil((q[10] - level) * slow) end
  else
    reset = q[10]
    if charged then
      reset = q[8] + q[7] - now
      call('SET', q[4], 'L' .. q[6], 'PX', ceil(reset / 1000) + 1)
    end
  end
  out[o + 1], out[o + 2], out[o + 3], out[o + 4] = q[1], spendable > 0 and spendable or 0, q[3], reset
  out[o + 5] = tonumber(q[12])
  o = o + 5
  if peek then
    out[o + 1], out[o + 2] = tonumber(q[13]), tonumber(q[14])
    o = o + 2
  end
end
if remember and charge then
  local text = {}
  for i = 1, o do text[i] = string.format('%.0f', out[i]) end
  call('SET', KEYS[#KEYS], table.concat(text, ' '), 'PX', remember)
end
return out
