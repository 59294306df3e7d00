-- algo_sliding_window_counter.lua is limit's estimate of a sliding window from
-- two windows of the grid.
--
-- asks   a limit (units; 2^53-1 never refuses), b window (µs), c tick (µs), d
--        ticks of a window
-- value  version, the current window's first instant (µs), its units, those of
--        the window before, expiry (µs); the numbers are doubles
local UNLIMITED, MANY = EXACT - 1, 1000000000 -- units that are counted of a window

local limit, window, tick, ticks = a, b, c, d
local version, from, current, previous, expiry = VERSION, 0, 0, 0, 0
if raw and #raw == 33 then version, from, current, previous, expiry = unstruct('<Bdddd', raw) end
if version ~= VERSION or raw and #raw ~= 33 then
  status = UNREADABLE
else
  local start = now - now % window
  if start > from then
    previous = start == from + window and current or 0
    from, current = start, 0
  end
  local rest, till = from + window - now, from + window
  local left = min(ticks, ceil(rest / tick)) -- ticks to come, the begun one included
  local used = current + ceil(previous * left / ticks)

  if units > 0 and limit ~= UNLIMITED and used + units > limit then
    local most = limit - units -- that may be used
    if most < 0 then
      wait = -1
    else
      local share = most >= current and floor((most - current) * ticks / previous) or 0
      if share > 0 then
        wait = rest - share * tick
      elseif current <= most then
        wait = rest
      else
        wait = rest + window - floor(most * ticks / current) * tick
      end
    end
  end

  if taken > 0 and (wait == 0 or soft) then
    short = max(0, taken - (MANY - current))
    current, used = current + (taken - short), used + (taken - short)
    if expiry < till + window + GRACE then
      expiry = till + window + GRACE + min(MOST, max(LEAST, window))
      renewal = expiry
    end
    value = pack('<Bdddd', VERSION, from, current, previous, expiry)
  end

  remaining, reset = max(0, limit - used), rest
end
