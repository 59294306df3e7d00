// Package decide answers whether a request passes.
//
// A Book holds the catalogue and the rules in force as one immutable snapshot
// behind an atomic pointer: readers take it without a lock and see a single
// revision, writers publish a batch of changes at a time, and a change costs
// its own size however many rules there are (docs/adr/0032).
//
// A Service finds the rules that apply to a request, asks the counters of all
// of them in one call, and says what the answers mean. It knows no network and
// no clock: both arrive as arguments.
package decide
