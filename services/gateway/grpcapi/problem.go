package grpcapi

import (
	"encoding/json"
	"strconv"
	"strings"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/tell"
)

// appendProblem appends the body of a refusal (RFC 9457), as the gate's own
// refusals have it where it proxies.
func appendProblem(b []byte, o *ask.Outcome) []byte {
	var title, detail, code string
	var status int
	var errs ask.Faults
	var violated []string
	if o.Err != nil {
		p := ask.ProblemOf(o.Err)
		title, status, detail, code, errs = p.Title, p.Status, p.Detail(o.Err), p.Code, ask.FaultsOf(o.Err)
	} else {
		n := tell.Deny(o.Decision)
		title, status, detail, code, violated = n.Title, o.Decision.Status, n.Detail, string(o.Decision.Code), n.Violated
	}
	b = append(append(append(b, `{"type":"https://penstock.dev/problems/`...), code...), '"') // codes need no escapes
	b = appendJSON(append(b, `,"title":`...), title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
	b = appendJSON(append(b, `,"detail":`...), detail)
	b = appendJSON(append(b, `,"code":`...), code)
	b = append(b, `,"errors":[`...)
	for i, f := range errs {
		b = appendComma(b, i)
		b = appendJSON(append(b, `{"field":`...), f.Field)
		b = append(appendJSON(append(b, `,"message":`...), f.Message), '}')
	}
	b = append(b, ']')
	if len(violated) > 0 {
		b = append(b, `,"violated-policies":[`...)
		for i, id := range violated {
			b = appendJSON(appendComma(b, i), id)
		}
		b = append(b, ']')
	}
	return append(b, "}\n"...)
}

// appendComma appends one in front of all elements but the first.
func appendComma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// plain are the bytes that stand for themselves in JSON, also where that is in
// HTML.
var plain = func() (is [256]bool) {
	for c := byte(' '); c <= '~'; c++ {
		is[c] = !strings.ContainsRune(`"\<>&`, rune(c))
	}
	return is
}()

// appendJSON appends a text as encoding/json does, which is asked about all that
// it may escape.
func appendJSON(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if !plain[s[i]] {
			text, err := json.Marshal(s)
			if err != nil { // texts always marshal
				return append(b, `""`...)
			}
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
