-- gcra.lua charges a unit of each of its keys, or none.
--
-- KEYS     theoretical arrival times, µs since 1970
-- ARGV[1]  now, µs   ARGV[2]  price of a unit, µs   ARGV[3]  units at once
--
-- Returns the units left of the tightest, or less than 0: µs to wait, negative.
local now, price = tonumber(ARGV[1]), tonumber(ARGV[2])
local horizon = now + price * tonumber(ARGV[3])
local arrivals, last = redis.call('MGET', unpack(KEYS)), 0
for i = 1, #KEYS do
  local at = math.max(tonumber(arrivals[i] or now), now) + price
  arrivals[i], last = at, math.max(last, at)
end
if last > horizon then return horizon - last end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], string.format('%.0f', arrivals[i]), 'PX', math.ceil((arrivals[i] - now) / 1000))
end
return math.floor((horizon - last) / price)
