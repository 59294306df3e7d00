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

  local algo = {size = 25}
  algorithms.q = algo

  function algo.term(pos)
    return {algo = algo, cost = A[pos + 1] + 0, limit = A[pos + 2] + 0, from = A[pos + 3] + 0, till = A[pos + 4] + 0}
  end

  function algo.fresh(key)
    return {key = key, consumed = 0, refunded = 0, expiry = false, asked = 0, dirty = false}
  end

  function algo.open(key, raw)
    local _, consumed, refunded, expiry = unstruct('<Bddd', raw)
    return {key = key, consumed = consumed, refunded = refunded, expiry = expiry, asked = 0, dirty = false}
  end

  function algo.ask(s, c, units)
    local room = min(c.limit - (s.consumed - s.refunded), UNLIMITED - s.consumed)
    if units <= room or c.limit == UNLIMITED then return 0 end
    if units > c.limit then return -1 end
    return c.till - now
  end

  function algo.take(s, _, units)
    s.consumed = s.consumed + min(units, UNLIMITED - s.consumed)
    return true
  end

  function algo.show(s, c)
    return min(c.limit, max(0, c.limit - (s.consumed - s.refunded))), c.till - now, s.consumed, s.refunded
  end

  function algo.close(s, c)
    return pack('<Bdd', VERSION, s.consumed, s.refunded), c.till + KEEP, 0
  end
end
