package proof

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
)

// TestEventsAreReadByTheirSchema guarantees that a record is read by the schema
// that its frame names, which is asked for once, and that what is no such record is
// an error.
func TestEventsAreReadByTheirSchema(t *testing.T) {
	t.Parallel()

	const schema = `{"type": "record", "name": "E", "fields": [{"name": "decision", "type": {"type": "enum", "name": "D", "symbols": ["ALLOW", "DENY"]}},
		{"name": "level", "type": ["null", "int"]}]}`
	asked := 0
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path != "/schemas/ids/7" {
			http.Error(w, `{"error_code": 40403, "message": "no such schema"}`, http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, `{"schema": "{\"type\": \"record\", \"name\": \"E\", \"fields\": [{\"name\": \"decision\", \"type\": {\"type\": \"enum\", \"name\": \"D\", \"symbols\": [\"ALLOW\", \"DENY\"]}}, {\"name\": \"level\", \"type\": [\"null\", \"int\"]}]}"}`)
	}))
	defer registry.Close()
	client, err := sr.NewClient(sr.URLs(registry.URL))
	if err != nil {
		t.Fatal(err)
	}
	body, err := avro.MustParse(schema).Encode(map[string]any{"decision": "DENY", "level": 80})
	if err != nil {
		t.Fatal(err)
	}
	r := reader{registry: client, schemas: map[int]*avro.Schema{}}
	for range 2 {
		e, err := r.decode(t.Context(), append([]byte{0, 0, 0, 0, 7}, body...))
		if err != nil || e.text("decision") != "DENY" || e.text("level") != "" {
			t.Fatalf("read %v, %v", e, err)
		}
		if got := crossing(event{"type": "EXHAUSTED", "threshold_percent": e["level"], "consumed": int64(10)}); got != "EXHAUSTED 80 % at 10" {
			t.Errorf("shown as %q", got)
		}
	}
	if asked != 1 {
		t.Errorf("the registry was asked %d times", asked)
	}
	for _, value := range [][]byte{nil, []byte("{}"), {1, 0, 0, 0, 7, 0}, {0, 0, 0, 0, 7}, {0, 0, 0, 0, 8, 0}} {
		if e, err := r.decode(t.Context(), value); err == nil {
			t.Errorf("%v was read as %v", value, e)
		}
	}
}
