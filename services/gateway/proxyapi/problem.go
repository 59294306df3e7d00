package proxyapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
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

// titles say of each code what it means.
var titles = map[string]string{
	"ambiguous-path":        "The path can be read in two ways",
	"ambiguous-credentials": "The request names two callers",
	"unreadable-body":       "The body cannot be read",
	"unknown-key":           "A known API key is needed",
	"blocked":               "This traffic is blocked",
	"unknown-service":       "There is no such service",
	"method-not-allowed":    "The gate does not take this method",
	"request-timeout":       "The body did not arrive",
	"rate-limited":          "Too many requests for now",
	"quota-exceeded":        "The quota of this period is used up",
	"wallet-empty":          "The wallet is empty",
	"cost-exceeds-limit":    "The request costs more than can ever pass",
	"internal":              "The request could not be decided",
	"upstream-unreachable":  "The service cannot be reached",
	"store-unavailable":     "The counter store does not answer",
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
	if full.Title = titles[p.Code]; full.Title == "" {
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

// denial says why a decision does not let a request pass: the rule, and the
// knob that governs it.
func denial(d *decide.Decision) *problem {
	p := &problem{Status: d.Status, Code: string(d.Code), Detail: detail(d)}
	if d.CanRetry {
		p.retry = max(1, seconds(d.RetryAfter))
		p.Detail += "; retry in " + strconv.FormatInt(p.retry, 10) + " s"
	}
	for i := range d.Limits {
		if l := &d.Limits[i]; !l.Passed && l.Mode == rule.Enforce && !l.Soft {
			p.Violated = append(p.Violated, l.RuleID)
		}
	}
	if len(p.Violated) == 0 && d.RuleID != "" {
		p.Violated = []string{d.RuleID}
	}
	return p
}

func detail(d *decide.Decision) string {
	var l decide.Limit
	for i := range d.Limits {
		if d.Limits[i].RuleID == d.RuleID {
			l = d.Limits[i]
		}
	}
	switch d.Code { //nolint:exhaustive // the others name no rule
	case decide.RateLimited:
		if d.Degraded { // which has no numbers
			return fmt.Sprintf("rule %s: this gateway's share of its limit is used up, while the counter store does not answer (its %s)", d.RuleID, knobs(d.Refusing(), "on_failure"))
		}
		return fmt.Sprintf("rule %s: %d units per %v are used up (its %s)", d.RuleID, l.Limit, l.Window, knobs(d.Refusing()))
	case decide.QuotaExceeded:
		return fmt.Sprintf("rule %s: %d of %d units are used in the period that ends %s (its limit and period)",
			d.RuleID, max(0, l.Consumed-l.Refunded), l.Limit, timestamp(l.PeriodEnd))
	case decide.WalletEmpty:
		if !endless(&l) {
			return fmt.Sprintf("rule %s: the wallet of %s has a balance of %d units in the period that ends %s (its limit and period)",
				d.RuleID, l.Meter, l.Balance, timestamp(l.PeriodEnd))
		}
		return fmt.Sprintf("rule %s: the wallet of %s has a balance of %d units, and no wait helps (its top-ups)", d.RuleID, l.Meter, l.Balance)
	case decide.CostExceedsLimit:
		return fmt.Sprintf("rule %s: the cost is above what can ever pass at once (%s)", d.RuleID, costKnobs(d.Refusing()))
	case decide.BlockedByRule:
		return fmt.Sprintf("rule %s blocks this traffic (its match)", d.RuleID)
	case decide.StoreUnavailable:
		return fmt.Sprintf("rule %s: the counter store does not answer, or has lost what it held, and nothing passes uncounted (its on_failure)", d.RuleID)
	default:
		return fmt.Sprintf("rule %s does not let this request pass", d.RuleID)
	}
}

// knobs lists the fields of a rate that say when it refuses, and some more.
func knobs(r *rule.Rule, more ...string) string {
	fields := []string{"limit", "window"}
	if r != nil && r.Algorithm.Bucket() {
		fields = append(fields, "burst")
	}
	if r != nil && r.MaxDelay > 0 {
		fields = append(fields, "max_delay")
	}
	return list(append(fields, more...))
}

// costKnobs lists what says whether a cost can ever pass a rule.
func costKnobs(r *rule.Rule) string {
	fields := []string{"limit"}
	if r != nil && r.Kind == rule.Rate && r.Algorithm.Bucket() {
		fields = append(fields, "burst")
	}
	if r != nil && r.Cost != nil {
		return "its " + list(append(fields, "cost"))
	}
	return "its " + list(fields) + ", and the endpoint's cost"
}

// list is words as a sentence lists them.
func list(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

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
