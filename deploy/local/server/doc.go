// Package server obtains, starts, watches and stops the real servers that
// Penstock runs on: Redis, PostgreSQL, Apache Kafka (one node or three), Kafka
// Connect with Debezium, Elasticsearch, OpenSearch, and the development broker.
//
// It is what stands behind `make demo`, `make up` and every test kit, so that a
// test meets the same server, started the same way, as a person who tries the
// product. Each Start function returns when the server has answered a real
// request of its own protocol, or fails with the last lines of its log.
//
// A server dies with the process that started it, however that one ends
// (kernel parent-death signal), unless it was started detached; then a later
// start on the same directory takes it over instead of starting a second one.
//
// Software that is missing is installed: Debian packages by apt-get when run as
// root, jars by mvn into the user's cache, each checked against a committed
// SHA-256 list. docs/adr/0029 and 0048 say why it is done this way.
//
// Linux only. Everything is safe for concurrent use, also by several processes.
package server
