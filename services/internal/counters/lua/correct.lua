-- correct.lua gives back what a decision charged, or charges the rest. It is
-- limit.Correct in Lua; the two must agree on every input. The files algo_*.lua
-- are put in the place marked below, and take what is charged.
--
-- KEYS[1]  the epoch: the run of the server whose counters these are
-- KEYS[2…] what is remembered of the decision's corrections, and its counters
-- ARGV[1]  now, µs since 1970; '' reads the server's clock (production always
--          does)
-- ARGV[2]  the run that the epoch must name; '' is not compared
-- ARGV[3]  the plan, bytes, big-endian: R a refund, S a settlement, M a move that
--          is not remembered (1), key of what is remembered (2), then doubles:
--          cost that was charged (units), when (µs), units to give back (R, 0 is
--          all that is left) or true cost (S) or how much earlier it may have
--          been (M, µs: it was by another server's clock); then per item its counter (key
--          2), flags (1: 1 fixed cost), algorithm (1), and doubles: units that
--          were charged (M: to charge, negative to give back), and five numbers
--          that its algo_*.lua explains
-- ARGV[4]  the refund's id
--
-- Returns one string: effect (1: C corrected, R repeated, X exceeds, S settled,
-- T too many, L lost, V a value is of a version that cannot be read), whether
-- items of fixed cost moved (1), then doubles: now, units, refunded in all, left;
-- and of C per item: units moved, consumed, refunded.
local call = redis.call
local pack, unstruct = struct.pack, struct.unpack
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local K, A = KEYS, ARGV

local VERSION = 1 -- first byte of every value
local EXACT = 9007199254740992 -- 2^53
local GRACE = 10000000 -- µs that a value outlives its use: a promoted replica's clock may be behind
local REMEMBER = '604800000' -- ms that corrections are known
local MOST_REFUNDS = 100
local OUTLIVES = 691200000000 -- µs that a quota outlives its period: 8 days
local STALE, LOST, UNREADABLE = 'S', 'L', 'V'
local BUCKET, QUOTA, FIXED, LOG, SLIDING, WALLET = 1, 2, 3, 4, 5, 6 -- places of algorithms
local LONG = {[BUCKET] = 33, [FIXED] = 25, [SLIDING] = 33} -- bytes of their values

