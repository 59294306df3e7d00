//go:build integration

package estest_test

import (
	"net/http"
	"testing"

	"penstock.dev/services/internal/estest"
)

// TestIntegrationEach guarantees that a test gets both stores, that what two tests
// keep in them does not meet, and what the helpers see of it.
func TestIntegrationEach(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, s *estest.Server) {
		mine, yours := estest.Prefix(), estest.Prefix()
		s.Call(http.MethodPut, mine+"-a", map[string]any{"mappings": map[string]any{"properties": map[string]any{
			"name": map[string]any{"type": "keyword"},
			"part": map[string]any{"properties": map[string]any{"size": map[string]any{"type": "long"}}},
		}}}, nil)
		s.Call(http.MethodPut, mine+"-a/_doc/1", map[string]any{"name": "valve"}, nil)
		s.Call(http.MethodPut, yours+"-a/_doc/1", map[string]any{"name": "pump"}, nil)
		if n := s.Count(mine + "-*"); n != 1 {
			t.Errorf("%d documents, want 1", n)
		}
		hits, _ := s.Search(mine+"-*", map[string]any{"query": map[string]any{"term": map[string]any{"name": "valve"}}})
		if len(hits) != 1 || hits[0].ID != "1" || hits[0].Source["name"] != "valve" {
			t.Errorf("found %+v", hits)
		}
		if names := s.Indices(mine + "*"); len(names) != 1 || names[0] != mine+"-a" {
			t.Errorf("indices %v", names)
		}
		if n := s.MappedFields(mine + "-a"); n != 3 {
			t.Errorf("%d mapped fields, want 3", n)
		}
		if status, _ := s.Try(http.MethodGet, "nothing/_count", nil); status != http.StatusNotFound {
			t.Errorf("an index that is not there answers %d", status)
		}
	})
}

// TestIntegrationStart guarantees that a server of a test's own keeps its
// documents when it is killed.
func TestIntegrationStart(t *testing.T) {
	t.Parallel()
	s := estest.Start(t, estest.OpenSearch)
	s.Call(http.MethodPut, "a/_doc/1", map[string]any{"name": "valve"}, nil)
	s.Kill()
	s.Restart()
	if n := s.Count("a"); n != 1 {
		t.Errorf("%d documents after a kill, want 1", n)
	}
}
