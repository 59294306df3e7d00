-- decide.lua decides a batch of independent decisions, each all-or-nothing
-- over its charges. It is limit.Decide in Lua; the two must agree on every
-- input. The files algo_*.lua are put in the place marked below.
--
-- KEYS[1]  the epoch: the run of the server whose counters these are, empty where
--          nobody vouches, a colon, and when what it holds began (µs)
-- KEYS[2…] the distinct counters of the batch and its request ids
-- ARGV[1]  now, µs since 1970; '' reads the server's clock (production always
--          does)
-- ARGV[2]  the run that the epoch must name; '' is not compared
-- ARGV[3]  the plan, bytes, big-endian: per decision its number of charges
--          (1), flags (1: 1 several of them are on one counter, 2 it is only
--          weighed), request (key 2, argument 2; 0 is none), then per charge its
--          counter (key 2),
--          flags (1: 1 soft, 2 shadow), algorithm (1), cost in units (double)
--          and five numbers (doubles) that its algo_*.lua explains. Key
--          numbers, argument numbers and algorithms begin at 1.
-- ARGV[4…] requests: fingerprint (16 bytes); decision id (16 bytes) and note
--
-- Returns one string per decision: a status byte, now (double) and
--   A, a, D  allowed and charged, allowed, denied: per charge flags (1: 1 passed,
--            2 its counter was full and counts less than the cost), then doubles: remaining (units), wait (µs, -1 never; of one that
--            passed, in a queue), reset (µs), consumed, refunded (units)
--   T        as A, but that of a charge on a bucket without a queue there is only
--            what the bucket holds now: its value
--   S        stale: a span does not contain now; nothing was evaluated
--   L        lost: the epoch is not the run's, and an enforced charge has
--            totals; nothing was evaluated
--   R        replayed: decision id (16), when it was made (double), note's
--            length (2), note, the charges
--   C        conflict: the first decision's id (16)
--   V        a value is of a version that this script cannot read
--   E        the server refuses to write: its message. Nothing was charged
-- When the server refuses to write, its error is the reply unless a decision
-- stands that charges nothing and was not weighed against one that would have.
--
-- Most calls hold one decision, and all that is made here is made at every
-- call. So there are no functions, for each makes a closure and an upvalue for
-- every name it uses. Tables are made with room, since growing one costs more
-- than all else done to it. And where it is hot, x - x % 1 is floor(x), and
-- x + -x % 1 is ceil(x).
local call, pcall = redis.call, redis.pcall
local pack, unstruct, concat = struct.pack, struct.unpack, table.concat
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local K, A = KEYS, ARGV

local VERSION = 1 -- first byte of every value
local EXACT = 9007199254740992 -- 2^53
local GRACE = 10000000 -- µs that a value outlives its use: a promoted replica's clock may be behind
-- µs that a value is kept for longer, so that a busy one is renewed seldom: as
-- long as it counts, within these; of a bucket, whose use ends later with each
-- unit, at least a sixteenth of the time that a full one takes to empty.
local LEAST, MOST = 10000000, 60000000
local REMEMBER = '86400000' -- ms that a request id is known
local STALE, LOST, UNREADABLE = 'S', 'L', 'V'
local WEIGH, TAKE, SHOW, DONE = 1, 2, 3, 4 -- passes over a decision
local BUCKET = 1 -- algorithm

