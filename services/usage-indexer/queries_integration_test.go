//go:build integration

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// A question is one query of QUERIES.md and the answer printed below it.
type question struct {
	title        string
	path, body   string
	answer       any
	answerAsText string
}

var questionForm = regexp.MustCompile("(?s)## ([^\n]+)\n" + // its title
	"(?:[^\n#`]*(?:`[^`\n]+`[^\n#`]*)*\n)*?" + // what is said about it
	"```sh\ncurl -s \"\\$ELASTICSEARCH_URL/([^\"\n]+)\" -H 'Content-Type: application/json' -d '\n([^']+)'\n```\n" +
	"```json\n([^`]+)\n```")

// questions reads the page. A code fence that is not of the form is a fault: it
// would not be asked.
func questions(t *testing.T) []question {
	t.Helper()
	page, err := os.ReadFile("QUERIES.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []question
	for _, m := range questionForm.FindAllStringSubmatch(string(page), -1) {
		q := question{title: m[1], path: m[2], body: m[3], answerAsText: m[4]}
		d := json.NewDecoder(strings.NewReader(m[4]))
		d.UseNumber()
		if err := d.Decode(&q.answer); err != nil {
			t.Errorf("the answer of %q: %v", q.title, err)
		}
		all = append(all, q)
	}
	if fences := strings.Count(string(page), "```") / 2; fences != 2*len(all) {
		t.Errorf("QUERIES.md has %d code fences, of which %d are a query or its answer", fences, 2*len(all))
	}
	if lines := strings.Count(string(page), "\n"); lines > 200 {
		t.Errorf("QUERIES.md has %d lines, want at most 200", lines)
	}
	return all
}

// TestIntegrationQueries guarantees that every query which analysts are told to
// send works on both stores, and answers what they are told.
func TestIntegrationQueries(t *testing.T) {
	t.Parallel()

	for name, url := range sampled(t) {
		for _, q := range questions(t) {
			t.Run(name+"/"+q.title, func(t *testing.T) {
				t.Parallel()

				status, body := ask(t, url+"/"+q.path, q.body)
				var got any
				d := json.NewDecoder(bytes.NewReader(body))
				d.UseNumber()
				if err := d.Decode(&got); err != nil || status != http.StatusOK {
					t.Fatalf("answered %d (%v): %s", status, err, body)
				}
				if !same(q.answer, got) {
					t.Errorf("answered\n%s\nwant\n%s", body, q.answerAsText)
				}
			})
		}
	}
}

func ask(t *testing.T, url, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// same compares two values of JSON. A fraction need only agree in the digits that
// are printed: four.
func same(want, got any) bool {
	switch want := want.(type) {
	case map[string]any:
		m, ok := got.(map[string]any)
		if !ok || len(m) != len(want) {
			return false
		}
		for k, v := range want {
			if x, ok := m[k]; !ok || !same(v, x) {
				return false
			}
		}
		return true
	case []any:
		l, ok := got.([]any)
		if !ok || len(l) != len(want) {
			return false
		}
		for i, v := range want {
			if !same(v, l[i]) {
				return false
			}
		}
		return true
	case json.Number:
		n, ok := got.(json.Number)
		if !ok {
			return false
		}
		a, err1 := want.Float64()
		b, err2 := n.Float64()
		if err1 != nil || err2 != nil || a == b {
			return err1 == nil && err2 == nil
		}
		return a != math.Trunc(a) && math.Abs(a-b) <= 0.0005*math.Abs(b)
	}
	return want == got
}
