// Package storetest is a store of documents inside a test: it answers as
// Elasticsearch and OpenSearch do as far as this service asks, and fails as it is
// told to.
package storetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
)

// A Doc is one document of a bulk request.
type Doc struct {
	Index, ID string
	Body      json.RawMessage
}

// An Item is the answer for one document.
type Item struct {
	Status       int
	Type, Reason string
}

// An Answer is what a script has the store say to a bulk request. The zero Answer
// lets it do its work.
type Answer struct {
	Err    error        // instead of an answer
	Status int          // of the whole; 0: the documents are looked at
	Body   string       // of the whole
	Items  map[int]Item // for documents by their place, from 0; the others are stored
	Text   string       // instead of the answer, after the documents were stored
}

// A Store is the store. It is safe for concurrent use.
type Store struct {
	// Elastic has it say that it is Elasticsearch. Set it before use.
	Elastic bool

	mu       sync.Mutex
	docs     map[string]map[string]json.RawMessage // by index and id
	template json.RawMessage
	calls    [][]Doc
	requests []string
	script   func(call int, docs []Doc) Answer
	refuse   func(method, path string) *Item
}

// New returns an empty store.
func New() *Store { return &Store{Elastic: true, docs: map[string]map[string]json.RawMessage{}} }

// Script has f decide about every bulk request from now on. Calls count from 1.
func (s *Store) Script(f func(call int, docs []Doc) Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = f
}

// Refuse has f decide about every other request; nil lets it pass.
func (s *Store) Refuse(f func(method, path string) *Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = f
}

// Calls returns the documents of each bulk request so far.
func (s *Store) Calls() [][]Doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Requests returns all requests so far but those of bulk, as "PUT /index".
func (s *Store) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Indices returns the names of all indices, ascending.
func (s *Store) Indices() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.docs))
}

// Make makes an empty index.
func (s *Store) Make(index string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.docs[index] = map[string]json.RawMessage{}
}

// Template returns the index template, nil when there is none; SetTemplate
// replaces it.
func (s *Store) Template() json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.template
}

// SetTemplate replaces the index template.
func (s *Store) SetTemplate(t json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.template = t
}

// Docs returns the ids of all documents, ascending.
func (s *Store) Docs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, docs := range s.docs {
		ids = slices.AppendSeq(ids, maps.Keys(docs))
	}
	slices.Sort(ids)
	return ids
}

// RoundTrip answers a request without a network.
func (s *Store) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	if err := s.serve(w, req); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// ServeHTTP answers a request over the network. An Answer.Err breaks the
// connection.
func (s *Store) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if s.serve(w, req) == nil {
		return
	}
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = c.Close()
	}
}

func (s *Store) serve(w http.ResponseWriter, req *http.Request) error {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Elastic {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(req.URL.Path, "/_bulk") {
		return s.bulk(w, body)
	}
	s.requests = append(s.requests, req.Method+" "+req.URL.Path)
	if s.refuse != nil {
		if i := s.refuse(req.Method, req.URL.Path); i != nil {
			fail(w, i.Status, i.Type, i.Reason)
			return nil
		}
	}
	s.other(w, req, body)
	return nil
}

func (s *Store) other(w http.ResponseWriter, req *http.Request, body []byte) {
	name := strings.TrimPrefix(req.URL.Path, "/")
	_, exists := s.docs[name]
	switch {
	case strings.HasPrefix(name, "_cluster/health"):
		say(w, map[string]any{"status": "green"})
	case strings.HasPrefix(name, "_index_template/") && req.Method == http.MethodPut:
		s.template = bytes.Clone(body)
		say(w, map[string]any{"acknowledged": true})
	case strings.HasPrefix(name, "_index_template/") && s.template == nil:
		fail(w, http.StatusNotFound, "resource_not_found_exception", "no template")
	case strings.HasPrefix(name, "_index_template/"):
		say(w, map[string]any{"index_templates": []any{map[string]any{"name": "x", "index_template": s.template}}})
	case strings.HasPrefix(name, "_cat/indices"):
		list := []map[string]string{}
		for index := range s.docs {
			list = append(list, map[string]string{"index": index})
		}
		say(w, list)
	case req.Method == http.MethodPut && strings.HasSuffix(name, "/_mapping"):
		say(w, map[string]any{"acknowledged": true})
	case req.Method == http.MethodPut && exists:
		fail(w, http.StatusBadRequest, "resource_already_exists_exception", name)
	case req.Method == http.MethodPut:
		s.docs[name] = map[string]json.RawMessage{}
		say(w, map[string]any{"acknowledged": true})
	case !exists:
		fail(w, http.StatusNotFound, "index_not_found_exception", name)
	case req.Method == http.MethodDelete:
		delete(s.docs, name)
		say(w, map[string]any{"acknowledged": true})
	}
}

func (s *Store) bulk(w http.ResponseWriter, body []byte) error {
	docs, err := read(body)
	if err != nil {
		fail(w, http.StatusBadRequest, "illegal_argument_exception", err.Error())
		return nil
	}
	s.calls = append(s.calls, docs)
	var a Answer
	if s.script != nil {
		a = s.script(len(s.calls), docs)
	}
	if a.Status >= 300 {
		w.WriteHeader(a.Status)
		_, err := io.WriteString(w, a.Body)
		return err
	}
	items, failed := []any{}, false
	for n, d := range docs {
		it, scripted := a.Items[n]
		if !scripted {
			it = s.store(d)
		}
		answer := map[string]any{"status": it.Status}
		if it.Status >= 300 {
			failed = true
			answer["error"] = map[string]any{"type": it.Type, "reason": it.Reason}
		}
		items = append(items, map[string]any{"create": answer})
	}
	switch {
	case a.Err != nil:
		return a.Err
	case a.Text != "":
		_, err := io.WriteString(w, a.Text)
		return err
	}
	say(w, map[string]any{"errors": failed, "items": items})
	return nil
}

// store keeps a document as create does.
func (s *Store) store(d Doc) Item {
	index, ok := s.docs[d.Index]
	if !ok {
		return Item{http.StatusNotFound, "index_not_found_exception", "no such index [" + d.Index + "]"}
	}
	if _, ok := index[d.ID]; ok {
		return Item{http.StatusConflict, "version_conflict_engine_exception", "[" + d.ID + "]: version conflict"}
	}
	index[d.ID] = d.Body
	return Item{Status: http.StatusCreated}
}

// read takes a bulk body apart; one that is not in form spoils all of it, as in a
// real store. A delete has no document.
func read(body []byte) ([]Doc, error) {
	if !bytes.HasSuffix(body, []byte("\n")) {
		return nil, fmt.Errorf("the bulk request must be terminated by a newline")
	}
	lines := bytes.Split(bytes.TrimSuffix(body, []byte("\n")), []byte("\n"))
	docs := []Doc{}
	for i := 0; i < len(lines); i++ {
		var action map[string]struct {
			Index string `json:"_index"`
			ID    string `json:"_id"`
		}
		if err := json.Unmarshal(lines[i], &action); err != nil {
			return nil, fmt.Errorf("malformed action line %d", i+1)
		}
		if a, ok := action["create"]; ok && i+1 < len(lines) {
			i++
			docs = append(docs, Doc{a.Index, a.ID, bytes.Clone(lines[i])})
		}
	}
	return docs, nil
}

func say(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func fail(w http.ResponseWriter, status int, kind, reason string) {
	w.WriteHeader(status)
	say(w, map[string]any{"error": map[string]any{"type": kind, "reason": reason}, "status": status})
}