local now = tonumber(A[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local plan, V = A[3], call('MGET', unpack(K))
local lost = A[2] ~= '' and V[1] ~= A[2]
local kind, mark, charged, made, asked, at = unstruct('>c1Hddd', plan)

-- The earliest that it may have been. What is taken back from an earlier time
-- than was charged counts too much for a while, never too little.
local since = kind == 'M' and made - asked or made

-- What is remembered: version, cost, cost it was settled at (-1 not), refunded
-- in all (doubles), flags (1: 1 items of fixed cost were given back), the
-- settlement's units, total and left (doubles), then per refund its id's length
-- (1), id, and its units, total and left (doubles).
local effect, moving, whole, units, left = 'C', 0, false, 0, 0
local settled, total, flags, sunits, stotal, sleft, refunds, text = -1, 0, 0, 0, 0, 0, '', nil
if lost then
  effect = LOST
elseif kind ~= 'M' then
  local known = V[mark]
  if known and (known:byte() ~= VERSION or #known < 50) then
    effect = UNREADABLE
  elseif known then
    local version, from
    version, charged, settled, total, flags, sunits, stotal, sleft, from = unstruct('<BdddBddd', known)
    refunds = known:sub(from)
  end
  left = max(0, (settled >= 0 and settled or charged) - total)
end
if effect ~= 'C' or kind == 'M' then
  -- nothing is to be remembered
elseif kind == 'S' then
  if settled == asked then
    effect, units, total, left = 'R', sunits, stotal, sleft
  elseif settled >= 0 then
    effect = 'S'
  else
    units = max(asked - charged, -max(0, charged - total))
    settled, moving, left = asked, units, max(0, asked - total)
    whole = asked == 0 and flags == 0
    sunits, stotal, sleft = units, total, left
  end
else
  local p, n = 1, 0
  while p <= #refunds and effect == 'C' do
    local id, u, t, l
    id, u, t, l, p = unstruct('<Bc0ddd', refunds, p)
    n = n + 1
    if id == A[4] then effect, units, total, left = 'R', u, t, l end
  end
  if effect == 'C' then
    units = asked == 0 and left or asked
    if left == 0 or units > left then
      effect, units = 'X', 0
    elseif n >= MOST_REFUNDS then
      effect, units = 'T', 0
    else
      total, left, moving = total + units, left - units, -units
      whole = left == 0 and flags == 0
      refunds = refunds .. pack('<Bc0ddd', #A[4], A[4], units, total, left)
    end
  end
end

local items, dirty, expiries = '', {}, {}
if effect == 'C' then
  if whole then flags = 1 end
  local size = #plan
  while at <= size do
    local key, fixed, algorithm, cost, a, b, c, d, e
    key, fixed, algorithm, cost, a, b, c, d, e, at = unstruct('>HBBdddddd', plan, at)
    local raw, move = V[key], moving
    if kind == 'M' then
      move = cost
    elseif fixed > 0 then
      move = whole and -cost or 0
    end
    local status, value, renewal, consumed, refunded = nil, nil, nil, 0, 0
    if algorithm == QUOTA or algorithm == WALLET then
      local version, expiry = VERSION, 0
      if raw then version = raw:byte() end
      if version ~= VERSION or raw and #raw ~= 25 then
        status = UNREADABLE
      else
        if raw then version, consumed, refunded, expiry = unstruct('<Bddd', raw) end
        consumed, refunded = max(consumed, d), max(refunded, e)
        if move > 0 then
          consumed = min(consumed + move, EXACT - 1)
        elseif move < 0 then
          move = -max(0, min(-move, consumed - refunded))
          refunded = refunded - move
        end
        if move ~= 0 then
          if c > 0 and expiry < c + OUTLIVES then
            expiry = c + OUTLIVES
            renewal = expiry
          end
          value = pack('<Bddd', VERSION, consumed, refunded, expiry)
        end
      end
    elseif move > 0 then
      local units, taken, soft, flags, wait, delay, remaining, reset = 0, move, true, 0, 0, 0, 0, 0
      -- ALGORITHMS --
    elseif move < 0 then
      local give, version, long = -move, VERSION, raw and #raw or 0
      move = 0
      if raw then version = raw:byte() end
      if version ~= VERSION or raw and (algorithm == LOG and (long < 13 or (long - 13) % 12 ~= 0) or algorithm ~= LOG and long ~= LONG[algorithm]) then
        status = UNREADABLE
      elseif not raw then
        -- nothing is there to give back
      elseif algorithm == BUCKET then
        local debt, credits, from, expiry
        version, debt, credits, from, expiry = unstruct('<Bdddd', raw)
        if debt > 0 then
          give = min(give, ceil(debt / credits))
          value, move = pack('<Bdddd', VERSION, max(0, debt - give * credits), credits, from, expiry), -give
        end
      elseif algorithm == FIXED then
        local from, current, expiry
        version, from, current, expiry = unstruct('<Bddd', raw)
        if from == since - since % b and now - now % b <= from then
          give = min(give, current)
          value, move = pack('<Bddd', VERSION, from, current - give, expiry), -give
        end
      elseif algorithm == LOG then
        -- Entries that count are copied; those of that time lose units.
        local expiry, before = unstruct('<dI4', raw, 2)
        local kept, n, given, sum, front = {}, 0, 0, 0, before
        for p = 14, #raw, 12 do
          local when, upto = unstruct('<dI4', raw, p)
          local own = (upto - before) % 4294967296
          before = upto
          if now - when >= b then
            front, sum = upto, 0
          else
            if when >= since and when <= made then
              local cut = min(own, give - given)
              given, own = given + cut, own - cut
            end
            if own > 0 then
              sum, n = sum + own, n + 1
              kept[n] = pack('<dI4', when, (front + sum) % 4294967296)
            end
          end
        end
        if given > 0 then
          value, renewal, move = pack('<BdI4', VERSION, expiry, front) .. table.concat(kept), expiry, -given
        end
      else
        local from, current, previous, expiry
        version, from, current, previous, expiry = unstruct('<Bdddd', raw)
        local start, window = now - now % b, since - since % b
        if start > from then
          previous = start == from + b and current or 0
          from, current = start, 0
        end
        if window == from then
          give = min(give, current)
          current = current - give
        elseif window == from - b then
          give = min(give, previous)
          previous = previous - give
        else
          give = 0
        end
        if give > 0 then
          value, move = pack('<Bdddd', VERSION, from, current, previous, expiry), -give
        end
      end
    end
    if status then
      effect = status
      break
    end
    if value then
      V[key] = value
      if expiries[key] == nil then dirty[#dirty + 1] = key end
      expiries[key] = renewal or expiries[key] or false
    end
    items = items .. pack('<ddd', move, consumed, refunded)
  end
end

-- The server refuses the first write of a script or none, so an error here
-- changes nothing.
if effect == 'C' then
  if kind ~= 'M' then
    local header = pack('<BdddBddd', VERSION, charged, settled, total, flags, sunits, stotal, sleft)
    call('SET', K[mark], header .. refunds, 'PX', REMEMBER)
  end
  for i = 1, #dirty do
    local key = dirty[i]
    if expiries[key] then
      local life = max(1, ceil((expiries[key] - now) / 1000))
      call('SET', K[key], V[key], 'PX', string.format('%d', life))
    else
      call('SETRANGE', K[key], '0', V[key])
    end
  end
else
  items = ''
end
return {effect .. pack('<Bdddd', whole and 1 or 0, now, units, total, left) .. items}
