package grpcapi

import (
	"context"
	"errors"

	"penstock.dev/services/gateway/ask"
)

// The services of this package, by their full names.
const (
	RateLimit = "envoy.service.ratelimit.v3.RateLimitService"
	Decision  = "penstock.decision.v1.DecisionService"
)

// A Code is a status of gRPC.
type Code uint32

// The statuses that calls end in.
const (
	Canceled           Code = 1
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Internal           Code = 13
	Unavailable        Code = 14
	Unauthenticated    Code = 16
)

// What can be wrong with a call beside what ask says.
var (
	errStranger   = errors.New("a peer within the gateway's -trusted-proxies, or a bearer token of its -decision-tokens, is needed")
	errUnreadable = errors.New("the message cannot be read")
	errBusy       = errors.New("too many calls are in flight")
	errClosing    = errors.New("this gateway is shutting down; another one answers the retry")
	errPanic      = errors.New("the call failed in a way that nobody foresaw")
)

// statuses are those of problems; what is not here is Internal.
var statuses = map[string]Code{
	"unauthorized":          Unauthenticated,
	"client-gone":           Canceled,
	"malformed":             InvalidArgument,
	"request-id-reused":     AlreadyExists,
	"receipt-invalid":       PermissionDenied,
	"nothing-charged":       FailedPrecondition,
	"refund-exceeds-charge": FailedPrecondition,
	"already-settled":       FailedPrecondition,
	"too-many-refunds":      FailedPrecondition,
	"store-unavailable":     Unavailable,
}

// A Failure is what the caller is told of an error.
type Failure struct {
	Code    Code
	Message string     // begins with Reason
	Reason  string     // the code of the JSON face's problem
	Fields  ask.Faults // that were wrong
}

// Domain is where the reasons of failures are defined.
const Domain = "penstock.dev"

// FailureOf is what the caller is told of an error. What is nobody's fault but
// ours goes to the log.
func (f *Face) FailureOf(ctx context.Context, err error) Failure {
	failure := func(code Code, reason, detail string) Failure {
		return Failure{Code: code, Reason: reason, Message: reason + ": " + detail, Fields: ask.FaultsOf(err)}
	}
	switch {
	case errors.Is(err, errStranger):
		return failure(Unauthenticated, "unauthorized", err.Error())
	case errors.Is(err, errUnreadable):
		return failure(InvalidArgument, "malformed", err.Error())
	case errors.Is(err, errBusy):
		return failure(Unavailable, "busy", err.Error())
	case errors.Is(err, errClosing):
		return failure(Unavailable, "shutting-down", err.Error())
	}
	p := ask.ProblemOf(err)
	switch {
	case (p.Internal() || errors.Is(err, ask.ErrGone)) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failure(DeadlineExceeded, "request-timeout", "the deadline of the call passed before the answer")
	case p.Internal() && ctx.Err() != nil:
		return failure(Canceled, "client-gone", ask.ErrGone.Error())
	case p.Internal():
		f.log.Error("question not decided", "error", err.Error())
	}
	code, ok := statuses[p.Code]
	if !ok {
		code = Internal
	}
	return failure(code, p.Code, p.Detail(err))
}
