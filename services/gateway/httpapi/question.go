package httpapi

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// Bounds of a question, in bytes unless they say otherwise.
const (
	maxValue    = 256  // of a dimension, the request id, the API key and a label's value
	maxMethod   = 32   // of a method
	maxPath     = 8192 // of a path, as it was sent
	maxLabels   = 64   // labels
	maxLabelKey = 128  // of a label's name
	maxLabelSum = 8192 // of all labels as compact JSON, as the event of the decision has them
)

// A question is what was asked.
type question struct {
	decide.Query
	secret string            // of the API key; empty: none was given
	digest [sha256.Size]byte // of the secret
	labels string            // as JSON; empty: none
}

// identify looks up the API key of a question that has one, and fills in what
// it stands for. The error is faults.
func (q *question) identify(rules Catalogue) (known bool, err error) {
	q.digest = sha256.Sum256([]byte(q.secret))
	key, ok := rules.Key(q.digest)
	if !ok {
		return false, nil
	}
	return true, q.resolve(&key)
}

// resolve fills in what an API key stands for. The error is faults.
func (q *question) resolve(key *decide.Key) error {
	var list faults
	for _, d := range []struct {
		name  string
		said  *string
		keyed string
	}{{"tenant", &q.Tenant, key.Tenant}, {"application", &q.Application, key.Application}, {"user", &q.User, key.User}} {
		switch {
		case *d.said == "":
			*d.said = d.keyed
		case d.keyed != "" && *d.said != d.keyed:
			list.add(d.name, "is not the one of the api_key")
		}
	}
	if len(list) > 0 {
		return list
	}
	q.APIKey = key.ID
	return nil
}

// parse reads a question. The error is faults.
func parse(body string) (q question, err error) {
	err = read(body, func(s *scanner, list *faults) { q = s.question(list) })
	return q, err
}

// read reads the one JSON value of a body. The error is faults.
func read(body string, value func(s *scanner, list *faults)) error {
	if !utf8.ValidString(body) {
		return faults{{"body", "is not UTF-8"}}
	}
	var list faults
	s := &scanner{text: body}
	value(s, &list)
	if s.rest() {
		s.fail("body", "has something behind its end")
	}
	if s.fault != nil {
		list = append(list, *s.fault)
	}
	if len(list) > 0 {
		return list
	}
	return nil
}

// question reads one.
func (s *scanner) question(list *faults) (q question) {
	s.object("", func(field string) {
		switch field {
		case "request_id":
			q.RequestID = s.bounded(field, maxValue, list)
		case "tenant":
			q.Tenant = s.bounded(field, maxValue, list)
		case "application":
			q.Application = s.bounded(field, maxValue, list)
		case "user":
			q.User = s.bounded(field, maxValue, list)
		case "api_key":
			q.secret = s.bounded(field, maxValue, list)
		case "service":
			q.Service = s.bounded(field, maxValue, list)
		case "client_ip":
			q.Address = address(s.bounded(field, maxValue, list), list)
		case "method":
			q.Method = method(s.bounded(field, maxMethod, list), list)
		case "path":
			q.Path = path(s.bounded(field, maxPath, list), list)
		case "cost":
			q.Cost = s.units(field, 0, list)
		case "labels":
			q.Labels, q.labels = s.labels(list)
		default:
			s.wrong(field, "is not a field of a question", list)
		}
	})
	return q
}

// bounded reads a text of at most so many bytes.
func (s *scanner) bounded(field string, most int, list *faults) string {
	if !s.starts(`"`) {
		s.wrong(field, "is not a JSON string", list)
		return ""
	}
	v := s.string(field)
	if len(v) > most {
		list.add(field, fmt.Sprintf("is longer than %d bytes", most))
		return ""
	}
	return v
}

func address(text string, list *faults) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		list.add("client_ip", "is no IP address")
	}
	return canon.Group(a)
}

// tokenBytes are what a method may consist of (RFC 9110).
const tokenBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"

func method(text string, list *faults) string {
	for i := 0; i < len(text); i++ {
		if strings.IndexByte(tokenBytes, text[i]) < 0 {
			list.add("method", "is no HTTP method")
			return ""
		}
	}
	return canon.Method(text)
}

// path reads a path as the gate reads that of a request. A query may be behind
// it, as in a request's target, and does not count.
func path(text string, list *faults) string {
	if text == "" {
		return ""
	}
	text, _, _ = strings.Cut(text, "?")
	p, err := canon.ParsePath(text)
	if err != nil {
		list.add("path", "is an "+err.Error())
	}
	return p.Match
}

// units reads a number of units, nil when it is none.
func (s *scanner) units(field string, least int64, list *faults) *int64 {
	digits := s.integer(field, list)
	if digits == "" {
		return nil
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < least || n > rule.Unlimited {
		list.add(field, fmt.Sprintf("is not within %d and %d", least, rule.Unlimited))
		return nil
	}
	return &n
}

// labels reads the labels, and makes them the JSON that their event has.
func (s *scanner) labels(list *faults) (labels map[string]string, text string) {
	labels = map[string]string{}
	if !s.starts("{") {
		s.wrong("labels", "is not a JSON object", list)
		return labels, ""
	}
	var b []byte
	s.object("labels", func(name string) {
		field := "labels." + name
		if name == "" || len(name) > maxLabelKey {
			list.add("labels", fmt.Sprintf("has a name that is not 1 to %d bytes long", maxLabelKey))
			field = "labels"
		}
		if len(labels) == maxLabels {
			s.fail("labels", fmt.Sprintf("has more than %d members", maxLabels))
			return
		}
		value := s.bounded(field, maxValue, list)
		labels[name] = value
		b = append(b, ',')
		b = append(appendString(b, name), ':')
		b = appendString(b, value)
	})
	if len(b) == 0 {
		return labels, ""
	}
	if len(b)+1 > maxLabelSum {
		list.add("labels", fmt.Sprintf("is longer than %d bytes as compact JSON", maxLabelSum))
	}
	b[0] = '{'
	return labels, string(append(b, '}'))
}
