//go:build integration

package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/pgtest"
)

const (
	adminToken    = "admin-0123456789abcdef"
	readonlyToken = "readonly-0123456789abcdef"
)

// A registry is a schema registry that can be away.
type registry struct {
	*httptest.Server
	away atomic.Bool
}

const schemaID = 41

func startRegistry(t testing.TB) *registry {
	t.Helper()
	r := &registry{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if r.away.Load() {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
		_, _ = fmt.Fprintf(w, `{"id":%d,"subject":%q,"version":1}`, schemaID, rulesv1.Subject)
	}))
	t.Cleanup(r.Close)
	return r
}

// schemaByID answers for the decoder what the registry would.
type schemaByID struct{}

func (schemaByID) Register(context.Context, string, string) (uint32, error) { return schemaID, nil }
func (schemaByID) Schema(context.Context, uint32) (string, []string, error) {
	return schemas.RulesV1, []string{rulesv1.Subject}, nil
}

// A service is rule-admin as a process would run it.
type service struct {
	t     testing.TB
	url   string
	admin string
	stop  context.CancelFunc
	done  chan error
	log   *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func start(t testing.TB, database, registry string, args ...string) *service {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &service{t: t, url: "http://" + freeAddr(t), admin: "http://" + freeAddr(t), stop: cancel, done: make(chan error, 1), log: &syncBuffer{}}
	p := boot.Process{
		Service: "rule-admin", Log: slog.New(slog.NewJSONHandler(s.log, nil)), Metrics: prometheus.NewRegistry(), Stopping: ctx.Done(),
		Getenv: func(string) string { return "" },
		Args: append([]string{
			"-listen", strings.TrimPrefix(s.url, "http://"), "-admin-listen", strings.TrimPrefix(s.admin, "http://"),
			"-database-url", database, "-schema-registry", registry,
			"-tokens", "ops:admin:" + adminToken + ",dash:readonly:" + readonlyToken,
		}, args...),
	}
	go func() { s.done <- run(ctx, p) }()
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Errorf("run = %v", err)
		}
	})
	s.until("the ports answer", func() bool {
		live, _, _ := s.get(s.admin + "/live")
		status, _, _ := s.get(s.url + "/v1/openapi.json")
		return live == http.StatusOK && status != 0
	})
	return s
}

// connect opens the database by the driver that the service has linked.
func connect(t testing.TB, database string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// end stops the service and returns what it ended with.
func (s *service) end() error {
	s.stop()
	err, open := <-s.done
	if open {
		close(s.done)
	}
	return err
}

// until asks until the answer is yes, for at most 20 s.
func (s *service) until(what string, yes func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !yes(); {
		if time.Now().After(deadline) {
			s.t.Fatalf("after 20 s it is not so that %s; log:\n%s", what, s.log)
		}
	}
}

func (s *service) ready() { s.t.Helper(); s.until("the service is ready", s.isReady) }

func (s *service) isReady() bool {
	status, _, _ := s.get(s.admin + "/ready")
	return status == 200
}

func (s *service) get(url string) (status int, body string, header http.Header) {
	return s.do(s.t.Context(), "GET", url, "")
}

func (s *service) do(ctx context.Context, method, url, body string, headers ...string) (status int, text string, header http.Header) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error(), nil
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(b), resp.Header
}

func (s *service) want(status int, method, path, body string, headers ...string) string {
	s.t.Helper()
	got, text, _ := s.do(s.t.Context(), method, s.url+path, body, headers...)
	if got != status {
		s.t.Errorf("%s %s = %d %s, want %d", method, path, got, text, status)
	}
	return text
}

