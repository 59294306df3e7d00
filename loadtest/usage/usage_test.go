package usage_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"penstock.dev/loadtest/usage"
	"penstock.dev/schemas/usagev1"
)

// TestEventsAreValid guarantees that what is produced is what a gateway could
// have produced: within the schema's bounds, ids of version 7, none twice.
func TestEventsAreValid(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[usagev1.UUID]bool{}
	for i := range 10_000 {
		e := usage.Event(rng, i, "load-1")
		e.StreamID[0], e.Sequence = 1, int64(i+1)
		if err := e.Validate(); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		if seen[e.EventID] {
			t.Fatalf("event %d has the id of another", i)
		}
		seen[e.EventID] = true
	}
}

// TestFrontRefusesWithoutSendingOn guarantees that a refused document never
// reaches the store, and that the answer has one item for each document in its
// order: a front that mixed them up would make the verdict worthless.
func TestFrontRefusesWithoutSendingOn(t *testing.T) {
	reached := map[string]bool{}
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var items []string
		for line := range strings.Lines(string(body)) {
			var action struct {
				Create struct {
					ID string `json:"_id"`
				}
			}
			if err := json.Unmarshal([]byte(line), &action); err == nil && action.Create.ID != "" {
				reached[action.Create.ID] = true
				items = append(items, fmt.Sprintf(`{"create":{"_id":%q,"status":201}}`, action.Create.ID))
			}
		}
		_, _ = fmt.Fprintf(w, `{"errors":false,"items":[%s]}`, strings.Join(items, ","))
	}))
	defer store.Close()
	front, err := usage.Listen(t.Context(), store.URL, 0.3, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = front.Close() }()

	const documents = 1000
	var body strings.Builder
	for i := range documents {
		_, _ = fmt.Fprintf(&body, "{\"create\":{\"_id\":\"e%d\"}}\n{\"n\":%d}\n", i, i)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL+"/_bulk", strings.NewReader(body.String()))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var got struct {
		Errors bool
		Items  []struct {
			Create struct {
				ID     string `json:"_id"`
				Status int
			}
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if !got.Errors || len(got.Items) != documents {
		t.Fatalf("errors %v and %d items, want true and %d", got.Errors, len(got.Items), documents)
	}
	refused := 0
	for i, item := range got.Items {
		id := fmt.Sprintf("e%d", i)
		switch item.Create.Status {
		case http.StatusTooManyRequests:
			refused++
			if reached[id] {
				t.Errorf("%s was refused and reached the store", id)
			}
		case http.StatusCreated:
			if item.Create.ID != id || !reached[id] {
				t.Errorf("item %d is %q, want %q, which reached the store: %v", i, item.Create.ID, id, reached[id])
			}
		default:
			t.Errorf("item %d has status %d", i, item.Create.Status)
		}
	}
	if refused < documents/5 || refused > documents/2 {
		t.Errorf("%d of %d refused, want about a third", refused, documents)
	}
}
