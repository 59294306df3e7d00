-- remember.lua restores what was known of decisions' corrections. What is there
-- and knows as much stays. Values are as correct.lua has them, of which it works
-- out, by what the receipt says was charged, what their flag 2 says is not known.
--
-- KEYS     what is remembered of decisions, each once
-- ARGV[i]  the value of KEYS[i]; ARGV[#KEYS+i] how long it is known (ms)
--
-- Returns how many were written.
local unstruct = struct.unpack
local known, n = redis.call('MGET', unpack(KEYS)), 0
for i = 1, #KEYS do
  local keep = false
  if known[i] then
    local v, charged, settled, total = unstruct('<Bddd', ARGV[i])
    local version, c, s, t = unstruct('<B', known[i]), 0, 0, 0
    keep = version ~= v
    if not keep then
      version, c, s, t = unstruct('<Bddd', known[i])
      keep = t >= total and (s >= 0 or settled < 0)
    end
  end
  if not keep then
    redis.call('SET', KEYS[i], ARGV[i], 'PX', ARGV[#KEYS + i])
    n = n + 1
  end
end
return {n}
