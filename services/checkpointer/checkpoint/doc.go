// Package checkpoint keeps what counters have come to, and decides how a store that
// lost it is restored.
//
// It rests on one fact: what was consumed and what was refunded only rise. So of
// two accounts of a counter the greater number is right, twice restored is once
// restored, and nothing here needs to be alone.
package checkpoint
