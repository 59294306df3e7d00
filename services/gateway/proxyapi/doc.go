// Package proxyapi is the gate as a reverse proxy: it finds the service, the
// caller and the client address of a request, asks for a decision, and then
// either forwards the request or answers in the upstream's stead.
//
// A request has one path and one identity (docs/adr/0033): both are worked out
// once, here, and what the upstream is sent is made from them.
//
// Everything streams. Nothing of a body is kept, and a silent party ends the
// exchange: see watch.
package proxyapi
