-- claim.lua says that what a server holds is being restored, where nobody
-- vouches for it. Whoever restores as well finds the claim and shares it; a
-- store that is emptied meanwhile forgets it.
--
-- KEYS[1]  the epoch: a run, empty where nobody vouches, or a claim; a colon;
--          and when what the server holds began (µs, its clock)
-- ARGV[1]  the run; ARGV[2] a claim that begins with ~, the run and ~
--
-- Returns the claim, empty where the run vouches already, and when it began.
local was = redis.call('GET', KEYS[1]) or ''
local of, since = was:match('^(.*):(%d+)$')
of = of or was
local own = '~' .. ARGV[1] .. '~'
if of == ARGV[1] then return {'', since or '0'} end
if since and of:sub(1, #own) == own then return {of, since} end
if not since then
  local t = redis.call('TIME')
  since = string.format('%d', t[1] * 1000000 + t[2])
end
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. since)
return {ARGV[2], since}
