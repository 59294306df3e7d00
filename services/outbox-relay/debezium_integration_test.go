//go:build integration

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/deploy/local/server"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/internal/pgtest"
	"penstock.dev/services/outbox-relay/postgres"
	"penstock.dev/services/outbox-relay/topics"
)

// shipped is the configuration in deploy/debezium, as it is shipped.
const shipped = "../../deploy/debezium"

func shippedConnector(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, "connector.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Name   string            `json:"name"`
		Config map[string]string `json:"config"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	file.Config["name"] = file.Name // as Connect's REST interface does
	return file.Config
}

// shippedWorker leaves out the addresses, which belong to the machine.
func shippedWorker(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, "worker.properties"))
	if err != nil {
		t.Fatal(err)
	}
	worker := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("worker.properties: %q is not name=value", line)
		}
		worker[name] = value
	}
	for _, address := range []string{"bootstrap.servers", "listeners", "plugin.path", "offset.storage.file.filename"} {
		if worker[address] == "" {
			t.Errorf("worker.properties does not name %s", address)
		}
		delete(worker, address)
	}
	return worker
}

// startDebezium runs the real connector under Kafka Connect with the shipped
// configuration but for what changes.
func startDebezium(t *testing.T, c catalogue, brokers []string, dir string, changes map[string]string) *server.Process {
	t.Helper()
	u, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"HOST": u.Hostname(), "PORT": u.Port(), "NAME": strings.Trim(u.Path, "/"),
		"USER": u.User.Username(), "PASSWORD": "unused: the server trusts loopback",
	} {
		t.Setenv("OUTBOX_DATABASE_"+name, value)
	}
	connector := shippedConnector(t)
	maps.Copy(connector, changes)
	p, err := server.StartConnect(t.Context(), dir, server.ConnectOptions{
		Brokers: strings.Join(brokers, ","), Worker: shippedWorker(t), Connector: connector,
		Run: server.Run{Say: func(s string) { t.Log(s) }, Within: 3 * time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && p.Running() {
			t.Log(p.Tail())
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// startRelay runs the relay's parts, as main wires them, and returns what stops
// them and waits.
func startRelay(t *testing.T, c catalogue, brokers []string, slot string) (stop func()) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	broker, err := kafka.New(kafka.Config{Brokers: brokers}, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	publisher := topics.New(broker)
	source := postgres.New(postgres.Config{
		URL: c.url, Slot: slot, Publication: "penstock_outbox", MaxInFlight: 1000,
	}, publisher.Publish, log, prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := publisher.Prepare(ctx, 0)
		if err == nil {
			err = source.Run(ctx)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("relay: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		_ = broker.Close()
	})
	t.Cleanup(stop)
	return stop
}

// samples are rows of every kind there is: each kind of object with a real
// body, and what a table and a topic can hold at their edges.
func samples(t *testing.T) []row {
	t.Helper()
	var rows []row
	version := int64(0)
	add := func(key, kind string, payload []byte) {
		version++
		rows = append(rows, row{rulesv1.Topic, key, kind, payload, version})
	}
	bodies, err := filepath.Glob("../../schemas/testdata/rules.v1/1/*.bin")
	if err != nil || len(bodies) < 10 {
		t.Fatalf("golden bodies of rules.v1: %v, %v", bodies, err)
	}
	for _, file := range bodies {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kind, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".bin"), "-")
		key := rulesv1.Key(rulesv1.Kind(kind), "golden")
		add(key, kind+".changed", wire.Frame(nil, 7, body))
		add(key, kind+".deleted", nil)
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	random := make([]byte, 500<<10) // does not compress, and is stored out of line
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(random)
	for _, payload := range [][]byte{
		every, {}, {0}, []byte("{}"), []byte(`{"looks":"like json"}`), []byte("null"), random, bytes.Repeat([]byte("x"), 500<<10),
	} {
		add("rule/payload", "rule.changed", payload)
	}
	for _, text := range []string{
		"tenant/Ünïcødé", "tenant/日本語", "tenant/🚰🚿", "tenant/e\u0301", "tenant/\u202eright-to-left", "tenant/\ufeffbom",
		`tenant/"quoted" 'single' back\slash`, "tenant/tab\tline\nreturn\r", "tenant/a,b;c=d", " tenant/ spaces ", "true", "42", "[1]", "null",
		"tenant/" + strings.Repeat("ä", 248), "",
	} {
		add(text, "tenant.changed", []byte("key"))
		add(text, text, []byte("key and type"))
		add(text, "tenant.deleted", nil)
	}
	rows = append(rows, row{rulesv1.Topic, "rule/version", "rule.changed", []byte("1"), 1<<53 - 1},
		row{rulesv1.Topic, "rule/version-0", "rule.changed", []byte("2"), 0})
	return rows
}

// load commits samples one by one, several a transaction, out of the order of
// their inserts, and takes some back. It returns how many rows were committed.
func load(c catalogue) int {
	c.Helper()
	n := 0
	for i, r := range samples(c.T) {
		c.commit(r)
		n++
		if i%5 == 0 { // rolled back: never seen
			if err := c.begin(row{r.topic, "rule/never", "rule.changed", []byte("never"), int64(i)}).Rollback(c.Context()); err != nil {
				c.Fatal(err)
			}
		}
	}
	many := func(prefix string, n int) []row {
		rows := make([]row, n)
		for i := range rows {
			rows[i] = row{rulesv1.Topic, fmt.Sprintf("rule/%s-%d", prefix, i%7), "rule.changed", fmt.Appendf(nil, "%s %d", prefix, i), int64(i)}
		}
		return rows
	}
	early := c.begin(many("early", 50)...) // inserted first, committed last
	c.commit(many("late", 500)...)
	if err := early.Commit(c.Context()); err != nil {
		c.Fatal(err)
	}
	return n + 550
}

// shown is a record as it is compared: all of it but where and when.
func shown(r kafka.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "key %q nil=%t", r.Key, r.Key == nil)
	for _, h := range r.Headers {
		fmt.Fprintf(&b, " %q=%q nil=%t", h.Key, h.Value, h.Value == nil)
	}
	fmt.Fprintf(&b, " value nil=%t %q", r.Value == nil, r.Value)
	return b.String()
}

// TestIntegrationDebeziumWritesTheSameBytes guarantees that the relay can be
// replaced: the real connector, with the configuration in deploy/debezium, reads
// the same outbox beside it, and keys, values and headers (names, order, bytes)
// are equal, in the same order.
func TestIntegrationDebeziumWritesTheSameBytes(t *testing.T) {
	broker := kafkatest.Start(t)
	c := newCatalogue(t)
	slot := c.slotName("debezium")
	c.makeSlot(slot)
	startRelay(t, c, broker.Brokers, c.slotName("relay"))
	relay := follow(t, broker.Brokers, rulesv1.Topic)
	began := time.Now()
	startDebezium(t, c, broker.Brokers, t.TempDir(), map[string]string{
		"slot.name": slot,
		"transforms.outbox.route.topic.replacement": "debezium." + shippedConnector(t)["transforms.outbox.route.topic.replacement"],
	})
	t.Logf("Connect runs after %v", time.Since(began).Round(time.Millisecond))
	debezium := follow(t, broker.Brokers, "debezium."+rulesv1.Topic)

	n := load(c)
	enough := func(have []kafka.Record) bool { return len(have) >= n }
	want := debezium.until(60*time.Second, fmt.Sprintf("%d records by Debezium", n), enough)
	got := relay.until(60*time.Second, fmt.Sprintf("%d records by the relay", n), enough)
	if len(got) != n || len(want) != n {
		t.Errorf("%d rows were committed: the relay wrote %d, Debezium %d", n, len(got), len(want))
	}
	different := 0
	for i := range min(len(got), len(want)) {
		if shown(got[i]) != shown(want[i]) {
			if different++; different <= 10 {
				t.Errorf("record %d:\n  relay    %.300s\n  debezium %.300s", i, shown(got[i]), shown(want[i]))
			}
		}
	}
	if different > 0 {
		t.Errorf("%d of %d records differ", different, n)
	}
	if i := slices.IndexFunc(got, func(r kafka.Record) bool { return r.Value == nil }); i < 0 {
		t.Error("no tombstone was compared")
	}
	// Heartbeats are what confirms the log of other tables. They must not
	// break the connector, and were not among the records above.
	follow(t, broker.Brokers, "__debezium-heartbeat.penstock").until(30*time.Second, "a heartbeat", func(have []kafka.Record) bool { return len(have) > 0 })
}

// TestIntegrationDebeziumTakesOverAndGivesBack guarantees the procedure in
// deploy/debezium/README.md: relay and connector share one slot, so whichever
// runs goes on where the other stopped. Nothing that was committed under
// either, or under none, is missing, whether Connect has no offsets yet or
// stale ones. A relay that stops leaves nothing to repeat; a connector leaves
// its last transactions, in their order. Nothing of the shipped configuration
// is changed here.
func TestIntegrationDebeziumTakesOverAndGivesBack(t *testing.T) {
	broker := kafkatest.Start(t)
	c := catalogueIn(t, pgtest.Start(t).Database()) // its own server, for the shipped name of the slot
	slot, dir := shippedConnector(t)["slot.name"], t.TempDir()
	topic := follow(t, broker.Brokers, rulesv1.Topic)
	version := 0
	some := func() { // 20 changes of 5 rules
		for range 20 {
			version++
			c.commit(row{rulesv1.Topic, fmt.Sprintf("rule/%d", version%5), "rule.changed", fmt.Append(nil, version), int64(version)})
		}
	}
	arrive := func(under string) {
		t.Helper()
		topic.until(60*time.Second, fmt.Sprintf("%d changes, the newest under %s", version, under), func(have []kafka.Record) bool {
			return distinct(have) == version
		})
	}

	stop := startRelay(t, c, broker.Brokers, slot)
	kafkatest.Eventually(t, func() bool { return c.hasSlot(slot) }, "slot %s", slot)
	some()
	arrive("the relay")
	stop()
	toDebezium := version
	some() // under none
	connect := startDebezium(t, c, broker.Brokers, dir, nil)
	some()
	arrive("Debezium")
	if err := connect.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	toRelay := version
	some()
	stop = startRelay(t, c, broker.Brokers, slot)
	some()
	arrive("the relay again")
	stop()
	some()
	startDebezium(t, c, broker.Brokers, dir, nil) // its offsets are those of its first run
	some()
	arrive("Debezium again")

	last, newest := 0, 0
	for i, r := range topic.all() {
		v, err := strconv.Atoi(header(r, "version"))
		if err != nil {
			t.Fatal(err)
		}
		if v != last+1 && (newest != toRelay || v <= toDebezium) {
			t.Errorf("record %d is version %d, after %d", i, v, last)
		}
		last, newest = v, max(newest, v)
	}
	if last != version {
		t.Errorf("the topic ends with version %d, want %d", last, version)
	}
	t.Logf("%d records of %d versions", len(topic.all()), version)
}
