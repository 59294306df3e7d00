// Package topics reads the control plane's log, rules.v1, into the book that
// decisions are made from.
//
// It reads at-least-once, from the start, without a consumer group: it commits
// nothing. What makes repeats harmless is the key and the version: the higher
// version of a key stays. A record that cannot be read or served is set aside,
// counted by its reason, and the last good one of its key stays in force
// (docs/adr/0018). What is in force is kept in a snapshot on disk, with the
// schemas it was written with, so that a gateway starts without Kafka and
// without the registry (docs/adr/0012, 0032).
package topics
