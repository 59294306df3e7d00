//go:build integration

package server_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/deploy/local/server"
)

// TestIntegrationKafkaAndDebeziumLive guarantees that Apache Kafka and Debezium
// are fetched and verified, that Kafka survives a kill on its own port, that a
// connector is RUNNING when StartConnect returns, and that one that cannot run
// is reported at once with its reason.
func TestIntegrationKafkaAndDebeziumLive(t *testing.T) {
	t.Parallel()

	kafka, err := server.StartKafka(t.Context(), t.TempDir(), server.KafkaOptions{Run: logged(t)})
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, kafka)
	survivesAKill(t, kafka)

	pg, err := server.StartPostgres(t.Context(), t.TempDir(), server.PostgresOptions{Volatile: true, Run: logged(t)})
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, pg)
	psql(t, pg.URL, "CREATE TABLE outbox (id uuid PRIMARY KEY); CREATE PUBLICATION outbox_pub FOR TABLE outbox")

	host, port, _ := strings.Cut(pg.Addr, ":")
	options := server.ConnectOptions{
		Brokers: kafka.Addr,
		Worker: map[string]string{
			"key.converter":   "org.apache.kafka.connect.storage.StringConverter",
			"value.converter": "io.debezium.converters.BinaryDataConverter",
		},
		Connector: map[string]string{
			"name":            "outbox",
			"connector.class": "io.debezium.connector.postgresql.PostgresConnector",
			"tasks.max":       "1", "topic.prefix": "app",
			"database.hostname": host, "database.port": port, "database.dbname": "postgres",
			"database.user": "postgres", "database.password": "unused",
			"plugin.name": "pgoutput", "slot.name": "outbox_slot",
			"publication.name": "outbox_pub", "publication.autocreate.mode": "disabled",
			"table.include.list": "public.outbox", "snapshot.mode": "no_data",
		},
		Run: logged(t),
	}
	connect, err := server.StartConnect(t.Context(), t.TempDir(), options)
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, connect)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, connect.URL+"/connectors/outbox/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var status struct{ Connector struct{ State string } }
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil || status.Connector.State != "RUNNING" {
		t.Errorf("the connector is %q (%v), want RUNNING", status.Connector.State, err)
	}

	options.Connector["slot.name"] = "outbox_slot_2"
	options.Connector["publication.name"] = "no_such_publication"
	_, err = server.StartConnect(t.Context(), t.TempDir(), options)
	if !errors.Is(err, server.ErrNever) || !strings.Contains(err.Error(), "Publication autocreation is disabled") {
		t.Errorf("StartConnect without a publication = %v, want ErrNever and Debezium's reason", err)
	}
}

// survivesAKill kills Kafka, restarts it, and wants the same log directory.
func survivesAKill(t *testing.T, p *server.Process) {
	t.Helper()
	meta := filepath.Join(p.Dir, "data", "meta.properties")
	before, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(meta)
	if err != nil || string(after) != string(before) {
		t.Errorf("the log directory was formatted again (%v)", err)
	}
}
