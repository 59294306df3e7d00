-- algo_quota.lua is limit's quota: used = consumed - refunded, and used + cost
-- may not exceed the limit.
--
-- term   'q', cost, limit (units; 2^53-1 never refuses), the period's start
--        and end (µs)
-- value  version, consumed, refunded (units), expiry (µs); the numbers are
--        doubles
do
  local UNLIMITED = EXACT - 1
  local KEEP = 691200000000 -- µs that a value outlives its period: 8 days

  local function ask(s, c, units)
    local room = min(c.limit - (s.consumed - s.refunded), UNLIMITED - s.consumed)
    if units <= room or c.limit == UNLIMITED then return 0 end
    if units > c.limit then return -1 end
    return c.till - now
  end

  local function take(s, c, units)
    s.consumed = s.consumed + min(units, UNLIMITED - s.consumed)
    s.need, s.spare = c.till + KEEP, 0
  end

  local function show(s, c)
    return min(c.limit, max(0, c.limit - (s.consumed - s.refunded))), c.till - now, s.consumed, s.refunded
  end

  algorithms.q = {
    size = 25, ask = ask, take = take, show = show,
    term = function(pos) return {limit = A[pos + 2] + 0, from = A[pos + 3] + 0, till = A[pos + 4] + 0} end,
    fresh = function() return {consumed = 0, refunded = 0} end,
    open = function(raw)
      local _, consumed, refunded, expiry = unpack_('<Bddd', raw)
      return {consumed = consumed, refunded = refunded, expiry = expiry}
    end,
    close = function(s) return pack('<Bdd', VERSION, s.consumed, s.refunded) end,
  }
end
