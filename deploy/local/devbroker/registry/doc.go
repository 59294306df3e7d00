// Package registry is a schema registry for development: the part of the
// Confluent REST API that serializers, the sr client and user interfaces use,
// for Avro, with compatibility checked for real.
//
// What it knows it keeps in a compacted Kafka topic, under the keys Confluent's
// registry uses, and reads back when it starts. A write is answered only after
// the broker has acknowledged its record. An id is never given to two schemas,
// also not after the first was deleted for good.
//
// There is one registry per topic; two at once would give ids twice.
package registry
