-- decide.lua decides a batch of independent decisions, each all-or-nothing
-- over its charges. It is limit.Decide in Lua; the two must agree on every
-- input. The files algo_*.lua are put in the place marked below.
--
-- KEYS     the distinct counters of the batch and its request ids
-- ARGV[1]  now, µs since the epoch; '' reads the server's clock (production
--          always does)
-- ARGV[2]  the plan, bytes: per decision its number of charges (1), request
--          (key 2, argument 2; 0 is none), then per charge its counter (key 2),
--          term (argument 2) and flags (1: 1 soft, 2 shadow). Key numbers and
--          argument numbers are big-endian and begin at 1.
-- ARGV[3…] terms: algorithm, cost in units, then what algo_*.lua says;
--          requests: fingerprint (16 bytes), decision id (16 bytes) and note
--
-- Returns one string per decision: a status byte, now (double) and
--   A, a, D  allowed and charged, allowed, denied: per charge passed (1 byte),
--            then doubles: remaining (units), wait (µs, -1 never), reset (µs),
--            consumed, refunded (units)
--   S        stale: a span does not contain now; nothing was evaluated
--   R        replayed: decision id (16), note's length (2), note, the charges
--   C        conflict: the first decision's id (16)
--   V        a value is of a version that this script cannot read
--   E        the server refuses to write: its message. Nothing was charged
-- When the server refuses to write, its error is the reply unless a decision
-- stands that charges nothing and was not weighed against one that would have.
local call, byte, sub = redis.call, string.byte, string.sub
local pack, unstruct = struct.pack, struct.unpack
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local K, A = KEYS, ARGV

local VERSION = 1 -- first byte of every value
local EXACT = 9007199254740992 -- 2^53
local MAX_WAIT = 4503599627370496 -- 2^52 µs
local GRACE = 10000000 -- µs that a value outlives its use: a promoted replica's clock may be behind
local REMEMBER = 86400000 -- ms

