package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"penstock.dev/services/gateway/decide"
)

// What can be wrong with a request before it is a question.
var (
	errNoPath       = errors.New("there is nothing at this path")
	errMethod       = errors.New("the path does not have this method")
	errUnauthorized = errors.New("a bearer token of a trusted caller is needed (the gateway's -decision-tokens)")
	errMedia        = errors.New("the body must be application/json in UTF-8")
	errTooLarge     = errors.New("the body is too large")
	errLate         = errors.New("the body did not arrive in time")
	errGone         = errors.New("the connection was closed before the answer")
	errReceipt      = errors.New("the receipt is not good for this")
)

// statusGone answers a caller who has closed its half of the connection; any
// other one that has gone never sees it.
const statusGone = 499

// A problem is how one error is answered.
type problem struct {
	err    error
	status int
	code   string // stable; what programs match
	title  string
}

// problems maps every error that a question can meet to a status; what is not
// here is 500. The first that matches counts.
var problems = []problem{
	{errNoPath, http.StatusNotFound, "no-such-path", "There is nothing at this path"},
	{errMethod, http.StatusMethodNotAllowed, "method-not-allowed", "The path does not have this method"},
	{errUnauthorized, http.StatusUnauthorized, "unauthorized", "A known bearer token is needed"},
	{errMedia, http.StatusUnsupportedMediaType, "unsupported-media-type", "The body is not JSON"},
	{errTooLarge, http.StatusRequestEntityTooLarge, "too-large", "The body is too large"},
	{errLate, http.StatusRequestTimeout, "request-timeout", "The body did not arrive in time"},
	{errGone, statusGone, "client-gone", "The caller did not wait"},
	{errFaulty, http.StatusBadRequest, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrCost, http.StatusBadRequest, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrRefundID, http.StatusBadRequest, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrRequestIDReused, http.StatusConflict, "request-id-reused", "The request id was used for another question"},
	{errReceipt, http.StatusForbidden, "receipt-invalid", "The receipt is not good for this"},
	{decide.ErrNothingCharged, http.StatusConflict, "nothing-charged", "The decision charged nothing"},
	{decide.ErrRefundExceeds, http.StatusConflict, "refund-exceeds-charge", "More was to be given back than is left of the charge"},
	{decide.ErrAlreadySettled, http.StatusConflict, "already-settled", "The decision was settled at another cost"},
	{decide.ErrTooManyRefunds, http.StatusConflict, "too-many-refunds", "The decision was refunded too many times"},
	{decide.ErrStoreUnavailable, http.StatusServiceUnavailable, "store-unavailable", "The counter store does not answer"},
}

// storeRetry is the Retry-After while the counter store does not answer: the
// least that can be said in whole seconds.
const storeRetry = "1"

var internalProblem = problem{nil, http.StatusInternalServerError, "internal", "The question could not be decided"}

func problemOf(err error) problem {
	for _, p := range problems {
		if errors.Is(err, p.err) {
			return p
		}
	}
	return internalProblem
}

// errFaulty is what faults are.
var errFaulty = errors.New("faulty question")

// A fault is one thing that is wrong with a question.
type fault struct {
	Field   string `json:"field"` // JSON path; "body" when it is none of the fields
	Message string `json:"message"`
}

// faults is everything that was found wrong.
type faults []fault

func (f *faults) add(field, message string) { *f = append(*f, fault{field, message}) }

// name reports whether a field is among them.
func (f *faults) name(field string) bool {
	return slices.ContainsFunc(*f, func(one fault) bool { return one.Field == field })
}

// Error implements error.
func (f faults) Error() string {
	var b strings.Builder
	for i, one := range f {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(one.Field + " " + one.Message)
	}
	return b.String()
}

// Is makes faults match errFaulty.
func (f faults) Is(target error) bool { return target == errFaulty }

// faultsOf names the fields that an error is about.
func faultsOf(err error) (list faults) {
	switch {
	case errors.As(err, &list):
	case errors.Is(err, decide.ErrRequestIDReused):
		list.add("request_id", "was used within a day for other dimensions or another cost")
	case errors.Is(err, decide.ErrCost):
		list.add("cost", "is out of bounds")
	case errors.Is(err, decide.ErrRefundID):
		list.add("refund_id", "is out of bounds")
	case errors.Is(err, errReceipt):
		list.add("receipt", err.Error())
	case errors.Is(err, decide.ErrRefundExceeds):
		list.add("units", "are more than what is left of the charge")
	case errors.Is(err, decide.ErrAlreadySettled):
		list.add("cost", "is not the one that the decision was settled at")
	}
	return list
}

// refuse answers an error as problem+json (RFC 9457).
func refuse(w http.ResponseWriter, err error) {
	p := problemOf(err)
	body := struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
		Code   string `json:"code"`
		Errors faults `json:"errors"`
	}{"https://penstock.dev/problems/" + p.code, p.title, p.status, err.Error(), p.code, faults{}}
	body.Errors = append(body.Errors, faultsOf(err)...)
	switch p.status {
	case http.StatusInternalServerError:
		body.Detail = "the gateway's log has the cause"
	case http.StatusServiceUnavailable: // whose cause names machines of ours
		body.Detail = "nothing was answered within the gateway's -redis-budget, or the store has lost what it held; " +
			"the same request may be sent again: it is done once"
	}
	text, err := json.Marshal(&body)
	if err != nil { // texts and numbers always marshal
		text = []byte("{}")
	}
	text = append(text, '\n')
	h := w.Header()
	switch p.status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="penstock"`)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", storeRetry)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(p.status)
	_, _ = w.Write(text)
}
