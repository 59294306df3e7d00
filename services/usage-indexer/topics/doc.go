// Package topics reads usage.v1 and has its events indexed.
//
// It is a consumer group's member, at-least-once: a batch is committed when every
// record of it is in the index, known to be there, or set aside with its reason in
// a topic of this service's own. What makes repeats harmless is the event id, which
// is the document's. Nothing is committed while the store does not answer.
//
// It also counts what is missing: gateways number their events without gaps.
package topics
