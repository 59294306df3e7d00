//go:build integration

package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/pgtest"
	"penstock.dev/services/outbox-relay/outbox"
	"penstock.dev/services/outbox-relay/postgres"
)

const schema = `
	CREATE TABLE outbox (
		id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
		type varchar(255) NOT NULL, payload bytea, version bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
	CREATE TABLE other (line text);
	CREATE PUBLICATION penstock_outbox FOR TABLE outbox WITH (publish = 'insert');`

// A sink is a topic that a test controls.
type sink struct {
	mu     sync.Mutex
	events []outbox.Event
	hold   map[string]func(error) // by key: acknowledgements kept back
	held   map[string]bool        // keys whose acknowledgements are kept back
}

func newSink(held ...string) *sink {
	s := &sink{hold: map[string]func(error){}, held: map[string]bool{}}
	for _, key := range held {
		s.held[key] = true
	}
	return s
}

func (s *sink) publish(_ context.Context, e outbox.Event, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[e.Key] {
		s.hold[e.Key] = done
		return
	}
	s.events = append(s.events, e)
	done(nil)
}

// keys returns the keys stored so far, in order, repeats included.
func (s *sink) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, len(s.events))
	for i, e := range s.events {
		keys[i] = e.Key
	}
	return keys
}

func (s *sink) distinct() int {
	keys := s.keys()
	slices.Sort(keys)
	return len(slices.Compact(keys))
}

type fixture struct {
	*testing.T
	url string
	db  *pgxpool.Pool
}

func setup(t *testing.T) fixture {
	t.Helper()
	return fixtureOn(t, pgtest.Database(t))
}

func fixtureOn(t *testing.T, url string) fixture {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 2*pairsAtOnce + 4
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	f := fixture{t, url, db}
	f.exec(schema)
	return f
}

func (f fixture) exec(sql string, args ...any) {
	f.Helper()
	if _, err := f.db.Exec(f.Context(), sql, args...); err != nil {
		f.Fatal(err)
	}
}

// pairsAtOnce is how many pairs of FC-17 are open together; each holds two
// connections.
const pairsAtOnce = 24

const insert = `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, version) VALUES ($1, 'rules.v1', $2, 'rule.changed', $3, $4)`

func (f fixture) insert(key string, version int) {
	f.Helper()
	f.exec(insert, uuid.New(), key, []byte(key), version)
}

// relay starts a relay and returns what ends it and waits for its end.
func (f fixture) relay(s *sink) (stop func(), reg *prometheus.Registry) {
	f.Helper()
	reg = prometheus.NewRegistry()
	src := postgres.New(postgres.Config{
		URL: f.url, Slot: f.slot(), Publication: "penstock_outbox", MaxInFlight: 1000,
	}, s.publish, slog.New(slog.NewTextHandler(f.Output(), nil)), reg)
	ctx, cancel := context.WithCancel(f.Context())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{src.Run, src.Watch} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				f.Errorf("relay: %v", err)
			}
		})
	}
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); wg.Wait() }) }
	f.Cleanup(stop)
	return stop, reg
}

// slot is unique to the test: slots belong to the whole server.
func (f fixture) slot() string {
	var name string
	if err := f.db.QueryRow(f.Context(), "SELECT 'relay_' || oid FROM pg_database WHERE datname = current_database()").Scan(&name); err != nil {
		f.Fatal(err)
	}
	return name
}

func (f fixture) eventually(within time.Duration, what string, ok func() bool) {
	f.Helper()
	deadline := time.After(within)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-deadline:
			f.Fatalf("not within %v: %s", within, what)
		case <-poll.C:
		}
	}
}

func (f fixture) hasSlot() (ok bool) {
	f.Helper()
	if err := f.db.QueryRow(f.Context(), "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", f.slot()).Scan(&ok); err != nil {
		f.Fatal(err)
	}
	return ok
}

// behind returns how far the confirmed position is past the given one, in bytes.
func (f fixture) behind(position string) (n int64) {
	f.Helper()
	if err := f.db.QueryRow(f.Context(), "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, $2)::bigint FROM pg_replication_slots WHERE slot_name = $1", f.slot(), position).Scan(&n); err != nil {
		f.Fatal(err)
	}
	return n
}

