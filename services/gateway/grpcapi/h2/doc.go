// Package h2 serves unary calls of gRPC over HTTP/2, and nothing else: the
// decision path without a goroutine, a stack and a write per call.
//
// One goroutine per connection decodes all frames that one read brought, hands
// all complete requests to the Handler in one slice, and writes all answers
// that are there by then in one write. What is answered later, by whatever
// goroutine, is written by a second one; FinishAll answers many at once. Calls
// and their buffers are used again.
//
// It follows RFC 9113 (frames §4 and §6, states §5.1, flow control §5.2 and
// §6.9, errors §5.4, messages §8), RFC 7541 through golang.org/x/net/http2/hpack
// for what it reads and by hand for the few fields it writes (§4.2, §5, §6),
// and "gRPC over HTTP2". It has neither push, priorities (§5.3), CONNECT nor
// Upgrade, and no compressed messages; SETTINGS_TIMEOUT is never sent, because
// all its settings are bounds that hold whether they are acknowledged or not.
// docs/adr/0069 says why it is ours, README.md what it costs.
package h2
