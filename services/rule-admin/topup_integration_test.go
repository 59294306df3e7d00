//go:build integration

package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/pgtest"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
	"penstock.dev/services/rule-admin/ledger/ledgertest"
	"penstock.dev/services/rule-admin/postgres"
)

// openCounters returns the counter store of one server as a gateway has it.
func openCounters(t testing.TB, url string) *counters.Store {
	t.Helper()
	return openStore(t, counters.Config{URL: url})
}

func openStore(t testing.TB, cfg counters.Config) *counters.Store {
	t.Helper()
	cfg.Budget, cfg.Adopt = 5*time.Second, true
	s, err := counters.Open(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// walletCharge is a charge of a prepaid wallet.
func walletCharge(tenant, meter string, cost, granted int64) limit.Charge {
	return limit.Charge{
		Counter:   limit.Identity{Kind: rule.Wallet, Subject: rule.Tenant, Tenant: tenant, Meter: meter},
		Algorithm: rule.OverdraftWallet, Cost: cost, Limit: granted,
	}
}

func spend(t testing.TB, s *counters.Store, charges ...limit.Charge) {
	t.Helper()
	a, err := s.Decide(t.Context(), limit.Decision{Charges: charges})
	if err != nil || !a.Allowed {
		t.Fatalf("%+v: %+v, %v", charges, a, err)
	}
}

// A topUp is an answer.
type topUp struct {
	Status       int    `json:"-"`
	Replayed     bool   `json:"-"`
	ID           string `json:"topup_id"`
	GrantedTotal int64  `json:"granted_total"`
	Text         string `json:"-"`
}

func (s *service) topUp(tenant, key, body string) topUp {
	status, text, header := s.do(s.t.Context(), "POST", s.url+"/v1/tenants/"+tenant+"/topups", body, "Idempotency-Key", key)
	answer := topUp{Status: status, Replayed: header.Get("Idempotent-Replayed") == "true", Text: text}
	_ = json.Unmarshal([]byte(text), &answer) // no answer has no id
	return answer
}

// parallel sends one top-up many times at once, to the instances in turn, and
// wants it made once.
func parallel(t *testing.T, instances []*service, key, body string, total int64) topUp {
	t.Helper()
	const calls = 50
	answers := make([]topUp, calls)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range answers {
		wg.Go(func() {
			<-begin
			answers[i] = instances[i%len(instances)].topUp("acme", key, body)
		})
	}
	close(begin)
	wg.Wait()
	replayed := 0
	for _, a := range answers {
		if a.Replayed {
			replayed++
		}
		if a.Status != 201 || a.ID == "" || a.Text != answers[0].Text || a.GrantedTotal != total {
			t.Errorf("answered %d %s, want 201 %s and %d granted in all", a.Status, a.Text, answers[0].Text, total)
		}
	}
	if replayed != calls-1 {
		t.Errorf("%d of %d are marked replayed, want all but one", replayed, calls)
	}
	return answers[0]
}

// booksOf is what the database has of a top-up's tenant.
func booksOf(t *testing.T, db *sql.DB, tenant string) string {
	t.Helper()
	var out string
	if err := db.QueryRowContext(t.Context(), `SELECT concat_ws(' ',
		(SELECT count(*) FROM topups WHERE tenant = $1), 'top-ups,', (SELECT sum(granted_total) FROM wallets WHERE tenant = $1), 'granted,',
		(SELECT count(*) FROM outbox WHERE aggregateid LIKE 'wallet/' || $1 || ':%'), 'wallets and',
		(SELECT count(*) FROM outbox WHERE aggregateid LIKE 'grant/%'), 'grants told,', (SELECT count(*) FROM audit WHERE kind = 'topup'), 'audited')`,
		tenant).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestIntegrationW3TopUpOnce guarantees that one key makes one top-up: fifty
// calls at once, to two instances, get one answer, and all but one say that it
// was there; another body is refused and grants nothing; and after 90 days, with
// a counter store that has forgotten everything and a pruned outbox, the answer
// is still the first.
func TestIntegrationW3TopUpOnce(t *testing.T) {
	t.Parallel()
	database, registry, redis := pgtest.Database(t), startRegistry(t), redistest.Start(t)
	with := func() *service { return start(t, database, registry.URL, "-redis-url", redis.URL) }
	instances := []*service{with(), with()}
	for _, s := range instances {
		s.ready()
	}
	instances[0].want(201, "PUT", "/v1/tenants/acme", `{}`)
	const body = `{"meter":"credits","units":100,"reason":"order 17"}`
	first := parallel(t, instances, "17", body, 100)
	db := connect(t, database)
	const once = "1 top-ups, 100 granted, 1 wallets and 1 grants told, 1 audited"
	if got := booksOf(t, db, "acme"); got != once {
		t.Errorf("the books have %s, want %s", got, once)
	}

	other := instances[1].topUp("acme", "17", `{"meter":"credits","units":200,"reason":"order 17"}`)
	if other.Status != 422 || !strings.Contains(other.Text, `"field":"Idempotency-Key"`) {
		t.Errorf("another body: %d %s, want 422 that names the key", other.Status, other.Text)
	}
	if same := instances[1].topUp("acme", "17", ` { "reason":"order 17", "units":100,"priority":0,"meter":"credits"}`); !same.Replayed || same.Text != first.Text {
		t.Errorf("the same body, written otherwise: %d %s, want the first answer %s", same.Status, same.Text, first.Text)
	}

	for _, s := range instances {
		if err := s.end(); err != nil {
			t.Fatal(err)
		}
	}
	redis.Kill()
	redis.Restart()
	for _, q := range []string{
		`UPDATE topups SET granted_at = granted_at - interval '90 days'`,
		`DELETE FROM outbox`,
		`UPDATE revision SET changed_at = changed_at`,
	} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	late := with()
	late.ready()
	again := late.topUp("acme", "17", body)
	if again.Status != 201 || !again.Replayed || again.ID != first.ID || again.GrantedTotal != 100 {
		t.Errorf("after 90 days: %d %s, want %s replayed", again.Status, again.Text, first.Text)
	}
	if more := late.topUp("acme", "18", body); more.Status != 201 || more.Replayed || more.GrantedTotal != 200 {
		t.Errorf("another key: %d %s, want 200 granted in all", more.Status, more.Text)
	}
}

// TestIntegrationW3ByTheBooksAlone guarantees the same without a counter store,
// with one that is away, and with one that has lost its locks.
func TestIntegrationW3ByTheBooksAlone(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]func(t *testing.T) []string{
		"none": func(*testing.T) []string { return nil },
		"away": func(t *testing.T) []string {
			redis := redistest.Start(t)
			redis.Kill()
			return []string{"-redis-url", redis.URL}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, registry, args := pgtest.Database(t), startRegistry(t), args(t)
			instances := []*service{start(t, database, registry.URL, args...), start(t, database, registry.URL, args...)}
			for _, s := range instances {
				s.ready()
			}
			instances[0].want(201, "PUT", "/v1/tenants/acme", `{}`)
			parallel(t, instances, "17", `{"meter":"credits","units":100}`, 100)
			const once = "1 top-ups, 100 granted, 1 wallets and 1 grants told, 1 audited"
			if got := booksOf(t, connect(t, database), "acme"); got != once {
				t.Errorf("the books have %s, want %s", got, once)
			}
		})
	}
}

// Forgetful books do not know their keys when a turn asks, and have every call
// look before any of them gets a turn.
type forgetful struct {
	*ledgertest.Memory
	looked sync.WaitGroup
	mu     sync.Mutex
	waits  int
}

func (f *forgetful) TopUp(ctx context.Context, tenant, key string) (*ledger.TopUp, []byte, error) {
	first, asked, err := f.Memory.TopUp(ctx, tenant, key)
	f.mu.Lock()
	waits := f.waits > 0
	f.waits--
	f.mu.Unlock()
	if waits {
		f.looked.Done()
		f.looked.Wait()
	}
	return first, asked, err
}

func (f *forgetful) Turn(ctx context.Context, tenant, meter, _ string, decide func(ledger.Books, catalog.Moment) (*ledger.Entry, error)) error {
	return f.Memory.Turn(ctx, tenant, meter, "", decide)
}

// TestIntegrationW3ByTheLockAlone guarantees that the lock in front keeps a key
// to one top-up even where the books would not: of fifty calls that have all
// looked and found nothing, one gets to the books. Without the lock, all do.
func TestIntegrationW3ByTheLockAlone(t *testing.T) {
	t.Parallel()
	const calls = 50
	made := func(t *testing.T, lock ledger.Counters) (topUps, replays int) {
		t.Helper()
		books := &forgetful{Memory: ledgertest.NewMemory(time.Now(), "acme"), waits: calls}
		books.looked.Add(calls)
		l := ledger.New(books, lock, func(string, error) {})
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				_, replayed, err := l.TopUp(t.Context(), ledger.Request{
					Tenant: "acme", Key: "17", Meter: "credits", Units: 100, ID: fmt.Sprint(i), Caller: catalog.Caller{Actor: "ops", Role: "admin"},
				})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if replayed {
					replays++
				}
			})
		}
		wg.Wait()
		return len(books.Entries()), replays
	}
	if n, replays := made(t, openCounters(t, redistest.Start(t).URL)); n != 1 || replays != calls-1 {
		t.Errorf("behind the lock %d were made and %d replayed, want 1 and %d", n, replays, calls-1)
	}
	if n, _ := made(t, nil); n != calls {
		t.Errorf("without the lock %d were made, want %d: the books no longer forget", n, calls)
	}
}

