package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func start(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(newSample().handler())
	t.Cleanup(srv.Close)
	return srv.URL
}

func do(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestPathsWorkWithAndWithoutTheService guarantees that one request can be sent
// to the gateway and to the upstream alike, and that it is counted once.
func TestPathsWorkWithAndWithoutTheService(t *testing.T) {
	t.Parallel()

	url := start(t)
	for _, path := range []string{"/v1/pay", "/payments/v1/pay"} {
		if code, body := do(t, http.MethodPost, url+path); code != http.StatusOK {
			t.Errorf("POST %s = %d %s", path, code, body)
		}
	}
	var hits struct {
		Total  int            `json:"total"`
		ByPath map[string]int `json:"by_path"`
	}
	_, body := do(t, http.MethodGet, url+"/hits")
	if err := json.Unmarshal([]byte(body), &hits); err != nil {
		t.Fatal(err)
	}
	if hits.Total != 2 || hits.ByPath["POST /v1/pay"] != 2 {
		t.Errorf("hits = %+v, want 2 of POST /v1/pay", hits)
	}
	do(t, http.MethodDelete, url+"/hits")
	if _, body := do(t, http.MethodGet, url+"/hits"); !strings.Contains(body, `"total":0`) {
		t.Errorf("after DELETE hits are %s", body)
	}
}

// TestEndpointsForTrying guarantees what the other endpoints answer, within
// their bounds.
func TestEndpointsForTrying(t *testing.T) {
	t.Parallel()

	url := start(t)
	tests := []struct {
		method, path string
		code         int
		holds        string
	}{
		{http.MethodGet, "/", 200, "POST /v1/pay"},
		{http.MethodGet, "/v1/payments/p-9", 200, "p-9"},
		{http.MethodGet, "/search/v1/search?q=tea", 200, "tea one"},
		{http.MethodPost, "/search/v1/search/deep?q=tea", 200, "scanned"},
		{http.MethodPost, "/export/v1/export", 200, "e-1"},
		{http.MethodGet, "/export/v1/exports/e-1?rows=3", 200, "3,\"e-1\"\n"},
		{http.MethodGet, "/v1/slow?wait=1ms", 200, "1ms"},
		{http.MethodGet, "/v1/status/503", 503, "503"},
		{http.MethodGet, "/v1/status/204", 204, ""},
		{http.MethodGet, "/v1/status/999", 400, "200-599"},
		{http.MethodPut, "/v1/echo?a=b", 200, `"uri":"/v1/echo?a=b"`},
		{http.MethodGet, "/v1/nothing", 404, ""},
	}
	for _, tt := range tests {
		code, body := do(t, tt.method, url+tt.path)
		if code != tt.code || !strings.Contains(body, tt.holds) {
			t.Errorf("%s %s = %d %q, want %d with %q", tt.method, tt.path, code, body, tt.code, tt.holds)
		}
	}
}

// TestEventsArriveOneByOne guarantees that each event is sent when it happens,
// not at the end of the stream.
func TestEventsArriveOneByOne(t *testing.T) {
	t.Parallel()

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, start(t)+"/v1/events?count=2&every=1h", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || line != "id: 1\n" {
		t.Errorf("the first line is %q, %v", line, err)
	}
}
