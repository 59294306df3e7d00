-- algo_wallet.lua is limit's overdraft wallet: it passes while its balance,
-- limit - consumed + refunded, is above 0.
--
-- asks   a limit (units; of a prepaid wallet all that was granted; of a renewable
--        one 2^53-1 never refuses), b and c the period's start and end (µs; 0
--        and 0 of a prepaid one), d and e its floors: consumed and refunded are
--        at least those (units)
-- value  version, consumed, refunded (units), expiry (µs, 0 is none); the numbers
--        are doubles
local UNLIMITED = EXACT - 1
local KEEP = 691200000000 -- µs that a value outlives its period: 8 days

local limit, from, till = a, b, c
local prepaid = from == 0 and till == 0
local version, expiry = VERSION, 0
if raw and #raw == 25 then version, consumed, refunded, expiry = unstruct('<Bddd', raw) end
if lost and flags < 2 then
  status = LOST
elseif not prepaid and (now < from or now >= till) then
  status = STALE
elseif version ~= VERSION or raw and #raw ~= 25 then
  status = UNREADABLE
else
  consumed, refunded = max(consumed, d), max(refunded, e)
  local balance = limit - (consumed - refunded)
  if not prepaid then reset = till - now end
  if units > 0 and (prepaid or limit ~= UNLIMITED) and (balance <= 0 or units > UNLIMITED - consumed) then
    wait = (prepaid or limit == 0 or units > UNLIMITED) and -1 or reset
  end

  if taken > 0 and (wait == 0 or soft) then
    short = max(0, taken - (UNLIMITED - consumed))
    consumed = consumed + (taken - short)
    if not prepaid and expiry < till + KEEP then -- a prepaid one's key is made without
      expiry = till + KEEP
      renewal = expiry
    end
    value = pack('<Bddd', VERSION, consumed, refunded, expiry)
  end

  remaining = limit - (consumed - refunded)
  if prepaid or limit ~= UNLIMITED then remaining = min(remaining, UNLIMITED - consumed) end
  remaining = min(limit, max(0, remaining))
end
