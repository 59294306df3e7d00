// Package counters is the counter store: the layout of its keys and values,
// the scripts that change them, and the client that sends them. The gateway
// decides through it; what else may touch a counter does so here too.
//
// # Keys
//
// A counter is named by what it measures, never by its rule. Parts are joined
// by colons, and in each part % : { } are percent-escaped, so parts cannot run
// together:
//
//	tag : mode : kind : subject letters [: application, user, api key, address] : meter : scope …
//
// The tag decides the slot of a cluster: {t:<tenant>} for whatever has a
// tenant, {a:<address>} for what has only an address, {g} for the rest. Mode is
// e (enforce) or s (shadow). The letters are t tenant, a application, u user,
// k api key, i address, or - for none. The scope is g, s:<service> or
// e:<endpoint>. A rate ends in algorithm and window (µs), a quota and a renewable
// wallet in unit*count and the first instant of the period (µs since the epoch),
// a prepaid wallet in nothing more.
//
//	{t:acme}:e:quota:t:api-calls:g:month*1:1767214800000000
//	{t:acme}:e:wallet:t:credits:g
//	{t:acme}:e:wallet:t:credits:g:month*1:1767214800000000
//	{t:acme}:e:rate:t:api-calls:e:pay:gcra:60000000
//	{t:acme}:s:rate:tu:u%3A1:api-calls:g:gcra:1000000
//	{a:2001%3Adb8%3A1%3A2%3A%3A/64}:e:rate:i:2001%3Adb8%3A1%3A2%3A%3A/64:api-calls:s:payments:gcra:60000000
//	{g}:e:rate:-:api-calls:g:gcra:1000000
//
// The epoch is kept under epoch, on a cluster under epoch:{n} in each slot; a
// request id under tag : req : id, e.g. {t:acme}:req:r-1; and the mark of a
// decision that was corrected under tag : ref : its id in hex, e.g.
// {t:acme}:ref:0198f3c2a1b47d10a1b2c3d4e5f60718.
//
// # Values
//
// One string per counter: a version byte, numbers as little-endian doubles
// (whole, below 2^53), and the value's own expiry in µs since the epoch. While
// that is late enough the value is changed in place and its key's expiry stays.
//
//	quota, wallet           1, consumed, refunded, expiry: 8 days after the period; 0 of a prepaid wallet, which has none
//	gcra, buckets           1, debt, credits per unit, as of (µs), expiry: when all is paid back, and 20 s to 70 s or a sixteenth of a full one's time
//	fixed_window            1, window's first instant (µs), units, expiry: the window's end, and 20 s to 70 s
//	sliding_window_counter  1, window's first instant (µs), units, units of the one before, expiry: the next window's end, and 20 s to 70 s
//	sliding_window_log      1, expiry: when the last entry leaves, and 10 s; total (4) in front; per entry time (µs), total (4)
//	request                 1, fingerprint (16), decision id (16), when (µs), note's length (2), note, results: 24 h
//	mark                    1, cost, cost settled at (-1 none), refunded, flags (1), settlement's units, total, left; how
//	                        many counters (1) and what each had no room for of the settlement; per refund its id's
//	                        length (1), id, units, total, left: 7 days after the last correction
//	epoch                   run id (empty: nobody vouches; ~run~random: it is being restored), a colon, and when what the server holds began (µs): for ever
//
// Totals of a log are modulo 2^32, little-endian.
//
// # Calls
//
// A decision is one call of one script, assembled from lua/frame.lua and the
// algorithms beside it. It is sent once and never repeated: after a lost reply
// nobody knows whether it charged, and the rule's failure mode answers. The
// script's clock is the server's.
//
// A correction is one call of another script, lua/correct.lua, which reads and
// writes the mark with the counters. It is sent once too, but who asks again is
// answered as at first. Giving back keeps a counter's expiry; charging more may
// make it later. On a cluster counters outside the mark's slot follow, once.
//
// A custodian, the checkpointer, claims an epoch, restores what lies beside it in calls
// that may be repeated, and vouches for it: lua/claim.lua, restore.lua, remember.lua
// and vouch.lua.
package counters
