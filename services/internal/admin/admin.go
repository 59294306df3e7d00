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
// the dependency serves, a Remark when it serves and an operator should know
// how, or an error that tells what is missing. Checks run on every probe,
// concurrently with everything else.
type Ready map[string]func(ctx context.Context) error

// A Remark is said by a check that finds its dependency ready, e.g. "serving
// the snapshot of 12:00". It is an error only so that a check can return it.
type Remark string

// Error is the remark itself.
func (r Remark) Error() string { return string(r) }

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
		missing, remarks := check(r.Context(), p.Stopping, ready)
		writeReady(w, missing, remarks)
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// check returns what is not ready and why, empty when everything is, and what
// there is to say about the rest.
func check(ctx context.Context, stopping <-chan struct{}, ready Ready) (missing, remarks map[string]string) {
	missing, remarks = map[string]string{}, map[string]string{}
	select {
	case <-stopping:
		missing["process"] = "stopping"
		return missing, remarks
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for name, probe := range ready {
		err := probe(ctx)
		var remark Remark
		switch {
		case err == nil:
		case errors.As(err, &remark):
			remarks[name] = remark.Error()
		default:
			missing[name] = err.Error()
		}
	}
	return missing, remarks
}

func writeReady(w http.ResponseWriter, missing, remarks map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	if len(missing) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(struct {
		Ready   bool              `json:"ready"`
		Missing map[string]string `json:"missing,omitempty"`
		Remarks map[string]string `json:"remarks,omitempty"`
	}{len(missing) == 0, missing, remarks})
}
