-- algo_fixed_window.lua is limit's fixed window of the grid since the epoch.
--
-- asks   a limit (units; 2^53-1 never refuses), b window (µs)
-- value  version, the window's first instant (µs), its units, expiry (µs); the
--        numbers are doubles
local UNLIMITED, MANY = EXACT - 1, 1000000000 -- units that are counted

local limit, window = a, b
local version, from, current, expiry = VERSION, 0, 0, 0
if raw and #raw == 25 then version, from, current, expiry = unstruct('<Bddd', raw) end
if version ~= VERSION or raw and #raw ~= 25 then
  status = UNREADABLE
else
  local start = now - now % window
  if start > from then from, current = start, 0 end

  if units > 0 and limit ~= UNLIMITED and current + units > limit then
    wait = units > limit and -1 or from + window - now
  end

  if taken > 0 and (wait == 0 or soft) then
    short = max(0, taken - (MANY - current))
    current = current + (taken - short)
    if expiry < from + window + GRACE then
      expiry = from + window + GRACE + min(MOST, max(LEAST, window))
      renewal = expiry
    end
    value = pack('<Bddd', VERSION, from, current, expiry)
  end

  remaining, reset = max(0, limit - current), from + window - now
end
