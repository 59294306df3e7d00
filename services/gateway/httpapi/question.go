package httpapi

import (
	"strconv"
	"unicode/utf8"

	"penstock.dev/services/gateway/ask"
)

// parse reads a question. The error is ask.Faults.
func parse(body string) (q ask.Question, err error) {
	err = read(body, func(s *scanner, list *ask.Faults) { q = s.question(list) })
	return q, err
}

// read reads the one JSON value of a body. The error is ask.Faults.
func read(body string, value func(s *scanner, list *ask.Faults)) error {
	if !utf8.ValidString(body) {
		return ask.Faults{{Field: "body", Message: "is not UTF-8"}}
	}
	var list ask.Faults
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
func (s *scanner) question(list *ask.Faults) (q ask.Question) {
	s.object("", func(field string) {
		switch field {
		case "request_id":
			q.RequestID = s.bounded(field, ask.MaxValue, list)
		case "tenant":
			q.Tenant = s.bounded(field, ask.MaxValue, list)
		case "application":
			q.Application = s.bounded(field, ask.MaxValue, list)
		case "user":
			q.User = s.bounded(field, ask.MaxValue, list)
		case "api_key":
			q.Secret = s.bounded(field, ask.MaxValue, list)
		case "service":
			q.Service = s.bounded(field, ask.MaxValue, list)
		case "client_ip":
			q.Address = ask.Address(s.bounded(field, ask.MaxValue, list), list)
		case "method":
			q.Method = ask.Method(s.bounded(field, ask.MaxMethod, list), list)
		case "path":
			q.Path = ask.Path(s.bounded(field, ask.MaxPath, list), list)
		case "cost":
			q.Cost = s.units(field, 0, list)
		case "labels":
			s.labels(&q, list)
		default:
			s.wrong(field, "is not a field of a question", list)
		}
	})
	return q
}

// bounded reads a text of at most so many bytes.
func (s *scanner) bounded(field string, most int, list *ask.Faults) string {
	if !s.starts(`"`) {
		s.wrong(field, "is not a JSON string", list)
		return ""
	}
	return ask.Text(field, s.string(field), most, list)
}

func (s *scanner) units(field string, least int64, list *ask.Faults) *int64 {
	digits := s.integer(field, list)
	if digits == "" {
		return nil
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		list.Add(field, ask.OutOfBounds(least))
		return nil
	}
	return ask.Units(field, n, least, list)
}

// labels reads the labels, and makes them the JSON that their event has.
func (s *scanner) labels(q *ask.Question, list *ask.Faults) {
	labels := map[string]string{}
	if !s.starts("{") {
		s.wrong("labels", "is not a JSON object", list)
		return
	}
	var b []byte
	s.object("labels", func(name string) {
		field := "labels." + name
		if wrong := ask.LabelName(name); wrong != "" {
			list.Add("labels", wrong)
			field = "labels"
		}
		if len(labels) == ask.MaxLabels {
			s.fail("labels", ask.TooManyLabels())
			return
		}
		value := s.bounded(field, ask.MaxValue, list)
		labels[name] = value
		b = append(b, ',')
		b = append(ask.AppendString(b, name), ':')
		b = ask.AppendString(b, value)
	})
	text := ""
	if len(b) > 0 {
		b[0] = '{'
		text = string(append(b, '}'))
	}
	q.TellLabels(labels, text, list)
}
