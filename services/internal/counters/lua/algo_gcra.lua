-- algo_gcra.lua is limit.Bucket: the generic cell rate algorithm in whole
-- credits.
--
-- term   'g', cost, capacity (units), unit (credits), refill (credits a tick),
--        tick (µs)
-- value  version, debt (credits), unit (credits), at (µs), expiry (µs); the
--        numbers are doubles
do
  local YEARS = 315576000000000 -- ten, in µs: no value lives longer untouched

  local algo = {size = 33}
  algorithms.g = algo

  function algo.term(pos)
    local capacity, unit, tick = A[pos + 2] + 0, A[pos + 3] + 0, A[pos + 5] + 0
    return {
      algo = algo, cost = A[pos + 1] + 0, capacity = capacity, unit = unit, refill = A[pos + 4] + 0, tick = tick,
      full = capacity * unit, now = floor(now / tick),
    }
  end

  function algo.fresh(key)
    return {key = key, debt = 0, unit = 1, at = 0, expiry = false, asked = 0, dirty = false}
  end

  function algo.open(key, raw)
    local _, debt, unit, at, expiry = unstruct('<Bdddd', raw)
    return {key = key, debt = debt, unit = unit, at = at, expiry = expiry, asked = 0, dirty = false}
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

  function algo.ask(s, c, units)
    if units > c.capacity then return -1 end
    local debt, tick = settle(s, c)
    local over = debt + units * c.unit - c.full
    if over <= 0 then return 0 end
    local wait = ceil(over / c.refill)
    if wait > floor(MAX_WAIT / c.tick) then return -1 end
    return (tick + wait) * c.tick - now
  end

  function algo.take(s, c, units)
    if c.capacity == 0 then return false end
    local debt, tick = settle(s, c)
    s.debt = units < c.capacity and min(c.full, debt + units * c.unit) or c.full
    s.unit, s.at = c.unit, tick * c.tick
    return true
  end

  function algo.show(s, c)
    if c.capacity == 0 then return 0, 0, 0, 0 end
    local debt, tick = settle(s, c)
    local remaining = c.capacity - ceil(debt / c.unit)
    if debt == 0 then return remaining, 0, 0, 0 end
    local rise = debt - (c.capacity - remaining - 1) * c.unit
    return remaining, (tick + ceil(rise / c.refill)) * c.tick - now, 0, 0
  end

  function algo.close(s, c)
    local free = s.at + ceil(s.debt / c.refill) * c.tick -- when all is paid back
    return pack('<Bddd', VERSION, s.debt, s.unit, s.at), min(now + YEARS, free) + GRACE,
      min(60000000, ceil(c.full / c.refill) * c.tick)
  end
end
