// Package usage tells every decision to usage.v1.
//
// Record puts what there is to tell into a bounded ring: it neither waits, nor
// locks, nor allocates. Run encodes what is there straight into memory, under the
// lock of the event's partition, which also gives its number in the stream, and
// sends it, one chunk on its way per partition; what Kafka does not take goes to
// disk until it does (package spool, docs/adr/0045).
//
// Delivery is at-least-once. Stream and sequence make repeats harmless and
// losses visible: an event that is lost has used up its number, and is counted
// by its reason.
package usage
