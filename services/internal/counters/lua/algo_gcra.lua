-- algo_gcra.lua is limit.Bucket: the generic cell rate algorithm in whole
-- credits.
--
-- term   'g', cost, capacity (units), unit (credits), refill (credits a tick),
--        tick (µs)
-- value  version, debt (credits), unit (credits), at (µs), expiry (µs); the
--        numbers are doubles
do
  local YEARS = 315576000000000 -- ten, in µs: no value lives longer untouched

  local function term(pos)
    local c = {capacity = A[pos + 2] + 0, unit = A[pos + 3] + 0, refill = A[pos + 4] + 0, tick = A[pos + 5] + 0}
    c.full, c.now = c.capacity * c.unit, floor(now / c.tick)
    return c
  end

  local function carry(debt, unit, c)
    local whole = floor(debt / unit)
    if whole >= c.capacity then return c.full end
    return whole * c.unit + min(c.unit, ceil((debt - whole * unit) / unit * c.unit))
  end

  -- settle is what is owed now, in credits of c, and the tick from which.
  local function settle(s, c)
    local debt = s.debt
    if debt == 0 then return 0, c.now end
    if s.unit ~= c.unit then debt = carry(debt, s.unit, c) end
    local at = ceil(s.at / c.tick)
    local elapsed = c.now - at
    if elapsed <= 0 then return min(debt, c.full), at end
    if elapsed >= ceil(debt / c.refill) then return 0, c.now end
    return min(debt - elapsed * c.refill, c.full), c.now
  end

  local function ask(s, c, units)
    if units > c.capacity then return -1 end
    local debt, tick = settle(s, c)
    local over = debt + units * c.unit - c.full
    if over <= 0 then return 0 end
    local wait = ceil(over / c.refill)
    if wait > floor(MAX_WAIT / c.tick) then return -1 end
    return (tick + wait) * c.tick - now
  end

  local function take(s, c, units)
    if c.capacity == 0 then return end
    local debt, tick = settle(s, c)
    s.debt = units < c.capacity and min(c.full, debt + units * c.unit) or c.full
    s.unit, s.at = c.unit, tick * c.tick
    s.need = min(now + YEARS, (tick + ceil(s.debt / c.refill)) * c.tick) + GRACE
    s.spare = min(60000000, ceil(c.full / c.refill) * c.tick)
  end

  local function show(s, c)
    if c.capacity == 0 then return 0, 0, 0, 0 end
    local debt, tick = settle(s, c)
    local remaining = c.capacity - ceil(debt / c.unit)
    if debt == 0 then return remaining, 0, 0, 0 end
    local rise = debt - (c.capacity - remaining - 1) * c.unit
    return remaining, (tick + ceil(rise / c.refill)) * c.tick - now, 0, 0
  end

  algorithms.g = {
    size = 33, term = term, ask = ask, take = take, show = show,
    fresh = function() return {debt = 0, unit = 1, at = 0, need = now + GRACE, spare = 0} end,
    open = function(raw)
      local _, debt, unit, at, expiry = unpack_('<Bdddd', raw)
      return {debt = debt, unit = unit, at = at, expiry = expiry, need = expiry, spare = 0}
    end,
    close = function(s) return pack('<Bddd', VERSION, s.debt, s.unit, s.at) end,
  }
end
