// Package wire frames Avro bodies as Confluent's clients do and finds the
// schema that a body was written with.
//
// A value on a topic is one zero byte, the id of the writer's schema in four
// bytes, most significant first, and the Avro body. A schema registry gives the
// ids. Look-ups are shared, remembered and bound to one subject, because a
// value names the schema that it is to be read with and whoever can write to a
// topic can name any.
package wire
