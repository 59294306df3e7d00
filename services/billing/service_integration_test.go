//go:build integration

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/deploy/local/server"
	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/postgres"
	"penstock.dev/services/billing/reconcile"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/internal/pgtest"
)

var buildBilling = sync.OnceValues(func() (string, error) {
	root, err := server.Root()
	if err != nil {
		return "", err
	}
	return server.Build(context.Background(), root, "services/billing", ".", server.Run{})
})

// A rig is the built service with what it reads and keeps.
type rig struct {
	t        *testing.T
	broker   *kafkatest.Broker
	database string
	url      string
	admin    string
	usage    uint32
	rules    uint32
	token    string
	process  *server.Process
}

func newRig(t *testing.T, database string) *rig {
	t.Helper()
	r := &rig{t: t, broker: kafkatest.Start(t), database: database}
	r.broker.CreateTopic(usagev1.Topic, 2)
	r.broker.CreateTopic(rulesv1.Topic, 1)
	client, err := kafka.New(kafka.Config{Brokers: r.broker.Brokers, SchemaRegistry: r.broker.RegistryURL}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if r.usage, err = client.Registry().Register(t.Context(), usagev1.Subject, schemas.UsageV1); err != nil {
		t.Fatal(err)
	}
	if r.rules, err = client.Registry().Register(t.Context(), rulesv1.Subject, schemas.RulesV1); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) flags() []string {
	return []string{"-kafka-brokers", strings.Join(r.broker.Brokers, ","), "-schema-registry", r.broker.RegistryURL}
}

func (r *rig) env() []string {
	return []string{"PENSTOCK_DATABASE_URL=" + r.database, "PENSTOCK_TOKENS=operator-0123456789", "PENSTOCK_PORTAL_KEYS=k1:" + seed}
}

func (r *rig) binary() string {
	r.t.Helper()
	path, err := buildBilling()
	if err != nil {
		r.t.Fatal(err)
	}
	return path
}

// start runs the service until the end of the test.
func (r *rig) start() {
	r.t.Helper()
	var ports [2]string
	for i := range ports {
		port, err := server.FreePort(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		ports[i] = "127.0.0.1:" + strconv.Itoa(port)
	}
	r.url, r.admin = "http://"+ports[0], "http://"+ports[1]
	args := append([]string{"-listen", ports[0], "-admin-listen", ports[1], "-topic-replicas", "1", "-finalize-every", "100ms"}, r.flags()...)
	var err error
	r.process, err = server.Start(r.t.Context(), server.Spec{
		Name: "billing", Path: r.binary(), Args: args, Env: r.env(), Dir: r.t.TempDir(), Ready: server.Answers200(r.admin + "/ready"),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Log(r.process.Tail())
		}
		if err := r.process.Kill(); err != nil {
			r.t.Error(err)
		}
	})
}

// enter has a token for the tenant issued by the gate on the service's own books.
func (r *rig) enter(tenant string) {
	r.t.Helper()
	store, err := postgres.Open(r.t.Context(), postgres.Config{URL: r.database}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	keys, err := access.ParseKeys("k1:" + seed)
	if err != nil {
		r.t.Fatal(err)
	}
	gate, err := access.New(keys, store)
	if err := errors.Join(err, store.Prepare(r.t.Context())); err != nil {
		r.t.Fatal(err)
	}
	ticket, err := gate.Issue(r.t.Context(), tenant, "u1", time.Hour, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	r.token = ticket.Token
}

// get returns what a page of the service answers.
func (r *rig) get(url string, into any) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && into != nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		r.t.Fatalf("%s: %s: %v", url, text, err)
	}
	return resp.StatusCode, string(text)
}

// draft is the running draft with its lines.
func (r *rig) draft() account.InvoiceDocument {
	r.t.Helper()
	var page struct{ Items []account.InvoiceDocument }
	if status, text := r.get(r.url+"/v1/invoices", &page); status != http.StatusOK {
		r.t.Fatalf("invoices: %d %s", status, text)
	}
	if len(page.Items) == 0 {
		return account.InvoiceDocument{}
	}
	var out account.InvoiceDocument
	r.get(r.url+"/v1/invoices/"+page.Items[0].ID, &out)
	return out
}

func (r *rig) put(records ...rulesv1.Record) {
	r.t.Helper()
	for i, rec := range records {
		rec.Version, rec.Revision, rec.ChangedAt = int64(i+1), int64(i+1), time.Now().Add(-time.Hour).UnixMicro()
		body, err := rulesv1.AppendRecord(nil, &rec)
		if err != nil {
			r.t.Fatal(err)
		}
		r.broker.Produce(&kafkatest.Record{Topic: rulesv1.Topic, Key: rulesv1.Key(rec.Kind, rec.ID), Value: wire.Frame(nil, r.rules, body)})
	}
}

func (r *rig) catalogue() {
	r.put(
		rulesv1.Record{Kind: rulesv1.KindPlan, ID: "gold", Plan: &rulesv1.Plan{
			Name: "Gold", Fee: &rulesv1.Fee{Amount: 9900, Currency: "USD", Period: rulesv1.PeriodUnitMonth},
			Included: []rulesv1.Included{{Meter: "api-calls", Units: 1000}}, Overage: []rulesv1.Overage{{Meter: "api-calls", UnitPrice: "0.01"}},
		}},
		rulesv1.Record{Kind: rulesv1.KindTenant, ID: "acme", Tenant: &rulesv1.Tenant{Name: "Acme", Plan: "gold", Zone: "Europe/Istanbul", Currency: "USD"}},
		rulesv1.Record{Kind: rulesv1.KindGrant, ID: "t1", Grant: &rulesv1.Grant{Tenant: "acme", Meter: "credits", Units: 500, GrantedAt: time.Now().UnixMicro(), Reason: "order 17"}},
	)
}

// events are n calls of acme that cost 1 each, the stream's first numbers, every fifth of
// which pays a credit as well.
func events(n int) []usagev1.Event {
	out := make([]usagev1.Event, n)
	now := time.Now()
	for i := range out {
		var id usagev1.UUID
		binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16|7<<12)
		binary.BigEndian.PutUint64(id[8:], 2<<62|uint64(i+1))
		out[i] = usagev1.Event{
			EventID: id, DecisionID: id, TS: now.UnixMicro(), StreamID: usagev1.UUID{15: 1}, Sequence: int64(i + 1), Decision: usagev1.DecisionAllow, Status: 200,
			Tenant: "acme", Application: "web", APIKey: "acme-1", Service: "payments", Endpoint: "pay", Cost: 1, GatewayID: "gw-1",
		}
		if i%5 == 0 {
			out[i].Counters = []usagev1.Counter{{
				Key: "{t:acme}:e:w:t:credits:g", Observed: true, Limit: 500, Units: 1, Consumed: int64(i/5 + 1), Kind: usagev1.CounterKindWallet,
				Mode: usagev1.ModeEnforce, Meter: "credits", RuleID: "acme-wallet", RuleVersion: 1,
			}}
		}
	}
	return out
}