local now = tonumber(A[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local clock, plan = pack('<d', now), A[3]

-- Values by key number, false where there is none: the server's, then what the
-- batch makes of them. A hot counter is read once and written once.
local V = call('MGET', unpack(K))
local epoch, run = V[1], A[2]
local lost = run ~= '' and (not epoch or epoch:sub(1, #run) ~= run)
-- Key numbers of the counters to be written, and by key number the expiry to
-- set, or false where the key's stays.
local dirty, dirties, expiries = {nil, nil, nil, nil, nil, nil, nil, nil}, 0, {nil, nil, nil, nil, nil, nil, nil, nil}
local requests, asking = nil, 0 -- key numbers of request ids to be written
-- Of the decision at hand, by charge: counter, wait, and what it would write.
local keys, waits = {nil, nil, nil, nil, nil, nil, nil, nil}, {nil, nil, nil, nil, nil, nil, nil, nil}
local values, renewals = {nil, nil, nil, nil, nil, nil, nil, nil}, {nil, nil, nil, nil, nil, nil, nil, nil}
local shown = {nil, nil, nil, nil, nil, nil, nil, nil} -- of each, for the reply
local out, outs, stands = {nil}, 0, {nil}

local at, size = 1, #plan
while at <= size do
  local n, manner, request, argument, first = unstruct('>BBHH', plan, at)
  at = first + 52 * n
  local answer, charged, tainted = nil, false, false

  -- A request id that is known is answered again. The value of one is: version,
  -- fingerprint (16), decision id (16), when it was made (double), the note's
  -- length (2), note, charges.
  local known = request > 0 and V[request]
  if known then
    tainted = dirties > 0
    if known:byte() ~= VERSION then
      answer = UNREADABLE .. clock
    elseif known:sub(2, 17) ~= A[argument] then
      answer = 'C' .. clock .. known:sub(18, 33)
    else
      answer = 'R' .. clock .. known:sub(18)
    end
  end

  -- To weigh is to ask every charge, and to work out what it would write and
  -- show if the decision were allowed. Where several are on one counter that
  -- cannot be: they add up (a shadow charge that is not taken does not count),
  -- and are then taken one after another. What was not worked out is shown in
  -- another pass.
  local pass, allowed, status = answer and DONE or WEIGH, true, nil
  local asked, delays, clipped = manner % 2 == 1 and {}, nil, nil
  local terse, brief = request == 0, false -- whether values may be shown, and one is
  while pass < DONE do
    local p = first
    for i = 1, n do
      local key, flags, algorithm, cost, a, b, c, d, e
      key, flags, algorithm, cost, a, b, c, d, e, p = unstruct('>HBBdddddd', plan, p)
      local soft, units, taken = flags % 2 == 1, 0, 0
      if pass == WEIGH then
        if not asked then
          units, taken = cost, cost
        elseif cost > 0 then
          units = min(EXACT, (asked[key] or 0) + cost)
        end
      elseif pass == TAKE and (waits[i] == 0 or soft) then
        taken = cost
      end

      -- An algorithm is given raw, its counter's value; units, what is asked
      -- for; taken, the cost to take if units pass or soft is set; and a to e.
      -- It sets status, or wait (µs, 0 passes, -1 never) and delay (µs, of what
      -- passes); where it took, value with its expiry in it, and renewal, that
      -- expiry (µs), if it is a new one or value is not as long as raw, and
      -- short, units for which there was no room; and what is then to be shown, or
      -- told, where terse is set, if value says it all. Units of 0 pass, and of 0
      -- nothing is taken. Other names it makes are its own.
      local raw = V[key]
      local wait, delay, value, renewal, short, told = 0, 0, nil, nil, 0, false
      local remaining, reset, consumed, refunded = 0, 0, 0, 0
      -- ALGORITHMS --

      if status and status ~= UNREADABLE then break end
      if short > 0 then
        clipped = clipped or {}
        clipped[i] = true
      end
      if pass == WEIGH then
        local sold = wait == 0 or soft
        if sold then
          charged = charged or cost > 0
        elseif flags < 2 then
          allowed = false
        end
        if asked and (sold or flags < 2) then asked[key] = min(EXACT, (asked[key] or 0) + cost) end
        tainted = tainted or expiries[key] ~= nil
        keys[i], waits[i], values[i], renewals[i] = key, wait, value, renewal
        if delay > 0 then
          delays = delays or {}
          delays[i] = delay
        end
      elseif value then
        V[key] = value
        if expiries[key] == nil then
          dirties = dirties + 1
          dirty[dirties] = key
        end
        expiries[key] = renewal or expiries[key] or false
      else
        wait, delay = waits[i], delays and delays[i] or 0
      end
      if told then
        shown[i], brief = value, true
      else
        terse = terse and algorithm ~= BUCKET
        shown[i] = pack('<Bddddd', (wait == 0 and 1 or 0) + (clipped and clipped[i] and 2 or 0), remaining, wait == 0 and delay or wait, reset, consumed, refunded)
      end
    end

    if status then
      answer, charged, pass = status .. clock, false, DONE
    elseif pass == WEIGH then
      charged = charged and allowed and manner < 2
      if charged and asked then
        pass = TAKE
      elseif asked or not allowed or manner > 1 then
        pass, clipped = SHOW, nil
      else
        pass = brief and not terse and SHOW or DONE
        for i = 1, n do
          local value = values[i]
          if value then
            local key = keys[i]
            V[key] = value
            if expiries[key] == nil then
              dirties = dirties + 1
              dirty[dirties] = key
            end
            expiries[key] = renewals[i] or expiries[key] or false
          end
        end
      end
    else
      pass = pass + 1
    end
  end

  if not answer then
    local body = n == 1 and shown[1] or concat(shown, '', 1, n)
    answer = (charged and (brief and terse and 'T' or 'A') or allowed and 'a' or 'D') .. clock .. body
    if charged and request > 0 then
      local id, note = A[argument + 1]:sub(1, 16), A[argument + 1]:sub(17)
      V[request] = pack('>B', VERSION) .. A[argument] .. id .. clock .. pack('>H', #note) .. note .. body
      requests, asking = requests or {}, asking + 1
      requests[asking] = request
    end
  end
  outs = outs + 1
  out[outs] = answer
  stands[outs] = not (charged or tainted)
end

-- The server refuses the first write of a script or none (no memory, no disk,
-- a replica), so after a refusal nothing has been written. Numbers are written
-- as strings: the server formats them slowly.
local refusal
if dirties > 0 and not epoch then
  local reply = pcall('SET', K[1], string.format(':%d', now))
  if reply.err then
    refusal, asking = reply, 0
  end
end
for i = 1, asking do
  local key = requests[i]
  local reply = pcall('SET', K[key], V[key], 'PX', REMEMBER)
  if reply.err then
    refusal = reply
    break
  end
end
-- A value carries its own expiry (µs since the epoch). While that is late
-- enough the value is changed in place, which keeps the key's.
for i = 1, refusal and 0 or dirties do
  local key = dirty[i]
  local value, expiry = V[key], expiries[key]
  if expiry then
    local life = ceil((expiry - now) / 1000)
    local reply = pcall('SET', K[key], value, 'PX', string.format('%d', life))
    if reply.err then refusal = reply end
  else
    local reply = pcall('SETRANGE', K[key], '0', value)
    if reply ~= #value then refusal = reply end
  end
  if refusal then break end
end
if refusal then
  local any = false
  for i = 1, outs do
    if stands[i] then any = true else out[i] = 'E' .. clock .. refusal.err end
  end
  if not any then return refusal end
end
return out
