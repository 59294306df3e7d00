package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"penstock.dev/services/gateway/ask"
)

// What can be wrong with a request before it is a question.
var (
	errNoPath   = errors.New("there is nothing at this path")
	errMethod   = errors.New("the path does not have this method")
	errMedia    = errors.New("the body must be application/json in UTF-8")
	errTooLarge = errors.New("the body is too large")
	errLate     = errors.New("the body did not arrive in time")
)

// problems maps those errors; ask has the others.
var problems = []ask.Problem{
	{Err: errNoPath, Status: http.StatusNotFound, Code: "no-such-path", Title: "There is nothing at this path"},
	{Err: errMethod, Status: http.StatusMethodNotAllowed, Code: "method-not-allowed", Title: "The path does not have this method"},
	{Err: errMedia, Status: http.StatusUnsupportedMediaType, Code: "unsupported-media-type", Title: "The body is not JSON"},
	{Err: errTooLarge, Status: http.StatusRequestEntityTooLarge, Code: "too-large", Title: "The body is too large"},
	{Err: errLate, Status: http.StatusRequestTimeout, Code: "request-timeout", Title: "The body did not arrive in time"},
}

// storeRetry is the Retry-After while the counter store does not answer: the
// least that can be said in whole seconds.
const storeRetry = "1"

func problemOf(err error) ask.Problem {
	for _, p := range problems {
		if errors.Is(err, p.Err) {
			return p
		}
	}
	return ask.ProblemOf(err)
}

// refuse answers an error as problem+json (RFC 9457).
func refuse(w http.ResponseWriter, err error) {
	p := problemOf(err)
	body := struct {
		Type   string     `json:"type"`
		Title  string     `json:"title"`
		Status int        `json:"status"`
		Detail string     `json:"detail"`
		Code   string     `json:"code"`
		Errors ask.Faults `json:"errors"`
	}{"https://penstock.dev/problems/" + p.Code, p.Title, p.Status, p.Detail(err), p.Code, ask.Faults{}}
	body.Errors = append(body.Errors, ask.FaultsOf(err)...)
	text, err := json.Marshal(&body)
	if err != nil { // texts and numbers always marshal
		text = []byte("{}")
	}
	text = append(text, '\n')
	h := w.Header()
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="penstock"`)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", storeRetry)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(text)
}
