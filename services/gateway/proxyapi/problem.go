package proxyapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/tell"
)

// A problem is an answer of the gate's own (RFC 9457, docs/adr/0026).
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Code     string   `json:"code"`
	Errors   []fault  `json:"errors"`                      // what was wrong with the request
	Violated []string `json:"violated-policies,omitempty"` // ids of the rules that refused

	retry int64 // seconds until a retry may pass; 0: no wait helps, or nobody knows
}

// A fault is one thing that is wrong with a request.
type fault struct {
	Field   string `json:"field"` // path, query, a header
	Message string `json:"message"`
}

// titles say of each code what it means, but for those of decisions.
var titles = map[string]string{
	"ambiguous-path":        "The path can be read in two ways",
	"ambiguous-credentials": "The request names two callers",
	"unreadable-body":       "The body cannot be read",
	"unknown-service":       "There is no such service",
	"method-not-allowed":    "The gate does not take this method",
	"request-timeout":       "The body did not arrive",
	"internal":              "The request could not be decided",
	"upstream-unreachable":  "The service cannot be reached",
	"shutting-down":         "This gateway is shutting down",
	"client-gone":           "The client did not wait",
	"upstream-timeout":      "The service does not answer in time",
}

// closing answers what arrives while the gate shuts down.
var closing = &problem{
	Status: http.StatusServiceUnavailable, Code: "shutting-down",
	Detail: "this gateway is shutting down; another one answers the retry", retry: 1,
}

// refuse writes a problem: to a gRPC client as the status of its call, to
// everybody else as problem+json.
func refuse(w http.ResponseWriter, r *http.Request, p *problem) {
	h := w.Header()
	if p.retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(p.retry, 10))
	}
	h.Set("Cache-Control", "no-store")
	if isGRPC(r) {
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", strconv.Itoa(grpcStatus(p.Status)))
		h.Set("Grpc-Message", grpcMessage(p.Code+": "+p.Detail))
		w.WriteHeader(http.StatusOK)
		return
	}
	full := *p
	full.Type = "https://penstock.dev/problems/" + p.Code
	if full.Title == "" {
		full.Title = titles[p.Code]
	}
	if full.Title == "" {
		full.Title = http.StatusText(p.Status)
	}
	if full.Errors == nil {
		full.Errors = []fault{}
	}
	body, err := json.Marshal(&full)
	if err != nil { // strings and numbers always marshal
		body = []byte("{}")
	}
	body = append(body, '\n')
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

// denial says why a decision does not let a request pass.
func denial(d *decide.Decision) *problem {
	n := tell.Deny(d)
	return &problem{Status: d.Status, Code: string(d.Code), Title: n.Title, Detail: n.Detail, Violated: n.Violated, retry: n.Retry}
}

// isGRPC reports whether the request is a gRPC call, whose client reads
// trailers and not statuses.
func isGRPC(r *http.Request) bool {
	const kind = "application/grpc"
	if r.ProtoMajor != 2 || r.Method != http.MethodPost {
		return false
	}
	rest, ok := strings.CutPrefix(r.Header.Get("Content-Type"), kind)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// grpcStatus is the code that a gRPC client expects for what HTTP calls status.
func grpcStatus(status int) int {
	switch status {
	case http.StatusBadRequest:
		return 3 // INVALID_ARGUMENT
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return 4 // DEADLINE_EXCEEDED
	case http.StatusForbidden:
		return 7 // PERMISSION_DENIED
	case http.StatusTooManyRequests:
		return 8 // RESOURCE_EXHAUSTED
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return 12 // UNIMPLEMENTED
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return 14 // UNAVAILABLE
	case http.StatusUnauthorized:
		return 16 // UNAUTHENTICATED
	default:
		return 13 // INTERNAL
	}
}

// grpcMessage escapes a text as the gRPC protocol does.
func grpcMessage(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if c := text[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
