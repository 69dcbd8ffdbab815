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
--       microseconds. The version is negative when the key has a share record of its
--       own, behind a T in its value: it is tracked. A remembered outcome comes back as one string of the same
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
-- A level in a value that other numbers or another algorithm wrote; what it has gained
-- since is lost, and a log counts as spent.
local FOREIGN_WIDE, FOREIGN_NARROW = '^(-?%d+)[:@]%d+$', '^(-?%d*)1%d%d%d%d%d%d%d%d%d$'
-- A tracked key: its own share record, how its quota follows from the policy's (once an
-- attempt has told), and what any key holds.
local TRACKED = '^T(%d+:%d+:%d+:%d+:%d+:%d+:%d+:[%d.]+:%d+:%a:%d+:%d+:%d+:%d+:%d+[|:%d]*)(;?[%d:.]*)#(.*)$'
local floor, ceil, match, format = math.floor, math.ceil, string.match, string.format
local sub, byte = string.sub, string.byte
local call, KEYS, ARGV = redis.call, KEYS, ARGV

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local cost, mode = tonumber(ARGV[1]), ARGV[2]
local held = call('MGET', unpack(KEYS))
local peek = mode == 'p'
local remember = mode ~= '0' and not peek
if remember and held[#KEYS] then return held[#KEYS] end

local k, lease_end = 1, nil
if ARGV[3] == '1' then
  k = 2
  if not held[1] then return {-1} end
end

-- Pass one: what each quota says. The last one, mostly the only one, stays in these
-- variables; those before it are kept as lists of them for pass two.
local code, spendable, wait, key, kind, level, mark, life, narrow, capacity
local pause, version, share_c, share_r, head, slow
local quotas, count, allowed = nil, 0, 1
local a, last = 4, #ARGV
while a <= last do
  if count > 0 then
    quotas = quotas or {}
    quotas[count] = {code, spendable, wait, key, kind, level, mark, life, narrow, capacity,
      pause, version, share_c, share_r, head, slow}
  end
  count = count + 1
  kind = tonumber(ARGV[a])
  local shadow = kind < 0
  if shadow then kind = -kind end
  local value, own, scaled = held[k], nil, nil
  head = false
  if value and byte(value) == 84 then
    local r, s, v = match(value, TRACKED)
    if r then own, scaled, value = r, s, v ~= '' and v end
  end
  key, code, wait, pause, version, share_c, share_r, narrow = KEYS[k], 1, 0, 0, 0, 0, 0, false

  if kind == 1 then
    -- Regional numbers: the value is a level and its instant, "level@us". Refill is
    -- a whole number of milli-tokens in a whole number of microseconds, in lowest
    -- terms, and the instant only ever moves on by whole such steps, so no sequence of
    -- touches loses a fraction or gains one.
    local refill, period = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    capacity, slow = tonumber(ARGV[a + 1]), period / refill
    level, mark, spendable = capacity, now, capacity
    if value then
      local l, f = match(value, '^(-?%d+)@(%d+)$')
      local moved = not l
      if l then
        level, mark = tonumber(l), tonumber(f)
        local elapsed = now - mark
        spendable = level
        if elapsed > 0 then
          local whole = floor(elapsed / period)
          level, mark = level + whole * refill, mark + whole * period
          spendable = level + floor((now - mark) * refill / period)
        elseif -elapsed > capacity * slow then
          moved = true -- the clock stepped back by a lot: go on from here; a little: wait for it
        end
      else
        level = tonumber(match(value, FOREIGN_WIDE) or match(value, FOREIGN_NARROW)) or 0
      end
      if moved then
        if level > capacity then level = capacity end
        if level < 0 then level = 0 end
        spendable, mark = level, now
        if not peek then
          call('SET', key, format('%d@%d', level, mark), 'PX', ceil((capacity - level) * slow / 1000) + 1)
        end
      end
      if spendable >= capacity then
        level, spendable = capacity, capacity
        if mark < now then mark = now end
      elseif spendable < 0 then
        spendable = 0
      end
    end
    if cost > capacity then
      code = -1
    elseif spendable < cost then
      code = 0
      wait = ceil((cost - level) * period / refill)
      if level + floor(wait * refill / period) < cost then wait = wait + 1 end -- a product above 2^53
      wait = wait + mark - now
    end
    pause = mark - now
    k, a = k + 1, a + 4
  elseif kind == 2 or kind == 5 then
    -- A share record: the value is (x, A_x), the level and the policy's accumulator
    -- when it was touched. E1: level = min(ghost, x + A - A_x).
    local rec = own or held[k + 1]
    if not rec then return {-2, count} end
    local limit, c, r, per, acc, at, g0, form
    limit, version, c, r, per, acc, at, g0, life, form =
      match(rec, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d.]+):(%d+):(%a)')
    limit, capacity, share_c, share_r = tonumber(limit), tonumber(c), c, r
    local rate, elapsed, exact, gained = tonumber(r), now - at, 0, 0
    per = per * DRIFT
    if elapsed > 0 then
      exact = elapsed * rate / per
      gained = floor(exact)
    elseif elapsed < -PAUSE then
      -- The clock stepped back: what counts by the record would stand still until it
      -- has caught up.
      elapsed = 0
      rec = string.gsub(rec, '^(%d+:%d+:%d+:%d+:%d+:%d+):%d+', '%1:' .. format('%.0f', now))
      if own and not peek then
        call('SET', key, 'T' .. rec .. scaled .. '#' .. (value or ''))
      elseif not peek then
        call('SET', KEYS[k + 1], rec)
      end
    end
    if own then
      version = '-' .. version
      head = 'T' .. rec .. (kind == 2 and ';1:1:1:1#' or
        format(';%s:%s:%s:%s#', ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]))
    end
    local lapsed = false
    if form == 'N' or form == 'W' then
      lease_end = lease_end or tonumber(match(held[1], '^[^:]+:%d+:%d+:(%d+)'))
      if lease_end < now then
        -- The lease is over: from there on only the permanent part counts.
        local pc, pr = match(rec, '%a:(%d+):(%d+)')
        local whole = math.max(0, elapsed)
        local leased = math.min(whole, math.max(0, lease_end - (now - elapsed)))
        exact = leased * rate / per + (whole - leased) * pr / per
        gained, lapsed = floor(exact), true
        capacity, rate = math.min(capacity, tonumber(pc)), tonumber(pr)
      end
    end
    mark = (acc + (gained < WRAP and gained or math.fmod(gained, WRAP))) % WRAP
    spendable = floor(g0 + exact)
    if spendable > capacity then spendable = capacity end
    narrow = form == 'n' or form == 'N'
    slow = per / rate
    local base, scale, short = nil, 1, 0 -- short: what the accumulator lacks for the cost
    if kind == 5 then
      limit, base, scale = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
      capacity, spendable = floor(capacity * limit / base), floor(spendable * limit / base)
      life, narrow, slow = math.min(ceil(life * ARGV[a + 4]), LIFE), false, per / (rate * scale)
      a = a + 4
      if limit / base > scale then
        -- Room from a grown share fills more slowly than the ghost's.
        for grown, from in string.gmatch(rec, '|(%d+):(%d+)') do
          local since, first = (mark - grown) % WRAP, from * limit / base
          if since >= WRAP / 2 then since = since - WRAP end
          local filled = floor(first + math.max(0, since) * scale)
          if filled < spendable then spendable = filled end
          if filled < cost then
            local need = ceil((cost - first) / scale)
            if floor(first + need * scale) < cost then need = need + 1 end
            short = math.max(short, need - since)
          end
        end
      end
    end
    local x, since
    if value then
      local was, wrap = tonumber(sub(value, -9)), 1e9
      if was and byte(value, -10) == 49 then
        x = #value == 10 and 0 or tonumber(sub(value, 1, -11))
      end
      if not x then
        local l, m = match(value, '^(-?%d+):(%d+)$')
        if l then x, was, wrap = tonumber(l), tonumber(m), WRAP end
      end
      local moved = not x
      if moved then
        x = tonumber(match(value, FOREIGN_WIDE) or match(value, FOREIGN_NARROW)) or 0
        was, wrap = mark, WRAP
      end
      since = (mark - was) % wrap
      if since >= wrap / 2 then
        since = since - wrap
        if -since <= capacity / scale then
          mark = was -- the clock stepped back by a little: wait for it
        else
          since, moved = 0, true -- by a lot: go on from here
        end
      end
      if head and not peek and (moved or scaled == '') then
        call('SET', key, head .. (moved and format('%d:%d', x, mark) or value))
      elseif moved and not peek then
        call('SET', key, format('%d:%d', x, mark), 'PX', life)
      end
      local filled = x
      if since > 0 then filled = x + (base and floor(since * scale) or since) end
      if filled < spendable then spendable = filled end
      if spendable < 0 then spendable = 0 end
    elseif scaled == '' and not peek then
      call('SET', key, head)
    end
    if cost > limit then
      code = -1
    elseif spendable < cost then
      code = 0
      local whole = cost -- what the ghost must be for the bucket to have the cost
      if base then
        whole = ceil(cost * base / limit)
        if floor(whole * limit / base) < cost then whole = whole + 1 end
      end
      short = math.max(short, whole - g0 - gained)
      if x then
        local need = ceil((cost - x) / scale)
        if floor(need * scale) < cost - x then need = need + 1 end
        short = math.max(short, need - since)
      end
      if rate > 0 and lapsed then
        wait = ceil(short * per / rate) + 1
      elseif rate > 0 then
        wait = ceil((gained + short) * per / rate) - elapsed + 1
      end
    end
    -- Accumulators are whole milli-tokens. The one that is under way when a bucket
    -- leaves its capacity is not its own.
    if spendable >= capacity then mark = (mark + 1) % WRAP end
    level = spendable
    if elapsed < 0 then pause = -elapsed end
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

    local limit, n, window, blocked = nil, nil, nil, 0
    if kind == 3 then
      limit, window = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
      n = limit
      k, a = k + 1, a + 3
    else
      local rec = own or held[k + 1]
      if not rec then return {-2, count} end
      local lim, ver, c, per, from, form, pc = match(rec, '^(%d+):(%d+):(%d+):%d+:(%d+):%d+:(%d+):[%d.]+:%d+:(%a):(%d+)')
      limit, version, share_c, n, window = tonumber(lim), ver, c, tonumber(c), ceil(per * DRIFT)
      if form == 'N' or form == 'W' then
        lease_end = lease_end or tonumber(match(held[1], '^[^:]+:%d+:%d+:(%d+)'))
        if lease_end < now then n = math.min(n, tonumber(pc)) end
      end
      local scale = ';1:1:1:1#'
      if kind == 6 then
        limit = tonumber(ARGV[a + 1])
        n = n * limit / ARGV[a + 2]
        scale = format(';%s:%s:1:1#', ARGV[a + 1], ARGV[a + 2])
        a = a + 2
      end
      if now < tonumber(from) then
        blocked = from - now
        if blocked > window + PAUSE then
          blocked = window -- the clock stepped back, as above
          rec = string.gsub(rec, '^(%d+:%d+:%d+:%d+:%d+:%d+):%d+', '%1:' .. format('%.0f', now + window))
          if own and not peek then
            call('SET', key, 'T' .. rec .. scaled .. '#' .. (value or ''))
          elseif not peek then
            call('SET', KEYS[k + 1], rec)
          end
        end
      end
      if own then head, version = 'T' .. rec .. scale, '-' .. version end
      if scaled == '' and not peek then call('SET', key, head .. (value or '')) end
      k, a = k + 2, a + 1
    end
    n = floor(n / 1000)
    local moved = false
    if not value then
      value = ''
    elseif sub(value, 1, 1) == 'L' and #value % 7 == 1 then
      value = sub(value, 2)
    else
      -- Left by a token bucket, or by nobody of ours: a whole limit may just have been
      -- admitted.
      value, moved = string.rep(stamp(now), n), true
    end
    local entries, entry = #value / 7, now
    if entries > 0 then
      local ahead = -age(value, entries)
      if ahead > window then
        -- The clock stepped back by more than a window: go on from here.
        value, moved = string.rep(stamp(now), entries), true
      elseif ahead > 0 then
        entry = now + ahead
      end
      if moved and not peek then
        if head then
          call('SET', key, head .. 'L' .. value)
        else
          call('SET', key, 'L' .. value, 'PX', ceil(window / 1000) + 1)
        end
      end
      -- Find the first entry inside the window.
      local lo, hi = 1, entries + 1
      while lo < hi do
        local mid = floor((lo + hi) / 2)
        if age(value, mid) >= window then lo = mid + 1 else hi = mid end
      end
      if lo > 1 then
        value = sub(value, lo * 7 - 6)
        entries = entries - lo + 1
      end
    end
    local want = cost / 1000
    if cost > limit then
      code = -1
    elseif blocked > 0 or entries + want > n then
      code = 0
      local gone = math.min(entries + want - n, entries)
      wait = math.max(blocked, gone > 0 and window - age(value, gone) or 0, 1)
    end
    spendable = blocked > 0 and 0 or math.max(0, n - entries) * 1000
    pause = entries > 0 and math.max(0, window - age(value, entries)) or 0
    if code == 1 and want > 0 then value = value .. string.rep(stamp(entry), want) end
    level, mark, life = value, entry, window
  end

  if code ~= 1 and not shadow then allowed = 0 end
