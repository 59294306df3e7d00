// Billing makes invoices of what was sold, and shows customers their account.
//
// It reads usage.v1 and rules.v1, and keeps in its PostgreSQL what was counted, the
// wallets' ledger, and the invoices. Its promises and knobs are in README.md.
// "billing reconcile" proves the books against the topic.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/httpapi"
	"penstock.dev/services/billing/observe"
	"penstock.dev/services/billing/portal"
	"penstock.dev/services/billing/postgres"
	"penstock.dev/services/billing/topics"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
)

func main() { boot.Main("billing", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first: callers
// leave before the books close.
func run(ctx context.Context, p boot.Process) error {
	if len(p.Args) > 0 && p.Args[0] == "reconcile" {
		return proveBooks(ctx, p, p.Args[1:], os.Stdout)
	}
	cfg, err := parseConfig(p.Args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	broker, err := kafka.New(cfg.kafka.Config(p.Service), p.Log, p.Metrics)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	store, err := postgres.Open(ctx, cfg.books(), p.Log)
	if err != nil {
		return fmt.Errorf("%w: %w", boot.ErrConfig, err)
	}
	counter, err := topics.New(cfg.counting(), broker, broker.Registry(), store, p.Log, p.Metrics, time.Now)
	if err != nil {
		return fmt.Errorf("counter: %w", err)
	}
	metrics := observe.New(p.Metrics, operations())
	handler, err := face(cfg, p, store, metrics)
	if err != nil {
		return err
	}
	prepared := make(chan struct{})
	return p.Run(ctx,
		admin.Part(cfg.adminListen, p, admin.Ready{"kafka": broker.Ping, "postgres": store.Ready, "usage.v1": counter.Ready}),
		boot.Close("postgres", store),
		boot.Close("kafka", broker),
		boot.Part{Name: "books", Run: func(ctx context.Context) error {
			if err := store.Prepare(ctx); err != nil {
				return err
			}
			close(prepared)
			return store.Tend(ctx, cfg.every, time.Now, counter.Through, func(made int, s postgres.State, err error) {
				metrics.Tended(made, observe.Survey(s), err)
			})
		}},
		boot.Part{Name: "usage.v1", Run: func(ctx context.Context) error {
			select {
			case <-prepared:
				return counter.Run(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
		}},
		boot.Part{Name: "http", Run: httpapi.Serve(cfg.listen, handler)},
	)
}

// face is the API for programs, the portal for people, and the tokens that open both.
func face(cfg config, p boot.Process, store *postgres.Store, metrics *observe.Metrics) (http.Handler, error) {
	gate, err := access.New(cfg.signing, store)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", boot.ErrConfig, err)
	}
	pages, err := portal.Handler(portal.Config{Gate: gate, Reader: store, Audit: store, Secure: cfg.secure, Now: time.Now, Timeout: cfg.timeout, Log: p.Log})
	if err != nil {
		return nil, fmt.Errorf("portal: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/portal/", pages)
	mux.Handle("/portal", pages)
	mux.Handle("/", httpapi.Handler(httpapi.Config{
		Reader: store, Gate: gate, Audit: store, Issuer: gate, Operators: cfg.operators, PortalURL: cfg.portalURL,
		Now: time.Now, Timeout: cfg.timeout, Log: p.Log,
		Observe: func(c httpapi.Call) { metrics.Request(string(c.Operation), c.Status, c.Took) },
	}))
	return mux, nil
}

func operations() (names []string) {
	for _, o := range httpapi.Operations {
		names = append(names, string(o))
	}
	return names
}
