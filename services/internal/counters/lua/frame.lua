-- decide.lua decides a batch of independent decisions, each all-or-nothing
-- over its charges. It is limit.Decide in Lua; the two must agree on every
-- input. The files algo_*.lua are put in the place marked below.
--
-- KEYS     the distinct counters of the batch, then its request ids
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
--   V        a counter's value is of a version that this script cannot read
local call, byte, sub = redis.call, string.byte, string.sub
local pack, unpack_ = struct.pack, struct.unpack
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

local algorithms = {}
-- ALGORITHMS --

local V = #K > 0 and call('MGET', unpack(K)) or {}
local S = {} -- states by key number; a hot counter is read once and written once
local dirty, dirties = {}, 0
local T = {} -- terms by argument number

local function term(pos)
  local c = T[pos]
  if not c then
    local algo = algorithms[A[pos]]
    c = algo.term(pos)
    c.algo, c.cost = algo, A[pos + 1] + 0
    T[pos] = c
  end
  return c
end

-- state returns the counter's state, or nil when its value cannot be read.
local function state(key, algo)
  local s = S[key]
  if not s then
    local raw = V[key]
    if not raw then
      s = algo.fresh()
    elseif byte(raw) == VERSION and #raw == algo.size then
      s = algo.open(raw)
    else
      return nil
    end
    S[key] = s
  end
  return s
end

-- ready opens a decision's charges. It returns a status when the decision
-- cannot be made.
local function ready(charges)
  for i = 1, #charges do
    local ch = charges[i]
    local c = ch.term
    if c.from and (now < c.from or now >= c.till) then return 'S' end
    ch.state = state(ch.key, c.algo)
    if not ch.state then return 'V' end
  end
end

-- weigh asks every charge and reports whether all enforced ones pass. Charges
-- on one counter add up; a shadow charge that is not charged does not count.
local function weigh(charges)
  local allowed, asked = true, {}
  for i = 1, #charges do
    local ch = charges[i]
    local c, before = ch.term, asked[ch.key] or 0
    if c.cost == 0 then
      ch.passed, ch.wait = true, 0
    else
      ch.wait = c.algo.ask(ch.state, c, min(EXACT, before + c.cost))
      ch.passed = ch.wait == 0
    end
    ch.charged = ch.passed or ch.soft
    if ch.charged or not ch.shadow then asked[ch.key] = min(EXACT, before + c.cost) end
    if not ch.passed and not ch.soft and not ch.shadow then allowed = false end
  end
  return allowed
end

-- charge charges what an allowed decision charges and reports whether that was
-- anything.
local function charge(charges)
  local charged = false
  for i = 1, #charges do
    local ch = charges[i]
    local c, s = ch.term, ch.state
    if c.cost > 0 and ch.charged then
      c.algo.take(s, c, c.cost)
      if not s.dirty then
        s.dirty, dirties = true, dirties + 1
        dirty[dirties] = ch.key
        s.algo = c.algo
      end
      charged = true
    end
  end
  return charged
end

local function show(charges)
  local out = {}
  for i = 1, #charges do
    local ch = charges[i]
    local remaining, reset, consumed, refunded = ch.term.algo.show(ch.state, ch.term)
    out[i] = pack('<Bddddd', ch.passed and 1 or 0, remaining, ch.wait, reset, consumed, refunded)
  end
  return table.concat(out)
end

-- recall answers a request id that is known. The value of one is: version,
-- fingerprint (16), decision id (16), the note's length (2), note, charges.
local function recall(key, pos)
  local raw = V[key]
  if not raw then return nil end
  if byte(raw) ~= VERSION then return 'V' .. pack('<d', now) end
  if sub(raw, 2, 17) ~= A[pos] then return 'C' .. pack('<d', now) .. sub(raw, 18, 33) end
  return 'R' .. pack('<d', now) .. sub(raw, 18)
end

local function remember(key, pos, body)
  local id, note = sub(A[pos + 1], 1, 16), sub(A[pos + 1], 17)
  local raw = pack('>B', VERSION) .. A[pos] .. id .. pack('>H', #note) .. note .. body
  V[key] = raw
  call('SET', K[key], raw, 'PX', REMEMBER)
end

local function decide(charges, key, pos)
  local known = key > 0 and recall(key, pos)
  if known then return known end
  local status = ready(charges)
  if status then return status .. pack('<d', now) end
  local allowed = weigh(charges)
  local charged = allowed and charge(charges)
  local body = show(charges)
  if charged and key > 0 then remember(key, pos, body) end
  return (charged and 'A' or allowed and 'a' or 'D') .. pack('<d', now) .. body
end

local out = {}
local plan, p = A[2], 1
while p <= #plan do
  local n, k1, k2, p1, p2 = byte(plan, p, p + 4)
  p = p + 5
  local charges = {}
  for i = 1, n do
    local c1, c2, t1, t2, flags = byte(plan, p, p + 4)
    p = p + 5
    charges[i] = {key = c1 * 256 + c2, term = term(t1 * 256 + t2), soft = flags % 2 == 1, shadow = flags >= 2}
  end
  out[#out + 1] = decide(charges, k1 * 256 + k2, p1 * 256 + p2)
end

-- A value carries its own expiry (µs since the epoch). While that is late
-- enough the value is changed in place, which keeps the key's.
for i = 1, dirties do
  local key = dirty[i]
  local s = S[key]
  if s.expiry and s.expiry >= s.need then
    call('SETRANGE', K[key], 0, s.algo.close(s))
  else
    local expiry = s.need + s.spare
    call('SET', K[key], s.algo.close(s) .. pack('<d', expiry), 'PX', ceil((expiry - now) / 1000))
  end
end
return out
