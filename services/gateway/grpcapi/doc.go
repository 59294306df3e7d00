// Package grpcapi is the gateway over gRPC: penstock.decision.v1, which is
// httpapi in other words, and the rate limit service that Envoy's filter calls
// (docs/adr/0068).
//
// A Face has the calls as functions from message to message; Serve is the
// engine that grpc-go is.
package grpcapi