// TestIntegrationService guarantees what an operator sees of the whole: what is
// put is published with the registry's schema id, decodes, and is numbered in
// order; the metrics count it; the log has no secret.
func TestIntegrationService(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := start(t, database, startRegistry(t).URL)
	s.ready()
	s.want(201, "PUT", "/v1/tenants/acme", `{"name":"Acme","zone":"Europe/Istanbul"}`)
	created := s.want(201, "PUT", "/v1/api-keys/acme-1", `{"tenant":"acme"}`)
	s.want(201, "PUT", "/v1/rules/acme-month", `{"kind":"quota","subject":["tenant"],"limit":1000,"match":{"tenant":"acme"},"period":{"unit":"month"}}`)
	s.want(409, "DELETE", "/v1/tenants/acme", "")
	s.want(204, "DELETE", "/v1/api-keys/acme-1", "")
	s.want(403, "PUT", "/v1/tenants/acme", `{}`, "Authorization", "Bearer "+readonlyToken)

	rows, err := connect(t, database).QueryContext(t.Context(), `SELECT aggregateid, version, payload FROM outbox ORDER BY version`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	type row struct {
		Key     string
		Version int64
		Payload []byte
	}
	var events []row
	for rows.Next() {
		var e row
		if err := rows.Scan(&e.Key, &e.Version, &e.Payload); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	decoder := rulesv1.NewDecoder(wire.NewIDs(schemaByID{}, rulesv1.Subject))
	for i, e := range events {
		if e.Version != int64(i+1) {
			t.Errorf("event %d has version %d", i, e.Version)
		}
		if e.Payload == nil {
			continue
		}
		if id, _, err := wire.Unframe(e.Payload); err != nil || id != schemaID {
			t.Errorf("%s is framed with schema %d (%v), want %d", e.Key, id, err, schemaID)
		}
		r, err := decoder.Decode(t.Context(), []byte(e.Key), e.Payload)
		if err != nil || r.Version != e.Version || r.Revision != e.Version {
			t.Errorf("%s decodes to %+v, %v", e.Key, r, err)
		}
	}
	if len(events) != 4 || events[3].Key != "api_key/acme-1" || events[3].Payload != nil {
		t.Errorf("%d events, the last of %s, want 4 and a tombstone of the key", len(events), events[len(events)-1].Key)
	}
	_, metrics, _ := s.get(s.admin + "/metrics")
	for _, want := range []string{
		`penstock_rule_admin_requests_total{kind="tenant",operation="put",status="2xx"} 1`,
		`penstock_rule_admin_requests_total{kind="tenant",operation="delete",status="4xx"} 1`,
		`penstock_rule_admin_change_seconds_count{result="committed"} 4`,
		`penstock_rule_admin_change_seconds_count{result="refused"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	// What PostgreSQL could not even be asked is no fault of the service.
	for path, status := range map[string]int{
		"/v1/rules/%00": 404, "/v1/rules/%ff": 404, "/v1/audit?object_id=%00": 422, "/v1/audit?actor=%ff": 422, "/v1/audit?actor=a%00": 422,
	} {
		s.want(status, "GET", path, "")
	}
	s.want(404, "DELETE", "/v1/rules/%00", "")
	s.want(422, "PUT", "/v1/rules/%00", `{"kind":"block"}`)
	s.want(422, "PUT", "/v1/tenants/x", `{"name":"a\u0000b"}`)
	var key struct{ Secret string }
	if err := json.Unmarshal([]byte(created), &key); err != nil || key.Secret == "" {
		t.Fatalf("%s: %v, want a secret", created, err)
	}
	for _, secret := range []string{key.Secret, adminToken, readonlyToken} {
		if strings.Contains(s.log.String(), secret) || strings.Contains(metrics, secret) {
			t.Errorf("a secret is in the log or the metrics")
		}
	}
	audit := s.want(200, "GET", "/v1/audit", "")
	if strings.Contains(audit, key.Secret) || strings.Count(audit, `"actor":"ops"`) != 4 {
		t.Errorf("audit: %s", audit)
	}
	if err := s.end(); err != nil {
		t.Errorf("run = %v, want a clean end", err)
	}
}

// TestIntegrationRegistryAway guarantees that a service which never met the
// registry reads and deletes but does not write, and says why; that it writes as
// soon as the registry answers; and that the next start needs no registry.
func TestIntegrationRegistryAway(t *testing.T) {
	t.Parallel()
	database, reg := pgtest.Database(t), startRegistry(t)
	reg.away.Store(true)
	s := start(t, database, reg.URL)
	s.until("the tables are there", func() bool { status, _, _ := s.get(s.url + "/v1/rules"); return status == 200 })
	text := s.want(503, "PUT", "/v1/tenants/acme", `{}`)
	if !strings.Contains(text, `"registry-unavailable"`) || !strings.Contains(text, reg.URL) {
		t.Errorf("refused with %s, want the registry named", text)
	}
	s.want(404, "DELETE", "/v1/tenants/acme", "")
	if _, ready, _ := s.get(s.admin + "/ready"); s.isReady() || !strings.Contains(ready, `"schema"`) {
		t.Errorf("ready says %s, want the schema missing", ready)
	}
	reg.away.Store(false)
	s.ready()
	s.want(201, "PUT", "/v1/tenants/acme", `{}`)
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	reg.away.Store(true)
	again := start(t, database, reg.URL)
	again.ready()
	again.want(200, "PUT", "/v1/tenants/acme", `{}`, "If-Match", `"1"`)
}

// TestIntegrationDatabaseAway guarantees that the service starts before its
// database, answers 503 with a time to wait while that is away, and serves by
// itself when it comes.
func TestIntegrationDatabaseAway(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	server.Kill()
	s := start(t, server.URL, startRegistry(t).URL)
	for _, path := range []string{"/v1/rules", "/v1/rules/x", "/v1/audit"} {
		status, text, header := s.get(s.url + path)
		if status != 503 || header.Get("Retry-After") != "1" || !strings.Contains(text, `"store-unavailable"`) {
			t.Errorf("GET %s = %d %s, Retry-After %q", path, status, text, header.Get("Retry-After"))
		}
	}
	s.want(503, "PUT", "/v1/tenants/acme", `{}`)
	s.want(400, "PUT", "/v1/tenants/acme", `{"nonsense":1}`)
	if s.isReady() {
		t.Error("ready without a database")
	}
	server.Restart()
	s.ready()
	s.want(201, "PUT", "/v1/tenants/acme", `{}`)
	server.Kill()
	s.until("the database is missed", func() bool { status, _, _ := s.get(s.url + "/v1/tenants/acme"); return status == 503 })
	server.Restart()
	s.until("it is back", func() bool { status, _, _ := s.get(s.url + "/v1/tenants/acme"); return status == 200 })
}

// TestIntegrationManyWriters guarantees that clients which write at once, to two
// instances, lose no update: a counter in a name, raised by read and replace
// with the version that was read, ends at the number of successes.
func TestIntegrationManyWriters(t *testing.T) {
	t.Parallel()
	database, reg := pgtest.Database(t), startRegistry(t)
	instances := []*service{start(t, database, reg.URL), start(t, database, reg.URL)}
	for _, s := range instances {
		s.ready()
	}
	instances[0].want(201, "PUT", "/v1/tenants/acme", `{"name":"0"}`)
	const clients, rounds = 20, 10
	var wg sync.WaitGroup
	var won, stale atomic.Int64
	for i := range clients {
		s := instances[i%len(instances)]
		wg.Go(func() {
			for range rounds {
				_, text, header := s.get(s.url + "/v1/tenants/acme")
				var is struct{ Name string }
				if err := json.Unmarshal([]byte(text), &is); err != nil {
					t.Errorf("%s: %v", text, err)
					return
				}
				n, err := strconv.Atoi(is.Name)
				if err != nil {
					t.Error(err)
					return
				}
				status, text, _ := s.do(t.Context(), "PUT", s.url+"/v1/tenants/acme", fmt.Sprintf(`{"name":"%d"}`, n+1), "If-Match", header.Get("ETag"))
				switch status {
				case 200:
					won.Add(1)
				case 412:
					stale.Add(1)
				default:
					t.Errorf("PUT = %d %s", status, text)
				}
			}
		})
	}
	wg.Wait()
	text := instances[1].want(200, "GET", "/v1/tenants/acme", "")
	if want := fmt.Sprintf(`"name":"%d","version":%d`, won.Load(), won.Load()+1); !strings.Contains(text, want) {
		t.Errorf("%d replacements won and %d were stale; it is %s, want %s", won.Load(), stale.Load(), text, want)
	}
	if won.Load() < clients/2 || stale.Load() < clients/2 {
		t.Errorf("%d won and %d were stale: the clients no longer meet", won.Load(), stale.Load())
	}
}

// TestIntegrationDrain guarantees that a request which is running when the
// service is told to stop is answered.
func TestIntegrationDrain(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := start(t, database, startRegistry(t).URL)
	s.ready()
	db := connect(t, database)
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.ExecContext(t.Context(), `UPDATE revision SET value = value`); err != nil {
		t.Fatal(err)
	}
	answered := make(chan int, 1)
	go func() {
		status, _, _ := s.do(t.Context(), "PUT", s.url+"/v1/tenants/acme", `{}`)
		answered <- status
	}()
	s.until("the change waits for its turn", func() bool {
		var waiting bool
		err := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		return waiting
	})
	s.stop()
	s.until("new requests are refused", func() bool { status, _, _ := s.get(s.url + "/v1/rules"); return status == 0 })
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if status := <-answered; status != 201 {
		t.Errorf("the running change was answered %d, want 201", status)
	}
	if err := s.end(); err != nil {
		t.Errorf("run = %v, want a clean end", err)
	}
}
