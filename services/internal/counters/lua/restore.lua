-- restore.lua has quotas and wallets hold at least what they are known to have
-- held, for as long as they live. It is limit.Restore in Lua. Repeating it, at
-- once or later, changes nothing.
--
-- KEYS     counters, each once
-- ARGV[1]  now, µs since 1970; '' reads the server's clock (production always
--          does)
-- ARGV[2]  per counter, doubles, big-endian: consumed, refunded (units), and
--          expiry (µs; 0 never)
--
-- Returns one string: per counter a status (1: K as much is there, R raised, A
-- there was none, O its time is over, V its value is of a version that cannot be
-- read, or holds what no counter comes to), then doubles: consumed, refunded, as
-- they are now.
local call = redis.call
local pack, unstruct = struct.pack, struct.unpack
local max, ceil = math.max, math.ceil
local VERSION = 1 -- first byte of every value
local EXACT = 9007199254740992 -- 2^53

local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local values, out, at = call('MGET', unpack(KEYS)), {}, 1
for i = 1, #KEYS do
  local consumed, refunded, expiry
  consumed, refunded, expiry, at = unstruct('>ddd', ARGV[2], at)
  local raw, status = values[i], nil
  local version, c, r, until_ = VERSION, 0, 0, 0
  if raw and #raw == 25 then version, c, r, until_ = unstruct('<Bddd', raw) end
  local whole = c >= 0 and c < EXACT and c % 1 == 0 and r >= 0 and r < EXACT and r % 1 == 0
  if raw and (#raw ~= 25 or version ~= VERSION or not whole) then
    status, consumed, refunded = 'V', 0, 0
  elseif raw then
    local later = until_ > 0 and expiry > until_
    status = (consumed > c or refunded > r) and 'R' or 'K'
    consumed, refunded = max(consumed, c), max(refunded, r)
    if later then
      call('SET', KEYS[i], pack('<Bddd', VERSION, consumed, refunded, expiry), 'PX', string.format('%d', max(1, ceil((expiry - now) / 1000))))
    elseif status == 'R' then
      call('SETRANGE', KEYS[i], '0', pack('<Bddd', VERSION, consumed, refunded, until_))
    end
  elseif consumed == 0 and refunded == 0 then
    status = 'K'
  elseif expiry > 0 and expiry <= now then
    status, consumed, refunded = 'O', 0, 0
  else
    status = 'A'
    local value = pack('<Bddd', VERSION, consumed, refunded, expiry)
    if expiry > 0 then
      call('SET', KEYS[i], value, 'PX', string.format('%d', ceil((expiry - now) / 1000)))
    else
      call('SET', KEYS[i], value)
    end
  end
  out[i] = status .. pack('<dd', consumed, refunded)
end
return {table.concat(out)}
