-- algo_sliding_window_log.lua is limit's exact sliding window. What is used and
-- how long to wait is found by halving.
--
-- asks   a limit (units), b window (µs)
-- value  version, expiry (µs, double), total (4 bytes) in front of the entries,
--        then per entry its time (µs, double) and the total up to it (4 bytes).
--        Totals are units modulo 2^32
local WRAP = 4294967296

local limit, window = a, b
local size, version, text = raw and #raw or 13, VERSION, raw
if raw then version = raw:byte() end
if version ~= VERSION or size < 13 or (size - 13) % 12 ~= 0 then
  status = UNREADABLE
else
  -- Entry i is at 2 + 12i, its total at 10 + 12i. Those up to gone count no
  -- more.
  local count, gone, before, last, latest = (size - 13) / 12, 0, 0, 0, 0
  if raw then
    local top = count
    while gone < top do
      local half = ceil((gone + top) / 2)
      if now - unstruct('<d', text, 2 + 12 * half) >= window then gone = half else top = half - 1 end
    end
    before, last = unstruct('<I4', text, 10 + 12 * gone), unstruct('<I4', text, 10 + 12 * count)
    if count > gone then latest = unstruct('<d', text, 2 + 12 * count) end
  end
  local used = (last - before) % WRAP

  if units > 0 and used + units > limit then
    local most = limit - units -- that may be used
    if most < 0 then
      wait = -1
    else
      local first, top = gone + 1, count
      while first < top do
        local half = floor((first + top) / 2)
        if (last - unstruct('<I4', text, 10 + 12 * half)) % WRAP <= most then top = half else first = half + 1 end
      end
      wait = unstruct('<d', text, 2 + 12 * first) + window - now
    end
  end

  local more = 0
  if taken > 0 and (wait == 0 or soft) then
    more = max(0, min(taken, limit - used))
    short = taken - more
  end
  if more > 0 then
    latest, last, used = max(now, latest), (last + more) % WRAP, used + more
    local entries = count > gone and text:sub(14 + 12 * gone) or ''
    renewal = latest + window + GRACE
    value = pack('<BdI4', VERSION, renewal, before) .. entries .. pack('<dI4', latest, last)
    text, count, gone = value, count - gone + 1, 0
  end

  remaining = max(0, limit - used)
  local less = min(used, limit) - 1 -- the most that is used when one unit more remains
  if less >= 0 then
    local first, top = gone + 1, count
    while first < top do
      local half = floor((first + top) / 2)
      if (last - unstruct('<I4', text, 10 + 12 * half)) % WRAP <= less then top = half else first = half + 1 end
    end
    reset = unstruct('<d', text, 2 + 12 * first) + window - now
  end
end
