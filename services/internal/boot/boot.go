// Package boot runs a service's process: signals, logging, the metrics
// registry, the spacing of garbage collections, the bound of memory, and the
// order in which parts start and stop.
package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Grace bounds the whole shutdown. It must stay below the orchestrator's kill
// delay, which deploy/ sets to 30 s.
const Grace = 20 * time.Second

// A Part is one thing a process runs. Run blocks until ctx ends or the part
// fails, and returns only when nothing it started is still running.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// A Process is what main hands to a service's run function: everything a
// service may otherwise be tempted to reach for globally.
type Process struct {
	Service  string // folder, binary, consumer group and log name, e.g. "gateway"
	Args     []string
	Getenv   func(string) string
	Log      *slog.Logger
	Metrics  *prometheus.Registry
	Stopping <-chan struct{} // closed by the signal, before any part stops; /ready answers 503 from then on
}

// Main runs a service until SIGINT or SIGTERM and exits: 0 after a clean end,
// 1 after a failure, 2 when the configuration is refused (ErrConfig). A second
// signal ends the process at once.
func Main(service string, run func(ctx context.Context, p Process) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() { // the next signal finds the default handler again
		<-ctx.Done()
		stop()
	}()
	os.Exit(Exec(ctx, service, os.Args[1:], os.Getenv, os.Stderr, run))
}

// ErrConfig marks an error as a refused configuration.
var ErrConfig = errors.New("configuration")

// runtimeMetrics are those of Go's runtime that tell how long requests waited for
// it: go_sched_latencies_seconds, go_sched_pauses_total_gc_seconds.
var runtimeMetrics = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/sched/(latencies|pauses/total/gc):seconds$`)}

// Exec is Main without the signals and the exit, for tests. It returns the
// exit code. Logs go to w as one JSON object a line.
func Exec(ctx context.Context, service string, args []string, getenv func(string) string, w io.Writer, run func(ctx context.Context, p Process) error) int {
	spaceCollections(getenv)
	log := slog.New(slog.NewJSONHandler(w, nil)).With("service", service)
	boundMemory(log, memlimit.FromCgroup)
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(runtimeMetrics)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	err := run(ctx, Process{
		Service: service, Args: args, Getenv: getenv,
		Log: log, Metrics: metrics, Stopping: ctx.Done(),
	})
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrConfig):
		_, _ = fmt.Fprintln(w, err)
		return 2
	default:
		log.Error("ended by a failure", "error", err.Error())
		return 1
	}
}

// Run starts every part and blocks until ctx ends or one of them returns. It
// then stops them last to first, waiting for each, and returns the failure that
// ended the process joined with any that happened on the way out. The end of
// ctx is not a failure.
func (p Process) Run(ctx context.Context, parts ...Part) error {
	type running struct {
		cancel context.CancelFunc
		done   chan error
	}
	ended := make(chan string, len(parts))
	live := make([]running, len(parts))
	for i, part := range parts {
		pctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan error, 1)
		live[i] = running{cancel, done}
		go func() {
			done <- part.Run(pctx)
			ended <- part.Name
		}()
	}
	p.Log.Info("started", "parts", len(parts))

	var errs []error
	select {
	case <-ctx.Done():
		p.Log.Info("stopping", "cause", context.Cause(ctx).Error())
	case name := <-ended:
		errs = append(errs, fmt.Errorf("part %s ended early", name))
	}

	grace := time.After(Grace)
	for i := len(parts) - 1; i >= 0; i-- {
		live[i].cancel()
		select {
		case err := <-live[i].done:
			if err != nil && !errors.Is(err, context.Canceled) {
				errs = append(errs, fmt.Errorf("part %s: %w", parts[i].Name, err))
			}
		case <-grace:
			return errors.Join(append(errs, fmt.Errorf("part %s did not stop within %v", parts[i].Name, Grace))...)
		}
	}
	return errors.Join(errs...)
}

// Close is a part that does nothing but close c when its turn comes, after the
// parts listed behind it have stopped.
func Close(name string, c io.Closer) Part {
	return Part{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		if err := c.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	}}
}
