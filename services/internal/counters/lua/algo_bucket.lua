-- algo_bucket.lua is limit.Bucket, for gcra, token_bucket and leaky_bucket: the
-- generic cell rate algorithm in whole credits.
--
-- asks   a capacity (units), b unit (credits), c refill (credits a tick), d
--        tick (µs), e the longest wait in the queue (µs, 0: there is none)
-- value  version, debt (credits), unit (credits), at (µs), expiry (µs); the
--        numbers are doubles
local MAX_WAIT = 4503599627370496 -- 2^52 µs: what takes longer is never
local YEARS = 315576000000000 -- ten, in µs: no value lives longer untouched

local capacity, unit, refill, tick = a, b, c, d
local version, debt, credits, at, expiry = VERSION, 0, unit, 0, 0
if raw and #raw == 33 then version, debt, credits, at, expiry = unstruct('<Bdddd', raw) end
if version ~= VERSION or raw and #raw ~= 33 then
  status = UNREADABLE
elseif capacity == 0 then
  if units > 0 then wait = -1 end
  if soft then short = taken end
else
  -- What is owed now, in credits of unit, and since which tick.
  local full, since = capacity * unit, now / tick
  since = since - since % 1
  if debt > 0 then
    if credits ~= unit then -- the limit was another: whole units are exact, parts of one are rounded up
      local whole = floor(debt / credits)
      local part = ceil((debt - whole * credits) / credits * unit)
      debt = whole >= capacity and full or whole * unit + min(unit, part)
    end
    local from = at / tick
    from = from + -from % 1
    local elapsed = since - from
    if elapsed > 0 then
      debt = debt - elapsed * refill
      if debt < 0 then debt = 0 end
    else
      since = from
    end
    if debt > full then debt = full end
  end

  local over = debt + units * unit - full
  if units > capacity then
    wait = -1
  elseif over > 0 then
    local ticks = over / refill
    ticks = ticks + -ticks % 1
    wait = ticks > floor(MAX_WAIT / tick) and -1 or (since + ticks) * tick - now
  end
  if e > 0 and debt > 0 and units > 0 and wait >= 0 then
    local ahead = debt / refill -- ticks until what is there has left
    ahead = ahead + -ahead % 1
    if ahead > floor(MAX_WAIT / tick) then
      wait = -1
    else
      ahead = (since + ahead) * tick - now
      if ahead > e then
        wait = max(wait, ahead - e)
      elseif wait == 0 then
        delay = ahead
      end
    end
  end

  if taken > 0 and (wait == 0 or soft) then
    local more = taken * unit
    if more > full - debt then
      local room = (full - debt) / unit
      short, debt = taken - (room - room % 1), full
    else
      debt = debt + more
    end
    at = since * tick
    if expiry < at + (debt / refill + 2) * tick + GRACE then -- about; now exactly
      local free = at + ceil(debt / refill) * tick -- when all is paid back
      if free > now + YEARS then free = now + YEARS end
      if expiry < free + GRACE then
        local empties = ceil(full / refill) * tick
        expiry = free + GRACE + max(floor(min(YEARS, empties) / 16), min(MOST, max(LEAST, empties)))
        renewal = expiry
      end
    end
    value = pack('<Bdddd', VERSION, debt, unit, at, expiry)
  end

  told = terse and value and e == 0 and short == 0
  remaining = capacity
  if debt > 0 and not told then
    local used = debt / unit
    used = used + -used % 1
    local rise = (debt - (used - 1) * unit) / refill -- until one unit more remains
    rise = rise + -rise % 1
    remaining, reset = capacity - used, (since + rise) * tick - now
    if e > 0 then -- nothing remains while what is ahead takes longer
      local ahead = debt / refill
      ahead = ahead + -ahead % 1
      if ahead > floor(MAX_WAIT / tick) then
        remaining, reset = 0, 0
      elseif (since + ahead) * tick - now > e then
        ahead = (since + ahead) * tick - now - e
        remaining, reset = 0, remaining > 0 and ahead or max(reset, ahead)
      end
    end
  end
end
