//go:build integration

package main_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/pgtest"
)

// A catalogue is a database with the tables of rule-admin.
type catalogue struct {
	*testing.T
	url string
	db  *pgxpool.Pool
}

// newCatalogue is a database of a server that the tests share. catalogueIn makes
// the tables by rule-admin's own migrations, read from where
// rule-admin keeps them: what the relay is tested on is what it meets.
func newCatalogue(t *testing.T) catalogue {
	t.Helper()
	return catalogueIn(t, pgtest.Database(t))
}

func catalogueIn(t *testing.T, url string) catalogue {
	t.Helper()
	c := catalogue{T: t, url: url}
	var err error
	if c.db, err = pgxpool.New(t.Context(), c.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.db.Close)
	files, err := filepath.Glob("../rule-admin/postgres/migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("rule-admin's migrations: %v, %v", files, err)
	}
	slices.Sort(files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		if _, err := c.db.Exec(t.Context(), up); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return c
}

// A row is a row of the outbox.
type row struct {
	topic, key, kind string
	payload          []byte // nil is NULL
	version          int64
}

// commit inserts rows in one transaction.
func (c catalogue) commit(rows ...row) {
	c.Helper()
	tx := c.begin(rows...)
	if err := tx.Commit(c.Context()); err != nil {
		c.Fatal(err)
	}
}

// begin inserts rows in a transaction that the caller ends.
func (c catalogue) begin(rows ...row) pgx.Tx {
	c.Helper()
	tx, err := c.db.Begin(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	for _, r := range rows {
		_, err := tx.Exec(c.Context(), `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, version, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp())`, uuid.Must(uuid.NewV7()), r.topic, r.key, r.kind, r.payload, r.version)
		if err != nil {
			c.Fatal(err)
		}
	}
	return tx
}

// makeSlot makes a slot as deploy/debezium/README.md does.
func (c catalogue) makeSlot(name string) {
	c.Helper()
	if _, err := c.db.Exec(c.Context(), `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, name); err != nil {
		c.Fatal(err)
	}
}

// hasSlot reports whether there is a slot of that name.
func (c catalogue) hasSlot(name string) bool {
	c.Helper()
	var n int
	if err := c.db.QueryRow(c.Context(), `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, name).Scan(&n); err != nil {
		c.Fatal(err)
	}
	return n == 1
}

// slotName returns a name that no other database of the server uses: slots
// belong to the whole server.
func (c catalogue) slotName(suffix string) string {
	c.Helper()
	var oid uint32
	if err := c.db.QueryRow(c.Context(), `SELECT oid FROM pg_database WHERE datname = current_database()`).Scan(&oid); err != nil {
		c.Fatal(err)
	}
	return fmt.Sprintf("s%d_%s", oid, suffix)
}

// A topicLog is everything one topic has held so far, in order.
type topicLog struct {
	*testing.T
	name string

	mu      sync.Mutex
	records []kafka.Record
	more    chan struct{}
}

// follow reads a topic from its start until the test ends.
func follow(t *testing.T, brokers []string, topic string) *topicLog {
	t.Helper()
	client := newClient(t, brokers)
	l := &topicLog{T: t, name: topic, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = client.ReadLog(ctx, topic, kafka.LogHandler{Records: func(batch []kafka.Record) error {
			l.mu.Lock()
			l.records = append(l.records, batch...)
			l.mu.Unlock()
			select {
			case l.more <- struct{}{}:
			default:
			}
			return nil
		}})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return l
}

func newClient(t *testing.T, brokers []string) *kafka.Client {
	t.Helper()
	client, err := kafka.New(kafka.Config{Brokers: brokers}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// all returns a copy of what was read.
func (l *topicLog) all() []kafka.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.records)
}

// until waits until enough says that the topic holds what it should, and
// returns what it holds.
func (l *topicLog) until(within time.Duration, want string, enough func([]kafka.Record) bool) []kafka.Record {
	l.Helper()
	deadline := time.After(within)
	for {
		if have := l.all(); enough(have) {
			return have
		}
		select {
		case <-l.more:
		case <-deadline:
			l.Fatalf("%s, not within %v: it holds %d records", want, within, len(l.all()))
		}
	}
}

// distinct is how many different outbox rows are among records.
func distinct(records []kafka.Record) int {
	ids := map[string]bool{}
	for _, r := range records {
		ids[header(r, "id")] = true
	}
	return len(ids)
}

func header(r kafka.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