// TestIntegrationFC17LateCommitIsNotSkipped guarantees case FC-17: a row that
// was inserted first and committed last arrives, rows that were rolled back
// never do, and neither holds the relay up.
func TestIntegrationFC17LateCommitIsNotSkipped(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s := newSink()
	f.relay(s)
	f.insert("rule/0", 100) // making a slot waits for open transactions, reading one does not
	f.eventually(8*time.Second, "the relay to read", func() bool { return s.distinct() == 1 })

	a, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := a.Exec(t.Context(), insert, uuid.New(), "rule/a", []byte("a"), 101); err != nil {
		t.Fatal(err)
	}
	f.insert("rule/b", 102)
	f.eventually(8*time.Second, "b while a is open", func() bool { return slices.Equal(s.keys(), []string{"rule/0", "rule/b"}) })
	if err := a.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.eventually(8*time.Second, "a after its commit", func() bool { return slices.Equal(s.keys(), []string{"rule/0", "rule/b", "rule/a"}) })

	pairs := func(n int, prefix string, end func(pgx.Tx) error) {
		var wg sync.WaitGroup
		slots := make(chan struct{}, pairsAtOnce)
		for i := range n {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				ctx := t.Context()
				tx, err := f.db.Begin(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := tx.Exec(ctx, insert, uuid.New(), fmt.Sprintf("rule/%s-a%d", prefix, i), []byte("a"), 2*i); err != nil {
					t.Error(err)
				}
				if _, err := f.db.Exec(ctx, insert, uuid.New(), fmt.Sprintf("rule/%s-b%d", prefix, i), []byte("b"), 2*i+1); err != nil {
					t.Error(err)
				}
				<-time.After(time.Duration(rand.IntN(500)) * time.Millisecond)
				if err := end(tx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	pairs(1000, "pair", func(tx pgx.Tx) error { return tx.Commit(t.Context()) })
	f.eventually(8*time.Second, "2,000 events of 1,000 pairs", func() bool { return s.distinct() == 3+2000 })
	pairs(50, "rolled", func(tx pgx.Tx) error { return tx.Rollback(t.Context()) })
	f.insert("rule/last", 9999)
	f.eventually(8*time.Second, "50 events of 50 pairs that roll back", func() bool { return slices.Contains(s.keys(), "rule/last") })
	if got, want := s.distinct(), 3+2000+50+1; got != want || len(s.keys()) != want {
		t.Errorf("%d events, %d distinct, want %d and no repeat", len(s.keys()), got, want)
	}
}

// TestIntegrationFC18PositionWaitsForTheSlowEvent guarantees case FC-18 at the
// level of the slot: while the first event is not acknowledged, acknowledging
// later ones does not move the confirmed position, and a relay that dies then
// publishes all of them again.
func TestIntegrationFC18PositionWaitsForTheSlowEvent(t *testing.T) {
	t.Parallel()
	f := setup(t)
	slow := newSink("rule/e1")
	stop, _ := f.relay(slow)
	f.insert("rule/e0", 1)
	f.eventually(30*time.Second, "e0", func() bool { return slices.Equal(slow.keys(), []string{"rule/e0"}) })

	var before string
	if err := f.db.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()::text").Scan(&before); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 3; i++ {
		f.insert("rule/e"+strconv.Itoa(i), i+1)
	}
	f.eventually(30*time.Second, "e2 and e3", func() bool { return slow.distinct() == 3 })
	reports := time.After(2500 * time.Millisecond) // more than two reports of the position
	for waiting := true; waiting; {
		select {
		case <-reports:
			waiting = false
		default:
			if n := f.behind(before); n > 0 {
				t.Fatalf("the slot confirmed %d bytes past an event that is not stored", n)
			}
		}
	}
	stop() // as if killed: the drain cannot settle e1

	again := newSink()
	f.relay(again)
	f.eventually(30*time.Second, "e1, e2 and e3 again", func() bool {
		return slices.Equal(again.keys(), []string{"rule/e1", "rule/e2", "rule/e3"})
	})
	f.eventually(30*time.Second, "the position to follow", func() bool { return f.behind(before) > 0 })
}

// TestIntegrationStandbyTakesOver guarantees that of two relays one reads, and
// that the other goes on without a hole or a repeat when the first one stops.
func TestIntegrationStandbyTakesOver(t *testing.T) {
	t.Parallel()
	f := setup(t)
	first, second := newSink(), newSink()
	stop, _ := f.relay(first)
	f.insert("rule/1", 1)
	f.eventually(30*time.Second, "the first relay", func() bool { return first.distinct() == 1 && f.hasSlot() })
	f.relay(second)
	f.insert("rule/2", 2)
	f.eventually(30*time.Second, "the first relay", func() bool { return first.distinct() == 2 })
	stop()
	f.insert("rule/3", 3)
	f.eventually(30*time.Second, "the second relay", func() bool { return slices.Equal(second.keys(), []string{"rule/3"}) })
	if got := first.keys(); !slices.Equal(got, []string{"rule/1", "rule/2"}) {
		t.Errorf("the first relay published %v", got)
	}
}

// TestIntegrationLostSlotLeavesNoHole guarantees that what was committed while
// there was no slot arrives: the kept rows are published in the order of their
// versions, then the log goes on.
func TestIntegrationLostSlotLeavesNoHole(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.insert("rule/kept-2", 2) // before any slot exists
	f.insert("rule/kept-1", 1)
	f.exec(insert, uuid.New(), "rule/deleted", nil, 3)
	first := newSink()
	stop, _ := f.relay(first)
	f.insert("rule/4", 4)
	f.eventually(30*time.Second, "rows of before the slot, then the log", func() bool {
		return slices.Equal(first.keys(), []string{"rule/kept-1", "rule/kept-2", "rule/deleted", "rule/4"})
	})
	f.eventually(30*time.Second, "the slot", f.hasSlot)
	if e := first.events[2]; e.Payload != nil {
		t.Errorf("a NULL payload became %q, want a tombstone", e.Payload)
	}
	stop()
	f.eventually(30*time.Second, "the slot to be let go of", func() bool {
		_, err := f.db.Exec(t.Context(), "SELECT pg_drop_replication_slot($1)", f.slot())
		return err == nil
	})
	f.insert("rule/5", 5)
	second := newSink()
	f.relay(second)
	f.eventually(30*time.Second, "all rows again", func() bool { return second.distinct() == 5 })
	f.insert("rule/6", 6)
	f.eventually(30*time.Second, "the log", func() bool { return second.distinct() == 6 })
}

// TestIntegrationRemovedLogIsRebuilt guarantees the same when PostgreSQL
// removes the log under the slot, as it does past max_slot_wal_keep_size.
func TestIntegrationRemovedLogIsRebuilt(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t)
	f := fixtureOn(t, srv.Database())
	f.exec("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'")
	f.exec("ALTER SYSTEM SET max_wal_size = '32MB'")
	f.exec("SELECT pg_reload_conf()")
	first := newSink()
	stop, _ := f.relay(first)
	f.insert("rule/1", 1)
	f.eventually(30*time.Second, "the first relay", func() bool { return first.distinct() == 1 && f.hasSlot() })
	stop()
	f.insert("rule/2", 2)
	status := func() (s string) {
		if err := f.db.QueryRow(t.Context(), "SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", f.slot()).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	f.eventually(60*time.Second, "the slot to be lost", func() bool {
		f.exec("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
		f.exec("SELECT pg_switch_wal()")
		f.exec("CHECKPOINT")
		return status() == "lost"
	})
	second := newSink()
	f.relay(second)
	f.eventually(15*time.Second, "all rows again", func() bool { return second.distinct() == 2 })
	f.insert("rule/3", 3)
	f.eventually(30*time.Second, "the log", func() bool { return second.distinct() == 3 })
}

// TestIntegrationFC19QuietOutboxKeepsNoLog guarantees case FC-19: what other
// tables write is not retained for a quiet outbox, nothing is published for it,
// and the metric says what the database says.
func TestIntegrationFC19QuietOutboxKeepsNoLog(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t)
	f := fixtureOn(t, srv.Database())
	s := newSink()
	_, reg := f.relay(s)
	f.insert("rule/1", 1)
	f.eventually(30*time.Second, "the first row", func() bool { return s.distinct() == 1 })
	retained := func() (n int64) {
		if err := f.db.QueryRow(t.Context(), "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1", f.slot()).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 20 { // 200 MiB of log
		f.exec("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
	}
	f.eventually(30*time.Second, "at most 32 MiB retained", func() bool { return retained() <= 32<<20 })
	f.eventually(3*time.Second, "the metric to read the same", func() bool {
		return gauge(t, reg, "penstock_outbox_relay_slot_retained_bytes") == float64(retained())
	})
	if got := s.keys(); len(got) != 1 {
		t.Errorf("published %v, want the one row only", got)
	}
}

func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, fam := range families {
		if fam.GetName() == name {
			return fam.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestIntegrationDatabaseRestartLosesNothing guarantees that a database killed
// in the middle of a load costs no committed row.
func TestIntegrationDatabaseRestartLosesNothing(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t)
	f := fixtureOn(t, srv.Database())
	s := newSink()
	f.relay(s)
	committed := 0
	for i := range 600 {
		if i == 200 || i == 400 {
			srv.Kill()
			srv.Restart()
			f.eventually(20*time.Second, "the database", func() bool { return f.db.Ping(t.Context()) == nil })
		}
		f.insert("rule/"+strconv.Itoa(i), i)
		committed++
	}
	f.eventually(20*time.Second, "every committed row", func() bool { return s.distinct() == committed })
}
