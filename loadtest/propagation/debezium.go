package propagation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"penstock.dev/deploy/local/server"
	"penstock.dev/loadtest/system"
)

// A connector is the real Debezium with the configuration in deploy/debezium,
// on a slot and a topic of its own.
type connector struct {
	name, topic string
	poll        int // poll.interval.ms
	config      map[string]string
}

// connectors are those of a run, under one worker of Kafka Connect.
type connectors struct {
	s      *system.System
	list   []connector
	worker *server.Process
}

func (c *connectors) topics() []string {
	var topics []string
	for _, k := range c.list {
		topics = append(topics, k.topic)
	}
	return topics
}

// startDebezium starts a connector for each of the wanted poll intervals.
func startDebezium(ctx context.Context, s *system.System, o Options) (*connectors, error) {
	c := &connectors{s: s}
	if len(o.Debezium) == 0 {
		return c, nil
	}
	shipped, err := shippedConnector(s)
	if err != nil {
		return nil, err
	}
	for _, poll := range o.Debezium {
		k := connector{name: fmt.Sprintf("loadtest_debezium_%d", poll), poll: poll, config: maps.Clone(shipped)}
		k.topic = k.name + "." + rulesTopic
		maps.Copy(k.config, map[string]string{
			"name": k.name, "topic.prefix": k.name, "slot.name": k.name, "poll.interval.ms": strconv.Itoa(poll),
			"transforms.outbox.route.topic.replacement": k.name + ".${routedByValue}",
		})
		c.list = append(c.list, k)
	}
	o.Say("starting Kafka Connect with %d Debezium connectors", len(c.list))
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// shippedConnector is deploy/debezium/connector.json for the system's database.
func shippedConnector(s *system.System) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(s.Root, "deploy", "debezium", "connector.json"))
	if err != nil {
		return nil, err
	}
	var file struct {
		Config map[string]string `json:"config"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	u, err := url.Parse(s.Env["DATABASE_URL"])
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	maps.Copy(file.Config, map[string]string{
		"database.hostname": u.Hostname(), "database.port": u.Port(), "database.dbname": strings.Trim(u.Path, "/"),
		"database.user": u.User.Username(), "database.password": password,
	})
	return file.Config, nil
}

func (c *connectors) start(ctx context.Context) error {
	db, err := c.s.Database(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	for _, k := range c.list {
		if _, err := db.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, k.name); err != nil {
			return fmt.Errorf("slot %s: %w", k.name, err)
		}
	}
	c.worker, err = server.StartConnect(ctx, filepath.Join(c.s.Dir, "connect"), server.ConnectOptions{
		Brokers: c.s.Env["KAFKA_BROKERS"], Connector: c.list[0].config,
		Worker: map[string]string{
			"key.converter":   "org.apache.kafka.connect.storage.StringConverter",
			"value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
		},
		Run: server.Run{Within: 2 * time.Minute},
	})
	if err != nil {
		return err
	}
	for _, k := range c.list[1:] {
		if err := c.post(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// post gives the worker one more connector and waits until it runs.
func (c *connectors) post(ctx context.Context, k connector) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	body, err := json.Marshal(map[string]any{"name": k.name, "config": k.config})
	if err != nil {
		return err
	}
	if _, err := c.ask(ctx, http.MethodPost, "/connectors", body); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := c.ask(ctx, http.MethodGet, "/connectors/"+k.name+"/status", nil)
		if err == nil && strings.Count(string(answer), `"state":"RUNNING"`) == 2 { // the connector and its task
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("connector %s does not run: %s: %w", k.name, answer, err)
		case <-tick.C:
		}
	}
}

func (c *connectors) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.worker.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return answer, err
}

// stop ends the connectors and removes their slots and topics.
func (c *connectors) stop(ctx context.Context) error {
	var errs []error
	if c.worker != nil {
		errs = append(errs, c.worker.Stop(ctx))
	}
	if len(c.list) == 0 {
		return errors.Join(errs...)
	}
	db, err := c.s.Database(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer func() { _ = db.Close(ctx) }()
	var topics []string
	for _, k := range c.list {
		errs = append(errs, dropSlot(ctx, db, k.name))
		topics = append(topics, k.topic, "__debezium-heartbeat."+k.name)
	}
	kafka, err := kadm.NewOptClient(c.s.KafkaOption())
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer kafka.Close()
	_, err = kafka.DeleteTopics(ctx, topics...) // those that were never made are no failure
	return errors.Join(append(errs, err)...)
}

// dropSlot drops a slot once nobody reads it any more.
func dropSlot(ctx context.Context, db *pgx.Conn, name string) error {
	_, err := db.Exec(ctx, `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = $1 AND active`, name)
	if err == nil {
		_, err = db.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, name)
	}
	return err
}
