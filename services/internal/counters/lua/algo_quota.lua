-- algo_quota.lua is limit's quota: used = consumed - refunded, and used + cost
-- may not exceed the limit.
--
-- asks   a limit (units; 2^53-1 never refuses), b and c the period's start and
--        end (µs), d and e its floors: consumed and refunded are at least
--        those (units)
-- value  version, consumed, refunded (units), expiry (µs); the numbers are
--        doubles
local UNLIMITED = EXACT - 1
local KEEP = 691200000000 -- µs that a value outlives its period: 8 days

local limit, from, till = a, b, c
local version, expiry = VERSION, 0
if raw and #raw == 25 then version, consumed, refunded, expiry = unstruct('<Bddd', raw) end
if lost and flags < 2 then
  status = LOST
elseif now < from or now >= till then
  status = STALE
elseif version ~= VERSION or raw and #raw ~= 25 then
  status = UNREADABLE
else
  consumed, refunded = max(consumed, d), max(refunded, e)
  reset = till - now
  if units > 0 and limit ~= UNLIMITED then
    local room = min(limit - (consumed - refunded), UNLIMITED - consumed)
    if units > limit then wait = -1 elseif units > room then wait = reset end
  end

  if taken > 0 and (wait == 0 or soft) then
    short = max(0, taken - (UNLIMITED - consumed))
    consumed = consumed + (taken - short)
    if expiry < till + KEEP then
      expiry = till + KEEP
      renewal = expiry
    end
    value = pack('<Bddd', VERSION, consumed, refunded, expiry)
  end

  remaining = limit - (consumed - refunded)
  if limit ~= UNLIMITED then remaining = min(remaining, UNLIMITED - consumed) end
  remaining = min(limit, max(0, remaining))
end
