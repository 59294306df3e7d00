// Package topics reads usage.v1 for checkpoints.
//
// It is a consumer group's member, at-least-once. What the group has committed
// may be ahead of the books; so a partition that is taken over is first read from
// where the books contain it. What makes repeats harmless: totals only rise, and
// what events told is counted by their stream and number, in the transaction that
// says how far the partition was read.
package topics
