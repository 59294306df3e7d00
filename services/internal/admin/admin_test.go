package admin_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
)

// TestHandler guarantees what an orchestrator and a scraper see: liveness
// whatever is missing, readiness that names what is missing, says what is to be
// known of what is not, and turns false as soon as the process is told to stop.
func TestHandler(t *testing.T) {
	t.Parallel()
	stopping := make(chan struct{})
	var missing error
	h := admin.Handler(boot.Process{Metrics: prometheus.NewRegistry(), Stopping: stopping},
		admin.Ready{"rules": func(context.Context) error { return missing }})
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	want := func(path string, code int, body string) {
		t.Helper()
		if gotCode, got := get(path); gotCode != code || !strings.Contains(got, body) {
			t.Errorf("GET %s = %d %s, want %d with %q", path, gotCode, got, code, body)
		}
	}
	want("/ready", 200, `"ready":true`)
	missing = errors.New("12 records behind")
	want("/ready", 503, `"rules":"12 records behind"`)
	missing = admin.Remark("serving a snapshot")
	want("/ready", 200, `"remarks":{"rules":"serving a snapshot"}`)
	want("/live", 200, "live")
	want("/metrics", 200, "")
	want("/debug/pprof/", 200, "goroutine")
	missing = nil
	close(stopping)
	want("/ready", 503, `"process":"stopping"`)
}
