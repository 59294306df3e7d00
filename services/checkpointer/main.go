// Checkpointer keeps what quotas and wallets have come to, and brings it back where
// the counter store lost it.
//
// It reads usage.v1 and the counter store, keeps checkpoints in PostgreSQL, and
// vouches for what the store holds. Its promises and knobs are in README.md.
// "checkpointer reconcile" holds the store, the checkpoints and the events against
// each other.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/checkpointer/observe"
	"penstock.dev/services/checkpointer/postgres"
	"penstock.dev/services/checkpointer/topics"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
)

func main() { boot.Main("checkpointer", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first: the
// reader gives its partitions back, then the last checkpoint is made.
func run(ctx context.Context, p boot.Process) error {
	if len(p.Args) > 0 && p.Args[0] == "reconcile" {
		return reconcile(ctx, p, p.Args[1:], os.Stdout)
	}
	cfg, err := parseConfig(p.Args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	w, err := assemble(ctx, &cfg, p)
	if err != nil {
		return err
	}
	keeper, reader := w.keeper, w.reader
	prepared := make(chan struct{})
	return p.Run(ctx,
		admin.Part(cfg.adminListen, p, admin.Ready{
			"kafka": w.broker.Ping, "postgres": w.books.Ready, "counters": w.kept,
		}),
		boot.Close("postgres", w.books),
		boot.Close("redis", w.counters),
		boot.Close("kafka", w.broker),
		boot.Part{Name: "tables", Run: func(ctx context.Context) error {
			if err := w.books.Prepare(ctx); err != nil {
				return err
			}
			close(prepared)
			<-ctx.Done()
			return ctx.Err()
		}},
		after(prepared, boot.Part{Name: "safety", Run: func(ctx context.Context) error {
			return w.counters.Watch(ctx, func() error { return w.safe(ctx) })
		}}),
		after(prepared, boot.Part{Name: "guard", Run: keeper.Guard}),
		after(prepared, boot.Part{Name: "sweep", Run: keeper.Sweep}),
		after(prepared, boot.Part{Name: "checkpoints", Run: func(ctx context.Context) error {
			return reader.Save(ctx, cfg.keeping.Every, keeper.SaveParts)
		}}),
		after(prepared, boot.Part{Name: "usage.v1", Run: reader.Run}),
	)
}

// after is a part that begins once ready is closed.
func after(ready <-chan struct{}, part boot.Part) boot.Part {
	return boot.Part{Name: part.Name, Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ready:
			return part.Run(ctx)
		}
	}}
}

// A wiring is the service's parts.
type wiring struct {
	broker   *kafka.Client
	counters *counters.Store
	books    *postgres.Books
	reader   *topics.Reader
	keeper   *checkpoint.Keeper
	metrics  *observe.Metrics
	refuse   bool
	log      *slog.Logger
}

func assemble(ctx context.Context, cfg *config, p boot.Process) (*wiring, error) {
	w := &wiring{refuse: cfg.unsafe == refuseUnsafe, log: p.Log}
	var err error
	if w.broker, err = kafka.New(cfg.kafka.Config(p.Service), p.Log, p.Metrics); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	if w.counters, err = counters.Open(cfg.counters(), p.Log, p.Metrics); err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	if w.books, err = postgres.Open(ctx, cfg.databaseURL.Reveal(), p.Log); err != nil {
		return nil, fmt.Errorf("%w: %w", boot.ErrConfig, err)
	}
	if w.reader, err = topics.New(w.broker, w.broker.Registry(), w.books.Parts, p.Log, p.Metrics); err != nil {
		return nil, fmt.Errorf("reader: %w", err)
	}
	if w.metrics, err = observe.New(p.Metrics, p.Log, func() bool { return len(w.unsafe()) > 0 }); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	w.keeper = checkpoint.New(cfg.keeping, w.books, custody{w.counters.Custody()}, w.reader, w.metrics, time.Now)
	return w, nil
}

// unsafe returns why the store may lose what it counts.
func (w *wiring) unsafe() []string { return w.counters.Unsafe(w.metrics.Wallets()) }

var errUnsafe = errors.New("the counter store is unsafe, and -unsafe-store=refuse")

// safe refuses a store that is unsafe at the start, where that is asked for.
func (w *wiring) safe(ctx context.Context) error {
	if err := w.keeper.Tidy(ctx); err != nil { // it says whether there are wallets
		w.metrics.Missed(ctx, "count what is kept", err)
	}
	why := w.unsafe()
	if len(why) == 0 {
		return nil
	}
	w.log.ErrorContext(ctx, "the counter store may lose what it counts", "why", strings.Join(why, "; "))
	if w.refuse {
		return fmt.Errorf("%w: %s", errUnsafe, strings.Join(why, "; "))
	}
	return nil
}

// kept is the readiness of the counter store.
func (w *wiring) kept(context.Context) error {
	if err := w.keeper.Ready(); err != nil {
		return err
	}
	if why := w.unsafe(); len(why) > 0 {
		return admin.Remark("unsafe: " + strings.Join(why, "; "))
	}
	return nil
}
