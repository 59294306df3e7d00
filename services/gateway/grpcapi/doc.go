// Package grpcapi is the gateway over gRPC: penstock.decision.v1, which is
// httpapi in other words, and the rate limit service that Envoy's filter calls
// (docs/adr/0068).
//
// A Face has the calls as functions from message to message. Serve carries them
// by one of two engines: package h2, or grpc-go, which is also what the first is
// held to.
package grpcapi
