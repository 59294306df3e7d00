package ask

import (
	"errors"
	"slices"
	"strings"

	"penstock.dev/services/gateway/decide"
)

// What can be wrong with a question beside what decide says.
var (
	ErrUnauthorized = errors.New("a bearer token of a trusted caller is needed (the gateway's -decision-tokens)")
	ErrGone         = errors.New("the connection was closed before the answer")
	ErrReceipt      = errors.New("the receipt is not good for this")
	// ErrFaulty is what Faults are.
	ErrFaulty = errors.New("faulty question")
)

// StatusGone answers a caller who has closed its half of the connection; any
// other one that has gone never sees it.
const StatusGone = 499

// A Problem is how one error is answered.
type Problem struct {
	Err    error
	Status int    // as HTTP has it
	Code   string // stable; what programs match
	Title  string
}

// Problems maps every error that a question can meet; what is not here is
// Internal. The first that matches counts.
var problems = []Problem{
	{ErrUnauthorized, 401, "unauthorized", "A known bearer token is needed"},
	{ErrGone, StatusGone, "client-gone", "The caller did not wait"},
	{ErrFaulty, 400, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrCost, 400, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrRefundID, 400, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrRequestIDReused, 409, "request-id-reused", "The request id was used for another question"},
	{ErrReceipt, 403, "receipt-invalid", "The receipt is not good for this"},
	{decide.ErrNothingCharged, 409, "nothing-charged", "The decision charged nothing"},
	{decide.ErrRefundExceeds, 409, "refund-exceeds-charge", "More was to be given back than is left of the charge"},
	{decide.ErrAlreadySettled, 409, "already-settled", "The decision was settled at another cost"},
	{decide.ErrTooManyRefunds, 409, "too-many-refunds", "The decision was refunded too many times"},
	{decide.ErrStoreUnavailable, 503, "store-unavailable", "The counter store does not answer"},
}

// internal is every other error.
var internal = Problem{nil, 500, "internal", "The question could not be decided"}

// Problems are all that a question can meet.
func Problems() []Problem { return append(slices.Clone(problems), internal) }

// ProblemOf is how an error is answered.
func ProblemOf(err error) Problem {
	for _, p := range problems {
		if errors.Is(err, p.Err) {
			return p
		}
	}
	return internal
}

// Internal reports whether the gateway's log should have the error.
func (p Problem) Internal() bool { return p.Status == internal.Status }

// Detail is what the caller is told of an error.
func (p Problem) Detail(err error) string {
	switch p.Status {
	case 500:
		return "the gateway's log has the cause"
	case 503: // whose cause names machines of ours
		return "nothing was answered within the gateway's -redis-budget, or the store has lost what it held; " +
			"the same request may be sent again: it is done once"
	default:
		return err.Error()
	}
}

// A Fault is one thing that is wrong with a question.
type Fault struct {
	Field   string `json:"field"` // JSON path; "body" when it is none of the fields
	Message string `json:"message"`
}

// Faults is everything that was found wrong.
type Faults []Fault

// Add takes note of one.
func (f *Faults) Add(field, message string) { *f = append(*f, Fault{field, message}) }

// Name reports whether a field is among them.
func (f *Faults) Name(field string) bool {
	return slices.ContainsFunc(*f, func(one Fault) bool { return one.Field == field })
}

// Err is the faults as an error, nil when there are none.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// Error implements error.
func (f Faults) Error() string {
	var b strings.Builder
	for i, one := range f {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(one.Field + " " + one.Message)
	}
	return b.String()
}

// Is makes Faults match ErrFaulty.
func (f Faults) Is(target error) bool { return target == ErrFaulty }

// FaultsOf names the fields that an error is about.
func FaultsOf(err error) (list Faults) {
	switch {
	case errors.As(err, &list):
	case errors.Is(err, decide.ErrRequestIDReused):
		list.Add("request_id", "was used within a day for other dimensions or another cost")
	case errors.Is(err, decide.ErrCost):
		list.Add("cost", "is out of bounds")
	case errors.Is(err, decide.ErrRefundID):
		list.Add("refund_id", "is out of bounds")
	case errors.Is(err, ErrReceipt):
		list.Add("receipt", err.Error())
	case errors.Is(err, decide.ErrRefundExceeds):
		list.Add("units", "are more than what is left of the charge")
	case errors.Is(err, decide.ErrAlreadySettled):
		list.Add("cost", "is not the one that the decision was settled at")
	}
	return list
}
