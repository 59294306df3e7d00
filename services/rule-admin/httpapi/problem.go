package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

// What can be wrong with a request before the catalogue sees it.
var (
	errNoPath       = errors.New("no such path")
	errMethod       = errors.New("method not allowed")
	errUnauthorized = errors.New("unauthorized")
	errForbidden    = errors.New("forbidden")
	errTooLarge     = errors.New("body too large")
)

// A problem is how one error is answered.
type problem struct {
	err    error
	status int
	code   string // stable; what programs match
	title  string
}

// problems maps every error of the catalogue and of this package to a status;
// what is not here is 500. The first that matches counts.
var problems = []problem{
	{errNoPath, http.StatusNotFound, "no-such-path", "There is nothing at this path"},
	{errMethod, http.StatusMethodNotAllowed, "method-not-allowed", "The path does not have this method"},
	{errUnauthorized, http.StatusUnauthorized, "unauthorized", "A known bearer token is needed"},
	{errForbidden, http.StatusForbidden, "forbidden", "The token's role may not do this"},
	{errTooLarge, http.StatusRequestEntityTooLarge, "too-large", "The body is too large"},
	{catalog.ErrUnavailable, http.StatusServiceUnavailable, "store-unavailable", "The database does not answer"},
	{catalog.ErrNoCounters, http.StatusServiceUnavailable, "counters-unavailable", "The counter store does not answer"},
	{catalog.ErrNoSchema, http.StatusServiceUnavailable, "registry-unavailable", "The schema registry has not answered yet"},
	{catalog.ErrMalformed, http.StatusBadRequest, "malformed", "The request cannot be read"},
	{catalog.ErrInvalid, http.StatusUnprocessableEntity, "invalid", "The request is out of bounds or refers to nothing"},
	{catalog.ErrNotFound, http.StatusNotFound, "not-found", "There is no such object"},
	{catalog.ErrInUse, http.StatusConflict, "in-use", "Other objects refer to this one"},
	{catalog.ErrConflict, http.StatusConflict, "conflict", "The catalogue does not allow this change now"},
	{catalog.ErrStale, http.StatusPreconditionFailed, "stale", "The object is not in the version that was named"},
	{catalog.ErrConditionRequired, http.StatusPreconditionRequired, "condition-required", "Replacing needs an If-Match header"},
}

var internalProblem = problem{nil, http.StatusInternalServerError, "internal", "The service failed"}

func problemOf(err error) problem {
	for _, p := range problems {
		if errors.Is(err, p.err) {
			return p
		}
	}
	return internalProblem
}

// problemBody is an answer of application/problem+json.
type problemBody struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail"`
	Code   string       `json:"code"`
	Errors []fieldError `json:"errors"`
}

type fieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// typePrefix begins the type of every problem; its code follows.
const typePrefix = "https://penstock.dev/problems/"

// refuse answers an error. An error that is not the caller's is logged here,
// once, and the caller is not told what it says.
func (h *handler) refuse(ctx context.Context, err error, w http.ResponseWriter) {
	p := problemOf(err)
	body := problemBody{
		Type: typePrefix + p.code, Title: p.title, Status: p.status, Detail: err.Error(), Code: p.code, Errors: fieldErrors(err),
	}
	c := callOf(ctx)
	var faults *catalog.FaultError
	if errors.As(err, &faults) {
		body.Detail = faults.Faults.Error()
	}
	var unconditional *catalog.UnconditionalError
	if errors.As(err, &unconditional) {
		body.Detail = fmt.Sprintf("%s %s is there: send If-Match: %s (the current ETag), or If-Match: * to force",
			unconditional.Kind, unconditional.ID, etag(unconditional.Version))
	}
	switch p.status {
	case http.StatusPreconditionFailed:
		if c.oddTag {
			body.Detail += `; If-Match has a weak or malformed ETag, which never matches: send one as it was given, like "37"`
		}
	case http.StatusInternalServerError:
		h.cfg.Log.Error("request failed", "request_id", c.requestID, "operation", string(c.operation), "error", err.Error())
		body.Detail = "the log has the cause, under the request id"
	case http.StatusServiceUnavailable:
		h.cfg.Log.Warn("request not served", "request_id", c.requestID, "operation", string(c.operation), "error", err.Error())
		w.Header().Set("Retry-After", "1")
		if p.err == catalog.ErrNoCounters && h.cfg.Totals != nil { //nolint:errorlint // the table's own entry
			body.Detail = "the counter store (-redis-url) does not answer, or not in time"
		}
		if p.err == catalog.ErrUnavailable { //nolint:errorlint // the table's own entry
			body.Detail = "the database does not answer, or not in time"
			if c.operation.writes() {
				body.Detail += "; a change that was asked for may have been made: read before repeating it"
			}
		}
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="penstock"`)
	case http.StatusMethodNotAllowed:
		var m *methodError
		if errors.As(err, &m) {
			w.Header().Set("Allow", m.allow)
		}
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.status)
	_ = json.NewEncoder(w).Encode(body) // a client that is gone is nobody's error
}

// fieldErrors lists the fields that an error names.
func fieldErrors(err error) []fieldError {
	out := []fieldError{}
	var faults *catalog.FaultError
	if errors.As(err, &faults) {
		for _, f := range faults.Faults {
			out = append(out, fieldError{Field: f.Field, Message: f.Message})
		}
	}
	var used *catalog.InUseError
	if errors.As(err, &used) {
		field := used.Field
		if field == "" {
			field = "id"
		}
		for _, r := range used.Referrers {
			out = append(out, fieldError{Field: field, Message: string(r.Kind) + "/" + r.ID + " refers to it in " + r.Field})
		}
	}
	switch {
	case errors.Is(err, catalog.ErrExists):
		out = append(out, fieldError{Field: "If-None-Match", Message: "is *, and the object is there"})
	case errors.Is(err, catalog.ErrStale):
		out = append(out, fieldError{Field: "If-Match", Message: "names no version that the object is in"})
	case errors.Is(err, catalog.ErrConditionRequired):
		out = append(out, fieldError{Field: "If-Match", Message: "is missing"})
	}
	return out
}

// fault returns an error that names one thing of the request that is wrong.
func fault(err error, field, format string, args ...any) error {
	var f rule.Faults
	f.Add(field, format, args...)
	return &catalog.FaultError{Err: err, Faults: f}
}
