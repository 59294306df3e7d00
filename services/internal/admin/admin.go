// Package admin serves the port that operators and orchestrators use, apart
// from traffic: /metrics, /live, /ready and /debug/pprof.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"penstock.dev/services/internal/boot"
)

// probeTimeout bounds one readiness check; orchestrators usually give a probe
// one second.
const probeTimeout = 800 * time.Millisecond

// Ready maps what a service depends on to a check. A check returns nil when
// the dependency serves, or an error that tells an operator what is missing.
// Checks run on every probe, concurrently with everything else.
type Ready map[string]func(ctx context.Context) error

// Part serves the admin port on listen, host:port.
func Part(listen string, p boot.Process, ready Ready) boot.Part {
	return boot.Part{Name: "admin", Run: func(ctx context.Context) error {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		srv := &http.Server{Handler: Handler(p, ready), ReadHeaderTimeout: 5 * time.Second}
		context.AfterFunc(ctx, func() { _ = srv.Close() })
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}}
}

// Handler is what Part serves.
func Handler(p boot.Process, ready Ready) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "live")
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		writeReady(w, check(r.Context(), p.Stopping, ready))
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// check returns what is not ready and why; empty means ready.
func check(ctx context.Context, stopping <-chan struct{}, ready Ready) map[string]string {
	missing := map[string]string{}
	select {
	case <-stopping:
		missing["process"] = "stopping"
		return missing
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for name, probe := range ready {
		if err := probe(ctx); err != nil {
			missing[name] = err.Error()
		}
	}
	return missing
}

func writeReady(w http.ResponseWriter, missing map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	if len(missing) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(struct {
		Ready   bool              `json:"ready"`
		Missing map[string]string `json:"missing,omitempty"`
	}{len(missing) == 0, missing})
}
