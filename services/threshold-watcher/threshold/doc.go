// Package threshold decides what is announced of quotas and wallets: levels that
// are reached, once each, and levels that a higher limit has taken away again.
//
// A Book holds what was announced. Observe takes one usage event and returns what
// it adds; Restore takes what was announced before. Observe records its own answers
// by way of Restore, so a Book that is made anew from what was published is the Book
// that published it, and decides the same (docs/adr/0057).
//
// Nothing else is remembered: a counter of which nothing was announced costs no
// memory, and what a Book decides depends on what was announced and on the event.
package threshold
