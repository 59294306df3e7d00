-- adopt.lua makes a run of the server vouch for what it holds.
--
-- KEYS[1]  the epoch: a run, empty where nobody vouches, a colon, and when what
--          the server holds began (µs, its clock)
-- ARGV[1]  the run
--
-- Returns the run that vouched before, empty where none did.
local was = redis.call('GET', KEYS[1])
local run, since = '', nil
if was then run, since = was:match('^(.*):(%d+)$') end
if run ~= ARGV[1] then
  if not since then
    local t = redis.call('TIME')
    since = string.format('%d', t[1] * 1000000 + t[2])
  end
  redis.call('SET', KEYS[1], ARGV[1] .. ':' .. since)
end
return {run}
