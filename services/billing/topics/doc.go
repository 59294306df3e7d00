// Package topics reads usage.v1 and rules.v1 into the books.
//
// usage.v1 is read as a consumer group's member, at-least-once: a batch is committed
// when it is in the books, and what makes a repeat harmless is each event's number in
// its gateway's stream, which is in the books too and in the same transaction. So it
// does not matter where reading begins. rules.v1 is read from its beginning at every
// start, and nothing is counted before its end was reached once: events are priced by
// their tenant's calendar.
//
// What cannot be read goes to a topic of its own with the reason. What it would have
// counted is a number that did not come: the books tell of it as lost.
package topics
