// Package usage tells every decision to usage.v1.
//
// Record encodes an event straight into memory that is there, under the lock of
// the event's partition, which also gives its number in the stream: it neither
// waits nor allocates. Run sends what was recorded, one chunk on its way per
// partition, and what Kafka does not take goes to disk until it does (package
// spool, docs/adr/0045).
//
// Delivery is at-least-once. Stream and sequence make repeats harmless and
// losses visible: an event that is lost has used up its number, and is counted
// by its reason.
package usage
