-- correct.lua gives back what a decision charged, or charges the rest. It is
-- limit.Correct in Lua; the two must agree on every input.
--
-- KEYS[1]  the epoch: the run of the server whose counters these are, a colon,
--          and when what it holds began (µs): what was decided before is not
--          corrected, for its corrections are forgotten
-- KEYS[2…] what is remembered of the decision's corrections, and its counters
-- ARGV[1]  now, µs since 1970; '' reads the server's clock (production always
--          does)
-- ARGV[2]  the run that the epoch must name; '' is not compared
-- ARGV[3]  the plan, bytes, big-endian: R a refund, S a settlement, M a move that
--          is not remembered (1), key of what is remembered (2), then doubles:
--          cost that was charged (units; M: 1 nothing is moved where what the
--          server holds began after that time), when (µs), units to give back (R, 0 is
--          all that is left) or true cost (S) or how much earlier it may have
--          been (M, µs: it was by another server's clock); then per item its counter (key
--          2), flags (1: 1 fixed cost), algorithm (1), and doubles: units that
--          were charged (M: to charge, negative to give back), and five numbers
--          that its algo_*.lua explains
-- ARGV[4]  the refund's id
--
-- Returns one string: effect (1: C corrected, R repeated, X exceeds, S settled,
-- T too many, L lost, V a value is of a version that cannot be read), whether
-- items of fixed cost moved (1), then doubles: now, units, refunded in all, left,
-- what items elsewhere are to move by, negative to give back; and of C per item:
-- units moved, consumed, refunded.
local call = redis.call
local pack, unstruct = struct.pack, struct.unpack
local ceil, max, min = math.ceil, math.max, math.min
local K, A = KEYS, ARGV

local VERSION = 1 -- first byte of every value
local EXACT = 9007199254740992 -- 2^53
local GRACE = 10000000 -- µs that a value outlives its use: a promoted replica's clock may be behind
local REMEMBER = '604800000' -- ms that corrections are known
local MOST_REFUNDS = 100
local OUTLIVES = 691200000000 -- µs that a quota outlives its period: 8 days
local LOST, UNREADABLE = 'L', 'V'
local BUCKET, QUOTA, FIXED, LOG, SLIDING, WALLET = 1, 2, 3, 4, 5, 6 -- places of algorithms
local LONG = {[BUCKET] = 33, [FIXED] = 25, [SLIDING] = 33} -- bytes of their values
local MOST = 1000000000 -- units that are counted of a window
local LEAST, LONGEST = 10000000, 60000000 -- µs that a rate's value is kept for longer
local YEARS = 315576000000000 -- ten, in µs: no value lives longer untouched

