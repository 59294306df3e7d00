// Package usage measures whether events of usage.v1 reach the search store: all
// of them, each once, while the indexer is killed, the store refuses, answers
// are lost, and the broker restarts.
package usage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
	"penstock.dev/loadtest/system"
)

// Options say how much, and what goes wrong meanwhile.
type Options struct {
	Events  int
	Tenants int
	Streams int     // runs of gateways that the events are numbered by, each in every partition
	Refuse  float64 // share of documents that the front refuses with 429
	Lose    float64 // share of bulk answers that are lost after the store has acted on them
	Kill    time.Duration
	Restart bool // the broker, once
	Seed    uint64

	Front *Front // between the indexer and the store; it refuses and loses
	Store *server.Process
	Say   func(format string, args ...any)
}

// A Result is what came of it.
type Result struct {
	Events     int     `json:"events"`
	Produced   float64 `json:"produced_seconds"`
	Indexed    float64 `json:"indexed_seconds"` // from the first event to the last document
	PerSecond  float64 `json:"documents_per_second"`
	Documents  int     `json:"documents"`
	Units      int64   `json:"units"`       // of all events, by the generator
	UnitsFound int64   `json:"units_found"` // of all documents, by the store
	Streams    int     `json:"streams"`
	Broken     int     `json:"broken_streams"` // whose sequence has a gap or a repeat in the store
	SetAside   int64   `json:"set_aside"`      // events on the indexer's own topic of poison
	Kills      int     `json:"kills"`
	Restarts   int     `json:"broker_restarts"`
	Requests   int64   `json:"bulk_requests"`
	Refused    int64   `json:"documents_refused"`
	Lost       int64   `json:"answers_lost"`
	IndexerCPU float64 `json:"indexer_cpu_seconds"`
	StoreCPU   float64 `json:"store_cpu_seconds"`
	BrokerCPU  float64 `json:"broker_cpu_seconds"`
}

// Prefix begins the name of every index.
const Prefix = "ratelimit-usage-"

// setAside is where the indexer puts what it cannot index.
const setAside = "usage.v1.dlq." + estate.UsageIndexer

// patience is how long the number of documents may stand still before a run is
// given up.
const patience = 2 * time.Minute

// Run produces events and waits until the store has them, killing and
// restarting meanwhile.
func Run(ctx context.Context, s *system.System, o Options) (r Result, err error) {
	store := &store{url: o.Store.URL, http: &http.Client{Timeout: time.Minute}}
	before, err := store.settled(ctx)
	if err != nil {
		return r, err
	}
	if before != 0 {
		return r, fmt.Errorf("the store has %d documents already: this needs an empty one", before)
	}
	producer, err := newProducer(ctx, s, o)
	if err != nil {
		return r, err
	}
	defer producer.close()
	cpu := meter(ctx, map[string]func() int{
		estate.UsageIndexer: s.Process(estate.UsageIndexer).PID, estate.Kafka: s.Process(estate.Kafka).PID, storeName: o.Store.PID,
	})
	defer cpu.stop()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	harm := &harm{s: s, o: o}
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- harm.run(ctx) }()

	o.Say("producing %d events of %d tenants in %d streams", o.Events, o.Tenants, o.Streams*int(producer.partitions))
	if err := producer.run(ctx); err != nil {
		return r, fmt.Errorf("produce: %w", err)
	}
	r.Events, r.Produced, r.Units = o.Events, time.Since(began).Seconds(), producer.units
	o.Say("all on usage.v1 after %.1f s", r.Produced)
	if err := store.await(ctx, o); err != nil {
		o.Say("%v", err) // and what is missing counts
	}
	r.Indexed = time.Since(began).Seconds()
	cancel()
	if err := <-ended; err != nil {
		return r, err
	}
	r.Kills, r.Restarts = harm.kills, harm.restarts
	r.Requests, r.Refused, r.Lost = o.Front.requests.Load(), o.Front.refused.Load(), o.Front.lost.Load()
	r.IndexerCPU, r.StoreCPU, r.BrokerCPU = cpu.of(estate.UsageIndexer), cpu.of(storeName), cpu.of(estate.Kafka)
	ctx = context.WithoutCancel(ctx)
	if r.SetAside, err = producer.stored(ctx, setAside); err != nil {
		return r, err
	}
	return r, store.examine(ctx, &r)
}

// harm kills the indexer again and again and restarts the broker once.
type harm struct {
	s               *system.System
	o               Options
	kills, restarts int
}

func (h *harm) run(ctx context.Context) error {
	if h.o.Kill == 0 {
		return nil
	}
	tick := time.NewTicker(h.o.Kill)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		name, count := estate.UsageIndexer, &h.kills
		if h.o.Restart && h.restarts == 0 && h.kills >= 1 {
			name, count = estate.Kafka, &h.restarts
		}
		if err := h.restart(context.WithoutCancel(ctx), name); err != nil {
			return err
		}
		*count++
		h.o.Say("%s killed and back", name)
	}
}

// restart ends a process as a crash would, and brings it back.
func (h *harm) restart(ctx context.Context, name string) error {
	p := h.s.Process(name)
	if p == nil {
		return fmt.Errorf("%s is not a process of this system; it runs: %s", name, strings.Join(h.s.Names(), ", "))
	}
	return errors.Join(p.Kill(), p.Restart(ctx))
}
