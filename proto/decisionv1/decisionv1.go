// Package decisionv1 is penstock.decision.v1: the decisions of the gateway over
// gRPC. The comments of ../penstock/decision/v1/decision.proto say what they
// mean.
package decisionv1

//go:generate go run ../internal/gen penstock/decision/v1/decision.proto
