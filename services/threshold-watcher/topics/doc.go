// Package topics reads usage.v1 and writes quota-events.v1.
//
// It is a consumer group's member that writes in transactions: what is announced
// because of a batch, what is set aside of it and its offsets are stored together or
// not at all, so a reader of committed records sees each announcement once. What was
// announced before is read back from the partition of quota-events.v1 that has the
// number of the one of usage.v1 (docs/adr/0058), and nothing else is kept.
package topics
