// Package kafka moves bytes between a service and Kafka. It is the only place
// that knows the client library, so delivery promises are made once:
//
//   - Produce is idempotent with acks=all and keeps the order of each
//     partition. A record whose callback got nil is stored; one whose callback
//     got an error may or may not be. Delivery is at-least-once across process
//     restarts, so every topic names the key that makes repeats harmless.
//   - ReadLog replays a topic from its start and stays with it, without a
//     consumer group: it commits nothing, so a restart replays everything.
//   - Consume reads as a member of a consumer group, at-least-once: it commits
//     what its handler has made durable and nothing else.
//   - Transact does so too, and writes what its handler makes of a batch in one
//     transaction with the batch's offsets: exactly once.
//   - ReadPartition reads one partition to its end, open transactions included.
//   - ReadSince reads a topic from a point in time to its end, and returns;
//     ReadRange from offsets.
//   - EnsureTopics creates what is missing and changes nothing that exists.
//
// It knows topics and bytes only: what a record means is said in schemas.
// Knobs are how every service says where Kafka is and how to enter; what keeps
// a client out is said with the knob to look at. docs/adr/0047 has the reasons.
package kafka
