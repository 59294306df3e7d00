package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
)

// What can be wrong with a request before the books are read.
var (
	errNoPath        = errors.New("no such path")
	errMethod        = errors.New("method not allowed")
	errUnauthorized  = errors.New("unauthorized")
	errNoOperator    = errors.New("no operator")
	errUnreadable    = errors.New("unreadable")
	errNotAcceptable = errors.New("not acceptable")
	errInvalid       = errors.New("invalid")
)

// A problem is how one error is answered.
type problem struct {
	err    error
	status int
	code   string // stable; what programs match
	title  string
	detail string // empty: the error's text
}

// problems maps every error of the account and of this package to a status; what is not
// here is 500. The first that matches counts. A detail that is fixed tells nothing about
// what was asked for.
var problems = []problem{
	{errNoPath, http.StatusNotFound, "no-such-path", "There is nothing at this path", "see /openapi.json"},
	{errMethod, http.StatusMethodNotAllowed, "method-not-allowed", "The path does not have this method", ""},
	{errUnauthorized, http.StatusUnauthorized, "unauthorized", "A valid portal token is needed", "send it as Authorization: Bearer"},
	{access.ErrRefused, http.StatusUnauthorized, "unauthorized", "A valid portal token is needed", "send it as Authorization: Bearer"},
	{errNoOperator, http.StatusUnauthorized, "unauthorized", "An operator's token is needed", "send it as Authorization: Bearer"},
	{errUnreadable, http.StatusBadRequest, "unreadable", "The body is not the object that is wanted", ""},
	{errNotAcceptable, http.StatusNotAcceptable, "not-acceptable", "No such form", ""},
	{errInvalid, http.StatusUnprocessableEntity, "invalid", "The request is out of bounds", ""},
	{account.ErrNotFound, http.StatusNotFound, "not-found", "There is no such object", "nothing of yours has this id"},
	{access.ErrNotFound, http.StatusNotFound, "not-found", "There is no such token", "none was issued with this id"},
	{account.ErrUnavailable, http.StatusServiceUnavailable, "store-unavailable", "The database does not answer", "try again"},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, "store-unavailable", "The database does not answer", "try again"},
}

var internalProblem = problem{nil, http.StatusInternalServerError, "internal", "The service failed", "the log has the cause"}

func problemOf(err error) problem {
	for _, p := range problems {
		if errors.Is(err, p.err) {
			return p
		}
	}
	return internalProblem
}

// A fieldFault is errInvalid of one parameter.
type fieldFault struct{ Field, Message string }

func (f *fieldFault) Error() string { return f.Field + " " + f.Message }

func (f *fieldFault) Unwrap() error { return errInvalid }

type fieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

type problemBody struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail"`
	Code   string       `json:"code"`
	Errors []fieldError `json:"errors"`
}

// refuse answers an error. One that is not the caller's is logged here, once.
func (h *handler) refuse(_ context.Context, err error, w http.ResponseWriter) {
	p := problemOf(err)
	body := problemBody{
		Type: "https://penstock.dev/problems/" + p.code, Title: p.title, Status: p.status, Detail: p.detail, Code: p.code, Errors: []fieldError{},
	}
	if body.Detail == "" {
		body.Detail = err.Error()
	}
	var fault *fieldFault
	if errors.As(err, &fault) {
		body.Errors = append(body.Errors, fieldError{fault.Field, fault.Message})
	}
	switch p.status {
	case http.StatusInternalServerError:
		h.cfg.Log.Error("request failed", "error", err.Error())
	case http.StatusServiceUnavailable:
		h.cfg.Log.Warn("request not served", "error", err.Error())
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="penstock"`)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.status)
	_ = json.NewEncoder(w).Encode(body) // a client that is gone is nobody's error
}

// admit returns what the request's token grants. A token is taken from the header alone.
func (h *handler) admit(ctx context.Context, r *http.Request) (access.Grant, error) {
	token, ok := bearer(r)
	if !ok {
		return access.Grant{}, errUnauthorized
	}
	grant, err := h.cfg.Gate.Verify(ctx, token, h.cfg.Now())
	if err != nil {
		return access.Grant{}, fmt.Errorf("portal token: %w", err)
	}
	return grant, nil
}

// bearer is the one bearer token of a request's header.
func bearer(r *http.Request) (token string, ok bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}
