//go:build integration

package proof_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/proof"
)

// TestIntegrationEveryProofHolds guarantees that every proof holds on an estate of
// two gateways, whatever earlier ones have left there, and
// that none is left out but for want of what this estate has not.
func TestIntegrationEveryProofHolds(t *testing.T) {
	began := time.Now()
	e, err := estate.Up(t.Context(), estate.Options{Dir: t.TempDir(), Gateways: 2, Samples: true, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range e.Names() {
				t.Logf("the end of %s", e.Process(name).Tail())
			}
		}
		if err := e.Down(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	page := proof.Page{Began: began}
	err = proof.Run(t.Context(), e, began, proof.Guide{
		Begins: func(int, string) {},
		Ended: func(r proof.Result) {
			page.Results = append(page.Results, r)
			if !r.Held {
				t.Errorf("proof %d, %s: expected %s; measured %s", r.Number, r.Title, r.Expected, r.What())
			}
			if r.Done == "" || r.Expected == "" || len(r.Badges) == 0 {
				t.Errorf("proof %d, %s: it does not show all: %+v", r.Number, r.Title, r.Finding)
			}
		},
		Left: func(title, needs string) { page.Left = append(page.Left, [2]string{title, needs}) },
	})
	if err != nil {
		t.Fatal(err)
	}
	lacking := map[string]string{
		"a search store": "ELASTICSEARCH_URL", "threshold-watcher": "THRESHOLD_WATCHER_METRICS_URL", "billing": "BILLING_URL",
		"checkpointer": "CHECKPOINTER_METRICS_URL",
	}
	for _, left := range page.Left {
		if left[1] == "billing's POST /v1/portal-tokens" && !issuesTokens(t, e.Env["BILLING_URL"]) {
			continue
		}
		if name := lacking[left[1]]; name == "" || e.Env[name] != "" {
			t.Errorf("%s was not run for want of %s", left[0], left[1])
		}
	}
	if run := len(page.Results) + len(page.Left); run != len(proof.All()) {
		t.Errorf("%d of %d proofs were run or left out", run, len(proof.All()))
	}
	if _, err := page.Render(); err != nil {
		t.Error(err)
	}
}

// issuesTokens reports whether billing's document has tokens for the portal.
func issuesTokens(t *testing.T, billing string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, billing+"/openapi.json", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	document, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(document), `"/v1/portal-tokens": {`)
}