func (r *rig) send(all []usagev1.Event) {
	r.t.Helper()
	records := make([]*kafkatest.Record, len(all))
	for i := range all {
		records[i] = &kafkatest.Record{Topic: usagev1.Topic, Key: "acme", Value: wire.Frame(nil, r.usage, usagev1.AppendEvent(nil, &all[i]))}
	}
	r.broker.Produce(records...)
}

func (r *rig) counted(meter string) account.CountedDocument {
	r.t.Helper()
	for _, c := range r.draft().Counted {
		if c.Meter == meter {
			return c
		}
	}
	return account.CountedDocument{}
}

// reconcile runs the command, and returns its exit code and report.
func (r *rig) reconcile() (int, reconcile.Report) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), r.binary(), append([]string{"reconcile", "-json"}, r.flags()...)...)
	cmd.Env = append(os.Environ(), r.env()...)
	out, err := cmd.Output()
	var report reconcile.Report
	if fault := json.Unmarshal(out, &report); fault != nil {
		r.t.Fatalf("reconcile: %s %v %v", out, err, fault)
	}
	return cmd.ProcessState.ExitCode(), report
}

// TestIntegrationService guarantees the whole of it on a broker and a PostgreSQL: each
// event counts once though it comes twice, in one run and in a topic that was made anew;
// the draft, the wallet and the books agree with the events, which reconcile proves; a
// book that was tampered with is found.
func TestIntegrationService(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t))
	all := events(1200)
	r.catalogue()
	r.send(all[:900])
	r.send(all[300:])
	r.start()
	r.enter("acme")
	kafkatest.Eventually(t, func() bool { return r.counted("api-calls").Calls == 1200 }, "1,200 calls on the draft")
	d := r.draft()
	if d.State != account.Draft || d.Total != "101.00" || d.Zone != "Europe/Istanbul" { // 99.00 + 200 × 0.01
		t.Errorf("the draft is %+v", d)
	}
	if c := r.counted("credits"); c.Prepaid != 240 || c.Unattributed != 0 || c.Lost != 0 {
		t.Errorf("credits are counted %+v", c)
	}
	var wallets struct {
		Items []struct {
			Balance int64
			Entries []json.RawMessage
		}
	}
	if r.get(r.url+"/v1/wallet", &wallets); len(wallets.Items) != 1 || wallets.Items[0].Balance != 260 {
		t.Errorf("the wallet is %+v", wallets)
	}
	for _, want := range []string{"penstock_billing_events_total 1200", "penstock_billing_repeats_total 600", "penstock_billing_lost_events 0"} {
		kafkatest.Eventually(t, func() bool {
			_, text := r.get(r.admin+"/metrics", nil)
			return strings.Contains(text, want+"\n")
		}, "%s", want)
	}
	if code, report := r.reconcile(); code != 0 || report.Read != 1800 || report.Repeats != 600 || report.Compared != 2 || report.Wallets != 1 {
		t.Errorf("reconcile exits %d: %+v", code, report)
	}
	r.tamper()

	// The same events on a topic that was made anew: offsets begin again, nothing counts.
	again := newRig(t, r.database)
	again.token = r.token
	if err := r.process.Kill(); err != nil {
		t.Fatal(err)
	}
	again.catalogue()
	again.send(all)
	again.start()
	kafkatest.Eventually(t, func() bool {
		_, text := again.get(again.admin+"/metrics", nil)
		return strings.Contains(text, "penstock_billing_repeats_total 1200\n")
	}, "everything to be a repeat")
	if c := again.counted("api-calls"); c.Calls != 1200 {
		t.Errorf("after the topic was made anew %d calls are counted, want 1,200", c.Calls)
	}
}

