-- vouch.lua makes a run of the server vouch for what it holds, if that is what
-- was there when it was claimed.
--
-- KEYS[1]  the epoch, as claim.lua has it
-- ARGV[1]  the claim; ARGV[2] the run
-- ARGV[3]  when what the server now holds began (µs): earlier than the epoch
--          says where all of it was restored; '' leaves that
--
-- Returns 1 where the run vouches now, 0 where the claim is gone.
local of, since = (redis.call('GET', KEYS[1]) or ''):match('^(.*):(%d+)$')
if of == ARGV[2] then return {1} end
if of ~= ARGV[1] then return {0} end
local earlier = tonumber(ARGV[3])
if earlier and earlier < tonumber(since) then since = ARGV[3] end
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. since)
return {1}