local now = tonumber(A[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local clock = pack('<d', now)

-- An algorithm has: term(pos), what a charge asks, from its arguments;
-- open(key, raw) and fresh(key), a counter's state; ask(s, c, units), the wait
-- or 0; take(s, c, units); show(s, c), the four numbers of a result;
-- close(s, c), the value without its expiry, until when it is needed and for
-- how much longer it may be kept (µs). Tables are made with all their fields
-- at once: growing one costs more than everything else done to it.
local algorithms = {}
-- ALGORITHMS --

local V = #K > 0 and call('MGET', unpack(K)) or {}
local S = {} -- states by key number: a hot counter is read once and written once
local T = {} -- terms by argument number
local dirty, dirties = {}, 0
local requests = {} -- key numbers of request ids to be written
local charges = {} -- of the decision at hand
local tainted = false -- whether that was weighed against what is not written yet

-- ready opens n charges from byte p of the plan. It returns a status when the
-- decision cannot be made.
local function ready(p, n)
  local plan, status = A[2], nil
  for i = 1, n do
    local k1, k2, t1, t2, flags = byte(plan, p, p + 4)
    p = p + 5
    local key, pos = k1 * 256 + k2, t1 * 256 + t2
    local c, s = T[pos], S[key]
    if not c then
      c = algorithms[A[pos]].term(pos)
      T[pos] = c
    end
    if c.from and (now < c.from or now >= c.till) then return 'S' end
    if not s then
      local raw = V[key]
      if not raw then
        s = c.algo.fresh(key)
      elseif byte(raw) == VERSION and #raw == c.algo.size then
        s = c.algo.open(key, raw)
      else
        s = {unreadable = true}
      end
      S[key] = s
    end
    if s.unreadable then status = 'V' end
    tainted = tainted or s.dirty
    s.asked = 0
    charges[i] = {term = c, state = s, soft = flags % 2 == 1, shadow = flags >= 2, passed = true, wait = 0}
  end
  return status
end

-- weigh asks every charge and reports whether all enforced ones pass. Charges
-- on one counter add up; a shadow charge that is not taken does not count.
local function weigh(n)
  local allowed = true
  for i = 1, n do
    local ch = charges[i]
    local c, s = ch.term, ch.state
    local units = min(EXACT, s.asked + c.cost)
    if c.cost > 0 then
      ch.wait = c.algo.ask(s, c, units)
      ch.passed = ch.wait == 0
    end
    if ch.passed or ch.soft or not ch.shadow then s.asked = units end
    if not (ch.passed or ch.soft or ch.shadow) then allowed = false end
  end
  return allowed
end

-- take charges what an allowed decision charges and reports whether that was
-- anything.
local function take(n)
  local any = false
  for i = 1, n do
    local ch = charges[i]
    local c, s = ch.term, ch.state
    if c.cost > 0 and (ch.passed or ch.soft) then
      any = true
      if c.algo.take(s, c, c.cost) and not s.dirty then
        s.dirty, dirties = c, dirties + 1
        dirty[dirties] = s
      end
    end
  end
  return any
end

local function show(n)
  local body = ''
  for i = 1, n do
    local ch = charges[i]
    local c = ch.term
    local remaining, reset, consumed, refunded = c.algo.show(ch.state, c)
    body = body .. pack('<Bddddd', ch.passed and 1 or 0, remaining, ch.wait, reset, consumed, refunded)
  end
  return body
end

-- recall answers a request id that is known. The value of one is: version,
-- fingerprint (16), decision id (16), the note's length (2), note, charges.
local function recall(key, pos)
  local raw = V[key]
  if not raw then return nil end
  if byte(raw) ~= VERSION then return 'V' .. clock end
  if sub(raw, 2, 17) ~= A[pos] then return 'C' .. clock .. sub(raw, 18, 33) end
  return 'R' .. clock .. sub(raw, 18)
end

local function remember(key, pos, body)
  local id, note = sub(A[pos + 1], 1, 16), sub(A[pos + 1], 17)
  V[key] = pack('>B', VERSION) .. A[pos] .. id .. pack('>H', #note) .. note .. body
  requests[#requests + 1] = key
end

local out, stands, at, size = {}, {}, 1, #A[2]
while at <= size do
  local n, k1, k2, p1, p2 = byte(A[2], at, at + 4)
  local request, pos = k1 * 256 + k2, p1 * 256 + p2
  local answer, charged = request > 0 and recall(request, pos), false
  tainted = answer and dirties > 0
  if not answer then
    local status = ready(at + 5, n)
    if status then
      answer = status .. clock
    else
      local allowed = weigh(n)
      charged = allowed and take(n)
      local body = show(n)
      if charged and request > 0 then remember(request, pos, body) end
      answer = (charged and 'A' or allowed and 'a' or 'D') .. clock .. body
    end
  end
  out[#out + 1] = answer
  stands[#out] = not (charged or tainted)
  at = at + 5 + 5 * n
end

-- write writes one value. The server refuses the first write of a script or
-- none (no memory, no disk, a replica), so then nothing has been written.
local refusal
local function write(...)
  if refusal then return end
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then refusal = reply end
end

for i = 1, #requests do
  write('SET', K[requests[i]], V[requests[i]], 'PX', REMEMBER)
end
-- A value carries its own expiry (µs since the epoch). While that is late
-- enough the value is changed in place, which keeps the key's.
for i = 1, dirties do
  local s = dirty[i]
  local value, need, spare = s.dirty.algo.close(s, s.dirty)
  if s.expiry and s.expiry >= need then
    write('SETRANGE', K[s.key], 0, value)
  else
    local expiry = need + spare
    write('SET', K[s.key], value .. pack('<d', expiry), 'PX', ceil((expiry - now) / 1000))
  end
end
if refusal then
  local any = false
  for i = 1, #out do
    if stands[i] then any = true else out[i] = 'E' .. clock .. refusal.err end
  end
  if not any then return refusal end
end
return out