end

-- Pass two: charge, and say what is left. A denied attempt charges nothing.
local charge = allowed == 1 and cost > 0 and not peek
local out, o = nil, 2
if count > 1 or peek then
  out = {allowed, now}
  if quotas then
    quotas[count] = {code, spendable, wait, key, kind, level, mark, life, narrow, capacity,
      pause, version, share_c, share_r, head, slow}
  end
end
for i = 1, count do
  if quotas then
    code, spendable, wait, key, kind, level, mark, life, narrow, capacity,
      pause, version, share_c, share_r, head, slow = unpack(quotas[i])
  end
  local reset, charged = 0, charge and code == 1
  if charged then spendable = spendable - cost end
  if kind == 1 then
    if charged then level = level - cost end
    if spendable < capacity then reset = pause + ceil((capacity - level) * slow) end
    if charged then call('SET', key, format('%d@%d', level, mark), 'PX', ceil(reset / 1000) + 1) end
  elseif kind == 2 or kind == 5 then
    if charged and head then
      call('SET', key, head .. format('%d:%d', spendable, mark))
    elseif charged and narrow then
      call('SET', key, spendable == 0 and 1000000000 + mark % 1e9 or format('%d%d', spendable, 1000000000 + mark % 1e9), 'PX', life)
    elseif charged then
      call('SET', key, format('%d:%d', spendable, mark), 'PX', life)
    end
    if spendable < capacity and slow < 1e300 then reset = pause + ceil((capacity - spendable) * slow) end
  elseif charged then
    reset = life + mark - now
    if head then
      call('SET', key, head .. 'L' .. level)
    else
      call('SET', key, 'L' .. level, 'PX', ceil(reset / 1000) + 1)
    end
  else
    reset = pause
  end
  if wait > WAIT then wait = WAIT end
  if reset > WAIT then reset = WAIT end
  if out then
    out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5] = code, spendable, wait, reset, tonumber(version)
    o = o + 5
    if peek then
      out[o + 1], out[o + 2] = tonumber(share_c), tonumber(share_r)
      o = o + 2
    end
  else
    out, o = {allowed, now, code, spendable, wait, reset, tonumber(version)}, 7
  end
end
if remember and charge then
  local text = {}
  for i = 1, o do text[i] = format('%.0f', out[i]) end
  call('SET', KEYS[#KEYS], table.concat(text, ' '), 'PX', mode)
end
return out
