// Package esindex keeps usage documents in Elasticsearch or OpenSearch: daily
// indices with a fixed mapping, written by bulk requests of create, and deleted by
// their names when they are too old (docs/adr/0046).
//
// Write is at-least-once, and a document's id is its event's: what is sent twice
// is answered 409 and is done. Whatever the store does with the hundredth part of a
// request, every document of it ends as created, as a duplicate, or as refused for
// a reason that lies in the document. Everything else is tried again for as long as
// it takes.
//
// It is the only place that knows the client library, and uses only what both
// stores have in common.
package esindex