// TestIntegrationUsagePage guarantees what a page of a thousand tenants costs,
// each with a quota and a wallet that were used: one statement in one round
// trip to the database, and one command to the counter store.
func TestIntegrationUsagePage(t *testing.T) {
	t.Parallel()
	const tenants = 1000
	wire, redis := newTap(t, pgtest.Database(t)), redistest.Start(t)
	store, err := postgres.Open(t.Context(), postgres.Config{URL: wire.url, MaxConns: 4}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	db := connect(t, wire.url)
	for _, q := range []string{
		`INSERT INTO objects (kind, id, version, body, kept, changed_at, changed_by)
			SELECT 'tenant', 't' || n, n, '{}', '{}', now(), 'ops' FROM generate_series(1, 1000) AS n`,
		`INSERT INTO objects (kind, id, version, body, kept, changed_at, changed_by) VALUES
			('rule', 'month', 1001, '{"kind":"quota","subject":["tenant"],"limit":1000,"period":{"unit":"month"}}', '{}', now(), 'ops'),
			('rule', 'wallet', 1002, '{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"meter":"credits"}', '{}', now(), 'ops')`,
		`INSERT INTO wallets (tenant, meter, granted_total, version, consumed, refunded, owed)
			SELECT 't' || n, 'credits', 2000 + n, n, 0, 0, 0 FROM generate_series(1, 1000) AS n`,
		`ANALYZE`,
	} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	counted := openCounters(t, redis.URL)
	decisions := make([]limit.Decision, tenants)
	for i := range decisions {
		decisions[i].Charges = []limit.Charge{walletCharge(fmt.Sprintf("t%d", i+1), "credits", int64(i+1), rule.Unlimited)}
	}
	for i := range decisions {
		if _, errs := counted.DecideAll(t.Context(), decisions[i:i+1]); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
	}
	c := catalog.New(store, rand.Reader, condition.Compile)
	page := func() []catalog.Usage {
		t.Helper()
		all, err := c.Usage(t.Context(), "", tenants, time.Now(), counted.Usage)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	page() // which prepares the statement
	client := redis.Client()
	commands := func() map[string]string {
		t.Helper()
		info, err := client.InfoMap(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		calls := map[string]string{}
		for name, stats := range info["Commandstats"] {
			calls[strings.TrimPrefix(name, "cmdstat_")], _, _ = strings.Cut(strings.TrimPrefix(stats, "calls="), ",")
		}
		delete(calls, "info")
		return calls
	}
	if err := client.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	statements, trips, began := wire.statements.Load(), wire.trips.Load(), time.Now()
	all := page()
	took := time.Since(began)
	if n, m := wire.statements.Load()-statements, wire.trips.Load()-trips; n != 1 || m != 1 {
		t.Errorf("a page took %d statements in %d round trips, want 1 in 1", n, m)
	}
	calls := commands()
	delete(calls, "config|resetstat")
	if len(calls) != 1 || calls["mget"] != "1" {
		t.Errorf("a page took the commands %v, want one mget", calls)
	}
	t.Logf("a page of %d tenants took %v", tenants, took)
	if len(all) != tenants {
		t.Fatalf("a page has %d tenants, want %d", len(all), tenants)
	}
	for _, u := range all {
		n := int64(0)
		if _, err := fmt.Sscanf(u.Tenant, "t%d", &n); err != nil || len(u.Counters) != 2 {
			t.Fatalf("%+v: %v, want two counters", u, err)
		}
		if w := u.Counters[1]; w.Rule.ID != "wallet" || w.Limit != 2000+n || w.Consumed != n {
			t.Fatalf("%s: %+v, want %d of %d consumed", u.Tenant, w, n, 2000+n)
		}
	}
}

// TestIntegrationTopUpsExpire guarantees, over the whole service, that what is
// unspent ends within 5 s of its time and is told as a lower total; that what
// was spent stays; that consumption shows in the usage; and that without a
// counter store nothing that expires is granted, and usage names the knob.
func TestIntegrationTopUpsExpire(t *testing.T) {
	t.Parallel()
	t.Run("on one server", func(t *testing.T) {
		t.Parallel()
		topUpsExpire(t, counters.Config{URL: redistest.Start(t).URL}, "-redis-cluster=false")
	})
	t.Run("on a cluster", func(t *testing.T) {
		t.Parallel()
		topUpsExpire(t, counters.Config{URL: redistest.StartCluster(t).URL, Cluster: true}, "-redis-cluster")
	})
	t.Run("on none", func(t *testing.T) {
		t.Parallel()
		s := start(t, pgtest.Database(t), startRegistry(t).URL)
		s.ready()
		s.want(201, "PUT", "/v1/tenants/acme", `{}`)
		ahead := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		if a := s.topUp("acme", "k", `{"meter":"credits","units":1,"expires_at":"`+ahead+`"}`); a.Status != 422 || !strings.Contains(a.Text, "-redis-url") {
			t.Errorf("an expiry without a counter store: %d %s, want 422 that names -redis-url", a.Status, a.Text)
		}
		if text := s.want(503, "GET", "/v1/usage", ""); !strings.Contains(text, "-redis-url") {
			t.Errorf("usage without a counter store: %s, want -redis-url named", text)
		}
	})
}

func topUpsExpire(t *testing.T, store counters.Config, args ...string) {
	t.Helper()
	database := pgtest.Database(t)
	s := start(t, database, startRegistry(t).URL, append(args, "-redis-url", store.URL)...)
	s.ready()
	if log := s.log.String(); strings.Contains(log, "top-ups") {
		t.Errorf("a clean start logs %s", log)
	}
	s.want(201, "PUT", "/v1/tenants/acme", `{}`)
	s.want(201, "PUT", "/v1/rules/acme-wallet", `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"match":{"tenant":"acme"},"meter":"credits"}`)
	ends := time.Now().Add(3 * time.Second).UTC().Truncate(time.Microsecond)
	if a := s.topUp("acme", "short", `{"meter":"credits","units":100,"expires_at":"`+ends.Format(time.RFC3339Nano)+`"}`); a.Status != 201 {
		t.Fatalf("%d %s", a.Status, a.Text)
	}
	if a := s.topUp("acme", "long", `{"meter":"credits","units":1000}`); a.GrantedTotal != 1100 {
		t.Fatalf("%d %s, want 1100 granted in all", a.Status, a.Text)
	}
	spend(t, openStore(t, store), walletCharge("acme", "credits", 30, 1100))
	usage := func() (limit, consumed, balance int64) {
		var u struct {
			Counters []struct{ Limit, Consumed, Balance int64 }
		}
		text := s.want(200, "GET", "/v1/tenants/acme/usage", "")
		if err := json.Unmarshal([]byte(text), &u); err != nil || len(u.Counters) != 1 {
			t.Fatalf("%s: %v, want one counter", text, err)
		}
		c := u.Counters[0]
		return c.Limit, c.Consumed, c.Balance
	}
	if l, c, b := usage(); l != 1100 || c != 30 || b != 1070 {
		t.Errorf("limit %d, consumed %d, balance %d, want 1100, 30, 1070", l, c, b)
	}
	s.until("the short one has ended", func() bool { l, _, _ := usage(); return l != 1100 })
	if late := time.Since(ends); late > 5*time.Second {
		t.Errorf("it ended %v after its time", late)
	}
	if l, c, b := usage(); l != 1030 || c != 30 || b != 1000 {
		t.Errorf("limit %d, consumed %d, balance %d, want the 70 that were unspent gone: 1030, 30, 1000", l, c, b)
	}
	if text := s.want(200, "GET", "/v1/tenants/acme/topups", ""); !strings.Contains(text, `"expired_units":70`) || strings.Count(text, `"topup_id"`) != 2 {
		t.Errorf("top-ups: %s, want two, of one of which 70 expired", text)
	}
	if again := s.topUp("acme", "short", `{"meter":"credits","units":100,"expires_at":"`+ends.Format(time.RFC3339Nano)+`"}`); !again.Replayed || strings.Contains(again.Text, "expired") {
		t.Errorf("the first answer again: %d %s, want it as it was", again.Status, again.Text)
	}
	audit := s.want(200, "GET", "/v1/audit?kind=topup", "")
	if !strings.Contains(audit, `"role":"system"`) || strings.Count(audit, `"object_id"`) != 3 {
		t.Errorf("audit: %s, want two top-ups and an end", audit)
	}
	told(t, connect(t, database), []int64{100, 1100, 1030})
	if _, metrics, _ := s.get(s.admin + "/metrics"); !strings.Contains(metrics, `penstock_rule_admin_topups_total{result="committed"} 2`+"\n") ||
		!strings.Contains(metrics, `penstock_rule_admin_topups_total{result="replayed"} 1`+"\n") {
		t.Error("the metrics lack the top-ups")
	}
}

// told wants the wallet's records in the outbox to carry these totals, in order,
// and each to lie beside a grant.
func told(t *testing.T, db *sql.DB, totals []int64) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT aggregateid, payload FROM outbox WHERE aggregateid LIKE 'wallet/%' OR aggregateid LIKE 'grant/%' ORDER BY version, aggregateid DESC`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	decoder := rulesv1.NewDecoder(wire.NewIDs(schemaByID{}, rulesv1.Subject))
	var got []int64
	grants := 0
	for rows.Next() {
		var key string
		var payload []byte
		if err := rows.Scan(&key, &payload); err != nil {
			t.Fatal(err)
		}
		r, err := decoder.Decode(t.Context(), []byte(key), payload)
		switch {
		case err != nil:
			t.Fatalf("%s: %v", key, err)
		case r.Wallet != nil:
			got = append(got, r.Wallet.GrantedTotal)
		case r.Grant != nil:
			grants++
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(totals) || grants != len(totals) {
		t.Errorf("told the totals %v and %d grants, want %v and %d", got, grants, totals, len(totals))
	}
}