// tamper changes the books behind the service's back, and back, and wants it found.
func (r *rig) tamper() {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.database)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(r.t.Context())) }()
	for _, tt := range []struct{ do, undo, found string }{
		{`UPDATE billing.usage SET units = units + 1 WHERE meter = 'api-calls'`, `UPDATE billing.usage SET units = units - 1 WHERE meter = 'api-calls'`, "difference"},
		{`UPDATE billing.wallets SET refunded = refunded + 5`, `UPDATE billing.wallets SET refunded = refunded - 5`, "fault"},
	} {
		if _, err := conn.Exec(r.t.Context(), tt.do); err != nil {
			r.t.Fatal(err)
		}
		code, report := r.reconcile()
		if found := fmt.Sprint(len(report.Differences), len(report.Faults)); code != 1 || found != map[string]string{"difference": "1 0", "fault": "0 1"}[tt.found] {
			r.t.Errorf("%s: reconcile exits %d: %+v", tt.do, code, report)
		}
		if _, err := conn.Exec(r.t.Context(), tt.undo); err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestIntegrationReconcileChangesNothing guarantees that proving books that are not there
// fails, at once, and makes none.
func TestIntegrationReconcileChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t))
	cmd := exec.CommandContext(t.Context(), r.binary(), append([]string{"reconcile"}, r.flags()...)...)
	cmd.Env = append(os.Environ(), r.env()...)
	if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("reconcile of nothing: %v %s", err, out)
	}
	conn, err := pgx.Connect(t.Context(), r.database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var schemas int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname = 'billing'`).Scan(&schemas); err != nil || schemas != 0 {
		t.Errorf("reconcile made %d schemas: %v", schemas, err)
	}
}
