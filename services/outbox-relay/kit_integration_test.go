//go:build integration

package main_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
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

	"penstock.dev/deploy/local/server"
	"penstock.dev/schemas/rulesv1"

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

// confirmedPast reports whether the slot has confirmed more than the given
// position of the log.
func (c catalogue) confirmedPast(slot, position string) bool {
	c.Helper()
	var past bool
	err := c.db.QueryRow(c.Context(), `SELECT confirmed_flush_lsn > $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, slot, position).Scan(&past)
	if err != nil {
		c.Fatal(err)
	}
	return past
}

// position is where the log ends now.
func (c catalogue) position() (lsn string) {
	c.Helper()
	if err := c.db.QueryRow(c.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&lsn); err != nil {
		c.Fatal(err)
	}
	return lsn
}

// change commits a change of each key in one transaction, with versions that
// rise in the order of the commits, as rule-admin does. It returns the newest.
func (c catalogue) change(ctx context.Context, keys ...string) (version int64, err error) {
	return version, pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `UPDATE revision SET value = value + $1 RETURNING value`, len(keys)).Scan(&version)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, version, created_at)
			SELECT gen_random_uuid(), 'rules.v1', key, 'rule.changed', convert_to(v::text, 'UTF8'), v, clock_timestamp()
			FROM (SELECT key, $2::bigint - cardinality($1) + n AS v FROM unnest($1::text[]) WITH ORDINALITY AS k (key, n) ORDER BY n) rows`,
			keys, version)
		return err
	})
}

// mustChange is change for tests that expect no failure.
func (c catalogue) mustChange(keys ...string) int64 {
	c.Helper()
	version, err := c.change(c.Context(), keys...)
	if err != nil {
		c.Fatal(err)
	}
	return version
}

// A relay is the built binary, running.
type relay struct {
	*server.Process
	t     *testing.T
	admin string // URL of its admin port
}

var buildRelay = sync.OnceValues(func() (string, error) {
	root, err := server.Root()
	if err != nil {
		return "", err
	}
	return server.Build(context.Background(), root, "services/outbox-relay", ".", server.Run{})
})

// run starts the binary on the catalogue and returns when it is live.
func run(c catalogue, brokers []string, slot string) relay {
	c.Helper()
	binary, err := buildRelay()
	if err != nil {
		c.Fatal(err)
	}
	port, err := server.FreePort(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	admin := fmt.Sprintf("127.0.0.1:%d", port)
	p, err := server.Start(c.Context(), server.Spec{
		Name: "outbox-relay", Path: binary, Dir: c.TempDir(), Ready: server.Answers200("http://" + admin + "/live"),
		Env: []string{
			"PENSTOCK_ADMIN_LISTEN=" + admin, "PENSTOCK_DATABASE_URL=" + c.url, "PENSTOCK_SLOT=" + slot,
			"PENSTOCK_KAFKA_BROKERS=" + strings.Join(brokers, ","),
		},
		StopWithin: 25 * time.Second,
	})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if c.Failed() {
			if lines, err := server.Tail(p.LogPath, 5); err == nil {
				c.Log(strings.Join(lines, "\n"))
			}
		}
		if err := p.Kill(); err != nil {
			c.Error(err)
		}
	})
	return relay{p, c.T, "http://" + admin}
}

func (r relay) kill() {
	r.t.Helper()
	if err := r.Kill(); err != nil {
		r.t.Fatal(err)
	}
}

func (r relay) restart() {
	r.t.Helper()
	if err := r.Restart(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// ready reports whether /ready answers 200.
func (r relay) ready() bool {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	return server.Answers200(r.admin+"/ready")(ctx) == nil
}

// active reports whether this relay is the one that reads, by its own metric.
func (r relay) active() bool {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.admin+"/metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return err == nil && strings.Contains(string(text), "\npenstock_outbox_relay_active 1\n")
}

// said reports whether the relay has logged text.
func (r relay) said(text string) bool {
	r.t.Helper()
	log, err := os.ReadFile(r.LogPath)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Contains(string(log), text)
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

// version is a record's version.
func version(t *testing.T, r kafka.Record) int64 {
	t.Helper()
	v, err := rulesv1.ParseVersion([]byte(header(r, rulesv1.HeaderVersion)))
	if err != nil {
		t.Fatalf("record %s-%d@%d: %v", r.Topic, r.Partition, r.Offset, err)
	}
	return v
}

// versions are those of one partition, in the order of the topic.
func versions(t *testing.T, records []kafka.Record, partition int32) []int64 {
	t.Helper()
	var out []int64
	for _, r := range records {
		if r.Partition == partition {
			out = append(out, version(t, r))
		}
	}
	return out
}

// runs cuts a partition's versions where they do not rise: each piece is what
// one life of a relay wrote.
func runs(versions []int64) int {
	n := 0
	for i, v := range versions {
		if i == 0 || v <= versions[i-1] {
			n++
		}
	}
	return n
}

// checkEnd wants every version from 1 to last to be in the topic, and the last
// record of every key to be its newest: what compaction leaves is then the
// newest too.
func checkEnd(t *testing.T, records []kafka.Record, last int64) {
	t.Helper()
	seen := map[int64]bool{}
	newest, ends := map[string]int64{}, map[string]int64{}
	for _, r := range records {
		v := version(t, r)
		seen[v] = true
		newest[string(r.Key)] = max(newest[string(r.Key)], v)
		ends[string(r.Key)] = v
	}
	missing := 0
	for v := int64(1); v <= last; v++ {
		if !seen[v] {
			missing++
		}
	}
	if missing > 0 || len(seen) != int(last) {
		t.Errorf("%d of %d versions are missing, %d are there", missing, last, len(seen))
	}
	for key, v := range newest {
		if ends[key] != v {
			t.Errorf("the topic ends with version %d of %s, whose newest is %d", ends[key], key, v)
		}
	}
}

// holds reports whether the topic holds at least n records.
func (l *topicLog) holds(n int) bool { return len(l.all()) >= n }

// A cable is what a relay's connections to the database run through.
type cable struct {
	addr  string
	gate  sync.RWMutex // held for writing while it is cut
	isCut bool
}

// cableTo passes connections on to the server of a database, until the test ends.
func cableTo(t *testing.T, database string) *cable {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &cable{addr: ln.Addr().String()}
	var ends sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	ends.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", u.Host)
			if err != nil {
				_ = near.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, near, far)
			mu.Unlock()
			ends.Go(func() { w.pass(near, far) })
			ends.Go(func() { w.pass(far, near) })
		}
	})
	t.Cleanup(func() {
		w.mend()
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		ends.Wait()
	})
	return w
}

// pass copies what arrives, except while it is cut: then nothing of it
// arrives, not even the end.
func (w *cable) pass(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		w.gate.RLock()
		if n > 0 {
			_, _ = to.Write(buf[:n])
		}
		w.gate.RUnlock()
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

// cut and mend are for the goroutine of the test.
func (w *cable) cut() {
	w.gate.Lock()
	w.isCut = true
}

// mend ends a cut, if there is one.
func (w *cable) mend() {
	if w.isCut {
		w.isCut = false
		w.gate.Unlock()
	}
}

// to is the catalogue as it is seen through the cable.
func (w *cable) to(c catalogue) catalogue {
	c.Helper()
	u, err := url.Parse(c.url)
	if err != nil {
		c.Fatal(err)
	}
	u.Host = w.addr
	c.url = u.String()
	return c
}
