-- presence.lua says that a process is alive and counts those that are.
--
-- KEYS[1]  a sorted set of processes by when they last said so (µs, server's
--          clock)
-- ARGV[1]  the process; ARGV[2] how long its word is good for (µs)
--
-- Returns the number of processes whose word is good.
local t = redis.call('TIME')
local now, good = t[1] * 1000000 + t[2], tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now - good - 1))
redis.call('PEXPIRE', KEYS[1], math.ceil(good / 1000))
return {redis.call('ZCARD', KEYS[1])}