local now = tonumber(A[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local plan, V = A[3], call('MGET', unpack(K))
local kind, mark, charged, made, asked, at = unstruct('>c1Hddd', plan)
local receipt, epoch, run = charged, V[1] or '', A[2]
local lost = run ~= '' and epoch:sub(1, #run) ~= run
if (kind ~= 'M' or charged > 0) and at <= #plan and made < tonumber(epoch:match(':(%d+)$') or 0) then lost = true end

-- The earliest that it may have been. What is taken back from an earlier time
-- than was charged counts too much for a while, never too little.
local since = kind == 'M' and made - asked or made

-- What is remembered: version, cost, cost it was settled at (-1 not), refunded
-- in all (doubles), flags (1: 1 items of fixed cost were given back, 2 restored:
-- cost, the settlement's units and what each left are not known), the
-- settlement's units, total and left (doubles), how many items follow (1) with
-- the units of the settlement for which each had no room (doubles), then per
-- refund its id's length (1), id, and its units, total and left (doubles).
local effect, moving, whole, units, left = 'C', 0, false, 0, 0
local settled, total, flags, sunits, stotal, sleft, refunds = -1, 0, 0, 0, 0, 0, ''
local shorts = {} -- by item
if lost then
  effect = LOST
elseif kind ~= 'M' then
  local known = V[mark]
  if known and (known:byte() ~= VERSION or #known < 51 or #known < 51 + 8 * known:byte(51)) then
    effect = UNREADABLE
  elseif known then
    local version, n, from
    version, charged, settled, total, flags, sunits, stotal, sleft, n, from = unstruct('<BdddBdddB', known)
    for i = 1, n do
      shorts[i], from = unstruct('<d', known, from)
    end
    refunds = known:sub(from)
    if flags >= 2 then
      -- Restored from what was told of them: what each left follows from what the
      -- receipt says was charged, which is always the same.
      local p, told = 1, refunds
      charged, flags, refunds = receipt, 0, ''
      if settled >= 0 then
        sunits, sleft = max(settled - charged, -max(0, charged - stotal)), max(0, settled - stotal)
        if sleft == 0 then flags = 1 end
      end
      while p <= #told do
        local id, u, t
        id, u, t, p = unstruct('<Bc0dd', told, p)
        p = p + 8
        local l = max(0, ((settled >= 0 and t > stotal) and settled or charged) - t)
        if l == 0 then flags = 1 end
        refunds = refunds .. pack('<Bc0ddd', #id, id, u, t, l)
      end
    end
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
    whole = left == 0 and flags == 0
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

-- Refunds after a settlement first give back what it had no room for. Elsewhere
-- that is not known, so there it is all that it added.
local since_settled, elsewhere = total - stotal, moving
if kind == 'R' and settled >= 0 and sunits > 0 and effect == 'C' then
  elsewhere = max(0, since_settled - units - sunits) - max(0, since_settled - sunits)
end

local items, item, dirty, expiries = '', 0, {}, {}
if effect == 'C' then
  if whole then flags = 1 end
  local size = #plan
  while at <= size do
    item = item + 1
    local key, fixed, algorithm, cost, a, b, c, d, e
    key, fixed, algorithm, cost, a, b, c, d, e, at = unstruct('>HBBdddddd', plan, at)
    local raw, move = V[key], moving
    if kind == 'M' then
      move = cost
    elseif fixed > 0 then
      move = whole and -cost or 0
    elseif kind == 'R' and settled >= 0 and shorts[item] then
      move = max(0, since_settled - units - shorts[item]) - max(0, since_settled - shorts[item])
    end
    local full = move -- what is to be charged, if it is above 0
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
          move = min(move, EXACT - 1 - consumed)
          consumed = consumed + move
        elseif move < 0 then
          -- What is given back was consumed: a counter that says less has lost
          -- something.
          move = -min(-move, EXACT - 1 - refunded)
          refunded = refunded - move
          consumed = max(consumed, refunded)
        end
        if move ~= 0 then
          if c > 0 and expiry < c + OUTLIVES then
            expiry = c + OUTLIVES
            renewal = expiry
          end
          value = pack('<Bddd', VERSION, consumed, refunded, expiry)
        end
      end
    elseif move ~= 0 then
      local give, version, long = max(0, -move), VERSION, raw and #raw or 0
      local add = max(0, move) -- to when it was decided
      move = 0
      if raw then version = raw:byte() end
      if version ~= VERSION or raw and (algorithm == LOG and (long < 13 or (long - 13) % 12 ~= 0) or algorithm ~= LOG and long ~= LONG[algorithm]) then
        status = UNREADABLE
      elseif not raw and add == 0 then
        -- nothing is there to give back
      elseif algorithm == BUCKET then
        -- Nothing is paid back: the rate by now may be another.
        local debt, credits, from, expiry = 0, b, 0, 0
        if raw then version, debt, credits, from, expiry = unstruct('<Bdddd', raw) end
        if add > 0 and a > 0 then
          if debt == 0 then credits, from = b, made - made % d end
          add = min(add, a - ceil(debt / credits))
          if add > 0 and add * credits + debt < EXACT then
            debt, move = debt + add * credits, add
            local paid = from + ceil(debt / credits * b / c) * d -- by the rate that was charged
            expiry = max(expiry, min(paid, now + YEARS) + GRACE, now + GRACE + LONGEST)
            value, renewal = pack('<Bdddd', VERSION, debt, credits, from, expiry), expiry
          end
        elseif debt > 0 then
          give = min(give, ceil(debt / credits))
          value, move = pack('<Bdddd', VERSION, max(0, debt - give * credits), credits, from, expiry), -give
        end
      elseif algorithm == FIXED then
        local from, current, expiry = 0, 0, 0
        if raw then version, from, current, expiry = unstruct('<Bddd', raw) end
        if add > 0 then
          if now - now % b > from then from, current = now - now % b, 0 end
          if from == made - made % b and current < MOST then
            move = min(add, MOST - current)
            if expiry < from + b + GRACE then
              expiry = from + b + GRACE + min(LONGEST, max(LEAST, b))
              renewal = expiry
            end
            value = pack('<Bddd', VERSION, from, current + move, expiry)
          end
        elseif from == since - since % b and now - now % b <= from then
          give = min(give, current)
          value, move = pack('<Bddd', VERSION, from, current - give, expiry), -give
        end
      elseif algorithm == LOG then
        -- Entries that count are copied; those of that time lose units, or what
        -- is added comes after them.
        local expiry, before = 0, 0
        if raw then expiry, before = unstruct('<dI4', raw, 2) end
        local kept, n, given, sum, front = {}, 0, 0, 0, before
        if add > 0 then
          local used, upto = 0, before
          for p = 14, long, 12 do
            local when, total = unstruct('<dI4', raw, p)
            if now - when < b then used = used + (total - upto) % 4294967296 end
            upto = total
          end
          add = now - made < b and max(0, min(add, a - used)) or 0
        end
        local left = add
        for p = 14, long, 12 do
          local when, upto = unstruct('<dI4', raw, p)
          local own = (upto - before) % 4294967296
          before = upto
          if now - when >= b then
            front, sum = upto, 0
          else
            if left > 0 and when > made then
              sum, n, left = sum + left, n + 1, 0
              kept[n] = pack('<dI4', made, (front + sum) % 4294967296)
            end
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
        if left > 0 then
          kept[n + 1] = pack('<dI4', made, (front + sum + left) % 4294967296)
        end
        if given > 0 or add > 0 then
          if add > 0 then expiry = max(expiry, made + b + GRACE) end
          value, renewal, move = pack('<BdI4', VERSION, expiry, front) .. table.concat(kept), expiry, add - given
        end
      else
        local from, current, previous, expiry = 0, 0, 0, 0
        if raw then version, from, current, previous, expiry = unstruct('<Bdddd', raw) end
        local start, window = now - now % b, since - since % b
        if add > 0 then window = made - made % b end
        if start > from then
          previous = start == from + b and current or 0
          from, current = start, 0
        end
        if window == from then
          move = add > 0 and min(add, MOST - current) or -min(give, current)
          current = current + move
        elseif window == from - b then
          move = add > 0 and min(add, MOST - previous) or -min(give, previous)
          previous = previous + move
        end
        if move ~= 0 then
          if add > 0 and expiry < from + 2 * b + GRACE then
            expiry = from + 2 * b + GRACE + min(LONGEST, max(LEAST, b))
            renewal = expiry
          end
          value = pack('<Bdddd', VERSION, from, current, previous, expiry)
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
    if kind == 'S' then shorts[item] = full > 0 and full - move or 0 end
    items = items .. pack('<ddd', move, consumed, refunded)
  end
end

-- The server refuses the first write of a script or none, so an error here
-- changes nothing.
if effect == 'C' then
  if kind ~= 'M' then
    local header = pack('<BdddBdddB', VERSION, charged, settled, total, flags, sunits, stotal, sleft, #shorts)
    for i = 1, #shorts do header = header .. pack('<d', shorts[i]) end
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
return {effect .. pack('<Bddddd', whole and 1 or 0, now, units, total, left, elsewhere) .. items}
