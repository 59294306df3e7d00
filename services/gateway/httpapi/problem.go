package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
	errTooLarge     = fmt.Errorf("the body is larger than %d bytes", maxBody)
	errBody         = errors.New("the body did not arrive, or not in time")
	errGone         = errors.New("the connection was closed before the answer")
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
	{errBody, http.StatusRequestTimeout, "request-timeout", "The body did not arrive"},
	{errGone, statusGone, "client-gone", "The caller did not wait"},
	{errFaulty, http.StatusBadRequest, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrCost, http.StatusBadRequest, "malformed", "The question cannot be read, or is out of bounds"},
	{decide.ErrRequestIDReused, http.StatusConflict, "request-id-reused", "The request id was used for another question"},
}

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
	var list faults
	switch {
	case errors.As(err, &list):
		body.Errors = list
	case errors.Is(err, decide.ErrRequestIDReused):
		body.Errors.add("request_id", "was used within a day for other dimensions or another cost")
	case errors.Is(err, decide.ErrCost):
		body.Errors.add("cost", "is out of bounds")
	case p.status == http.StatusInternalServerError:
		body.Detail = "the gateway's log has the cause"
	}
	text, err := json.Marshal(&body)
	if err != nil { // texts and numbers always marshal
		text = []byte("{}")
	}
	h := w.Header()
	if p.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="penstock"`)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(p.status)
	_, _ = w.Write(text)
}
