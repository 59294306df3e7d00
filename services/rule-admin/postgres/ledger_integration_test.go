//go:build integration

package postgres_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
	"penstock.dev/services/rule-admin/ledger"
	"penstock.dev/services/rule-admin/ledger/ledgertest"
	"penstock.dev/services/rule-admin/postgres"
)

// encodeEntry stands for the adapter that knows the schema.
func encodeEntry(e *ledger.Entry, _ catalog.Moment) ([]catalog.Record, error) {
	wallet := e.Wallet.Tenant + ":" + e.Wallet.Meter
	return []catalog.Record{
		{Topic: "rules.v1", Key: "wallet/" + wallet, Type: "wallet.changed", Payload: fmt.Append(nil, e.Wallet.Granted)},
		{Topic: "rules.v1", Key: "grant/" + e.TopUp.ID, Type: "grant.changed", Payload: fmt.Append(nil, e.TopUp.Units)},
	}, nil
}

// openBooks returns the books of a database of their own, with the tenant acme.
func openBooks(t *testing.T) (*postgres.Ledger, *catalog.Catalog, *pgx.Conn) {
	t.Helper()
	s, conn := open(t, postgres.Config{}, encode)
	c := catalog.New(s, rand.Reader, condition.Compile)
	catalogtest.Put(t, c, catalog.KindTenant, "acme", `{}`, catalog.Condition{})
	return s.Ledger(encodeEntry), c, conn
}

func request(t *testing.T, key string, units int64) ledger.Request {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Request{
		Tenant: "acme", Key: key, Meter: "credits", Units: units, ID: id.String(), Caller: catalogtest.Caller, RequestID: "r-" + key,
	}
}

func silent(string, error) {}

// TestIntegrationLedger guarantees what a top-up and its end leave in the
// database: the row, the wallet, both records under one revision, and an audit
// entry under the id of the top-up's record.
func TestIntegrationLedger(t *testing.T) {
	t.Parallel()
	books, c, conn := openBooks(t)
	counters := ledgertest.NewCounters()
	l := ledger.New(books, counters, silent)
	first := request(t, "a", 100)
	first.ExpiresAt = time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	made, replayed, err := l.TopUp(t.Context(), first)
	if err != nil || replayed || made.GrantedTotal != 100 || made.Revision != 2 || !made.ExpiresAt.Equal(first.ExpiresAt) {
		t.Fatalf("%+v, %v, %v", made, replayed, err)
	}
	if again, replayed, err := l.TopUp(t.Context(), first); err != nil || !replayed || again != made {
		t.Errorf("again %+v, %v, %v, want %+v", again, replayed, err, made)
	}
	counters.Set("acme", "credits", limit.Totals{Consumed: 30})
	second := request(t, "b", 7)
	if _, _, err := l.TopUp(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `UPDATE topups SET expires_at = now() WHERE key = 'a'`)
	if overdue, err := l.ExpireDue(t.Context()); overdue != 0 || err != nil {
		t.Fatal(overdue, err)
	}
	for what, want := range map[string][]string{
		`SELECT concat_ws(' ', key, units, granted_total, revision, spent, expired_units, expired_at IS NOT NULL) FROM topups ORDER BY revision`:                    {"a 100 100 2 30 70 t", "b 7 107 3 0 0 f"},
		`SELECT concat_ws(' ', tenant, meter, granted_total, version, consumed, refunded, owed) FROM wallets`:                                                       {"acme credits 37 4 30 0 0"},
		`SELECT concat_ws(' ', version, aggregateid, convert_from(payload, 'UTF8')) FROM outbox WHERE version > 1 AND aggregateid LIKE 'wallet/%' ORDER BY version`: {"2 wallet/acme:credits 100", "3 wallet/acme:credits 107", "4 wallet/acme:credits 37"},
		`SELECT concat_ws(' ', version, aggregateid) FROM outbox WHERE version > 1 AND aggregateid LIKE 'grant/%' ORDER BY version`:                                 {"2 grant/" + first.ID, "3 grant/" + second.ID, "4 grant/" + first.ID},
		`SELECT concat_ws(' ', a.revision, a.role, a.action, a.object_id, a.request_id, o.type) FROM audit a JOIN outbox o USING (id) WHERE kind = 'topup' ORDER BY a.revision`: {
			"2 admin create " + first.ID + " r-a grant.changed", "3 admin create " + second.ID + " r-b grant.changed",
			"4 system replace " + first.ID + " expiry grant.changed",
		},
	} {
		if got := query[string](t, conn, what); !slices.Equal(got, want) {
			t.Errorf("%s\n= %q, want %q", what, got, want)
		}
	}
	counting, err := books.Counting(t.Context(), "", 10, "acme")
	if err != nil || counting.Granted["acme"]["credits"] != 37 || len(counting.Granted) != 1 {
		t.Errorf("granted %v, %v, want 37", counting.Granted, err)
	}
	entries, err := books.Audit(t.Context(), catalog.Search{Kind: catalog.KindTopUp, Most: 10})
	if err != nil || len(entries) != 3 || !strings.Contains(string(entries[0].Before), `"granted_total":100`) || !strings.Contains(string(entries[0].After), `"expired_units":70`) {
		t.Errorf("audit %+v, %v", entries, err)
	}

	page, err := l.List(t.Context(), "acme", 0, 1)
	if err != nil || len(page) != 1 || page[0].ID != second.ID {
		t.Errorf("the first page is %+v, %v", page, err)
	}
	page, err = l.List(t.Context(), "acme", page[0].Revision, 10)
	if err != nil || len(page) != 1 || page[0].ID != first.ID || page[0].ExpiredUnits != 70 {
		t.Errorf("the next page is %+v, %v", page, err)
	}
	if _, err := l.List(t.Context(), "nobody", 0, 1); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("top-ups of nobody: %v", err)
	}
	if err := c.Delete(t.Context(), catalog.Removal{Kind: catalog.KindTenant, ID: "acme", Caller: catalogtest.Caller}); err != nil {
		t.Fatal(err)
	}
	if page, err = l.List(t.Context(), "acme", 0, 10); err != nil || len(page) != 2 {
		t.Errorf("of a tenant that is gone: %+v, %v, want both", page, err)
	}
	if _, _, err := l.TopUp(t.Context(), request(t, "c", 1)); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("a top-up for a tenant that is gone: %v", err)
	}
	if again, replayed, err := l.TopUp(t.Context(), first); err != nil || !replayed || again.ID != first.ID {
		t.Errorf("a key of a tenant that is gone: %+v, %v, %v, want the first answer", again, replayed, err)
	}
}

// TestIntegrationUniqueKey guarantees that the constraint alone keeps a key to
// one top-up: a turn that does not look for the first writes nothing at all.
func TestIntegrationUniqueKey(t *testing.T) {
	t.Parallel()
	books, _, conn := openBooks(t)
	blind := func(key string) error {
		return books.Turn(t.Context(), "acme", "credits", "", func(b ledger.Books, at catalog.Moment) (*ledger.Entry, error) {
			r := request(t, key, 100)
			w := b.Wallet
			w.Granted += 100
			return &ledger.Entry{
				TopUp: ledger.TopUp{ID: r.ID, Tenant: "acme", Meter: "credits", Units: 100, GrantedTotal: w.Granted, GrantedAt: at.Now, Revision: at.Revision},
				Key:   key, Asked: []byte{1}, Wallet: w, Caller: r.Caller,
			}, nil
		})
	}
	for range 2 {
		if err := blind(fmt.Sprint(time.Now().UnixNano())); err != nil {
			t.Fatal(err)
		}
	}
	if err := blind("k"); err != nil {
		t.Fatal(err)
	}
	const state = `SELECT concat_ws(' ', (SELECT count(*) FROM topups), (SELECT granted_total FROM wallets), (SELECT count(*) FROM outbox),
		(SELECT count(*) FROM audit), (SELECT value FROM revision))`
	before := query[string](t, conn, state)
	for range 3 {
		var refused *pgconn.PgError
		if err := blind("k"); !errors.As(err, &refused) || refused.ConstraintName != "topups_key" {
			t.Errorf("the key again: %v, want topups_key to refuse it", err)
		}
	}
	if after := query[string](t, conn, state); !slices.Equal(before, after) || !slices.Equal(after, []string{"3 300 7 4 4"}) {
		t.Errorf("the books went from %q to %q, want them unchanged", before, after)
	}
	if err := blind("l"); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}

// TestIntegrationTopUpsAtOnce guarantees that top-ups with different keys at
// once add up, also where no lock and no instance keeps them apart.
func TestIntegrationTopUpsAtOnce(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	catalogtest.Put(t, catalog.New(s, rand.Reader, condition.Compile), catalog.KindTenant, "acme", `{}`, catalog.Condition{})
	other, _ := open(t, postgres.Config{URL: conn.Config().ConnString()}, encode)
	const each = 20
	failed := make(chan error, 2*each)
	for i := range 2 * each {
		l := ledger.New([]*postgres.Store{s, other}[i%2].Ledger(encodeEntry), nil, silent)
		r := request(t, fmt.Sprint(i), 5)
		go func() {
			_, _, err := l.TopUp(t.Context(), r)
			failed <- err
		}()
	}
	for range 2 * each {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	got := query[string](t, conn, `SELECT concat_ws(' ', (SELECT granted_total FROM wallets), (SELECT max(granted_total) FROM topups), (SELECT count(DISTINCT granted_total) FROM topups))`)
	if !slices.Equal(got, []string{"200 200 40"}) {
		t.Errorf("granted, the last total and totals are %q, want 200 200 40", got)
	}
}

// TestIntegrationFailedTurn guarantees that nothing is left of a turn whose
// records cannot be written.
func TestIntegrationFailedTurn(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	catalogtest.Put(t, catalog.New(s, rand.Reader, condition.Compile), catalog.KindTenant, "acme", `{}`, catalog.Condition{})
	l := ledger.New(s.Ledger(func(*ledger.Entry, catalog.Moment) ([]catalog.Record, error) { return nil, catalog.ErrNoSchema }), nil, silent)
	if _, _, err := l.TopUp(t.Context(), request(t, "k", 5)); !errors.Is(err, catalog.ErrNoSchema) {
		t.Errorf("without a schema: %v", err)
	}
	if got := query[string](t, conn, `SELECT concat_ws(' ', (SELECT count(*) FROM topups), (SELECT count(*) FROM wallets), (SELECT value FROM revision))`); !slices.Equal(got, []string{"0 0 1"}) {
		t.Errorf("left are %q, want nothing", got)
	}
}

// TestIntegrationWalletCounters guarantees which counters are a wallet's: the one
// that counts everywhere, and those of the services and endpoints that a prepaid,
// enforced rule of its meter counts alone.
func TestIntegrationWalletCounters(t *testing.T) {
	t.Parallel()
	books, c, _ := openBooks(t)
	catalogtest.Put(t, c, catalog.KindTenant, "globex", `{}`, catalog.Condition{})
	catalogtest.Put(t, c, catalog.KindService, "payments", `{"upstream":"http://127.0.0.1:9001","path_prefix":"/payments"}`, catalog.Condition{})
	catalogtest.Put(t, c, catalog.KindEndpoint, "pay", `{"service":"payments","path":"/pay"}`, catalog.Condition{})
	for id, rest := range map[string]string{
		"everywhere": `"match":{"tenant":"acme"},"meter":"credits"`, "all": `"meter":"credits"`,
		"service": `"match":{"service":"payments"},"meter":"credits"`, "endpoint": `"match":{"service":"payments","endpoint":"pay"},"meter":"credits"`,
		"endpoint-2": `"match":{"endpoint":"pay"},"meter":"credits","priority":1`,
		"shadow":     `"match":{"service":"payments"},"meter":"tokens","mode":"shadow"`, "theirs": `"match":{"tenant":"globex","service":"payments"},"meter":"tokens"`,
		"default": `"match":{"service":"payments"}`,
	} {
		catalogtest.Put(t, c, catalog.KindRule, id, `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],`+rest+`}`, catalog.Condition{})
	}
	for meter, want := range map[string][]string{"credits": {"", "pay", "payments"}, "tokens": {""}, "api-calls": {"", "payments"}} {
		ids, err := books.Counters(t.Context(), "acme", meter)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, id := range ids {
			if id.Kind != rule.Wallet || id.Subject != rule.Tenant || id.Tenant != "acme" || id.Meter != meter || id.Shadow {
				t.Errorf("%+v is no counter of acme's %s", id, meter)
			}
			got = append(got, id.Service+id.Endpoint)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s is counted at %q, want %q", meter, got, want)
		}
	}
}

// TestIntegrationTopUpOfRenewable guarantees that a top-up which no wallet
// would sell is refused: where every wallet rule of the tenant and the meter is
// renewable. Before there is a rule it is taken.
func TestIntegrationTopUpOfRenewable(t *testing.T) {
	t.Parallel()
	books, c, _ := openBooks(t)
	for _, id := range []string{"gold", "free"} {
		catalogtest.Put(t, c, catalog.KindPlan, id, `{}`, catalog.Condition{})
	}
	catalogtest.Put(t, c, catalog.KindTenant, "acme", `{"plan":"gold"}`, catalog.Condition{Any: true, Given: true})
	catalogtest.Put(t, c, catalog.KindTenant, "globex", `{}`, catalog.Condition{})
	const renewable, prepaid = `"wallet":"renewable","limit":5,"period":{"unit":"month"}`, `"wallet":"prepaid"`
	for id, rest := range map[string]string{
		"renews": renewable + `,"meter":"monthly","match":{"tenant":"acme"}`, "renews-too": renewable + `,"meter":"monthly"`,
		"of-plan": renewable + `,"meter":"planned","match":{"plan":"gold"}`, "of-another": prepaid + `,"meter":"planned","match":{"plan":"free"}`,
		"both": renewable + `,"meter":"mixed","match":{"tenant":"acme"}`, "both-too": prepaid + `,"meter":"mixed"`,
		"theirs":  renewable + `,"meter":"theirs","match":{"tenant":"globex"}`,
		"default": renewable,
	} {
		catalogtest.Put(t, c, catalog.KindRule, id, `{"kind":"wallet","subject":["tenant"],`+rest+`}`, catalog.Condition{})
	}
	l := ledger.New(books, nil, silent)
	for meter, refused := range map[string]bool{"monthly": true, "planned": true, "api-calls": true, "mixed": false, "theirs": false, "new": false} {
		r := request(t, meter, 5)
		r.Meter = meter
		_, _, err := l.TopUp(t.Context(), r)
		var faults *catalog.FaultError
		if refused && (!errors.As(err, &faults) || faults.Faults[0].Field != "meter") || !refused && err != nil {
			t.Errorf("%s: %v, want refused: %v", meter, err, refused)
		}
	}
}

// tooMuch is a plan that reads what it does not return.
var tooMuch = regexp.MustCompile(`Seq Scan on objects|Removed by (Filter|Index Recheck): \d{3}`)

// TestIntegrationUsageByIndex guarantees that among 20,000 tenants with a rule
// and a key each, usage and explain read none but those they are about.
func TestIntegrationUsageByIndex(t *testing.T) {
	t.Parallel()
	_, conn := open(t, postgres.Config{}, encode)
	exec(t, conn, `INSERT INTO objects (kind, id, version, body, kept, changed_at, changed_by)
		SELECT 'tenant', 't' || n, n, '{}', '{}', now(), 'ops' FROM generate_series(1, 20000) AS n`)
	exec(t, conn, `INSERT INTO objects (kind, id, version, body, kept, changed_at, changed_by)
		SELECT 'rule', 'r' || n, 20000 + n, jsonb_build_object('kind', 'quota', 'subject', '["tenant"]'::jsonb, 'limit', 5, 'period', '{"unit":"day"}'::jsonb,
			'match', jsonb_build_object('tenant', 't' || n)), '{}', now(), 'ops' FROM generate_series(1, 20000) AS n`)
	exec(t, conn, `INSERT INTO objects (kind, id, version, body, kept, changed_at, changed_by)
		SELECT 'api_key', 'k' || n, 40000 + n, '{"tenant":"t1"}', jsonb_build_object('digest', 'd' || n), now(), 'ops' FROM generate_series(1, 20000) AS n`)
	exec(t, conn, `ANALYZE objects`)
	for name, tt := range map[string]struct {
		sql  string
		args []any
	}{
		"a page of usage":              {postgres.CountPage, []any{"t7", 100}},
		"the usage of one":             {postgres.CountTenant, []any{"t7", 1}},
		"the candidates":               {postgres.SelectCandidates, []any{"t7", "a", "u", "k", "p", "s", "e", "r9", 100}},
		"a key":                        {postgres.SelectKey, []any{"d7"}},
		"what is near":                 {postgres.SelectNear, []any{"t7", "s"}},
		"and not this, which has none": {`SELECT * FROM objects WHERE body ->> 'name' = $1`, []any{"x"}},
	} {
		plan := strings.Join(query[string](t, conn, `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) `+tt.sql, tt.args...), "\n")
		if none := strings.Contains(name, "has none"); tooMuch.MatchString(plan) != none {
			t.Errorf("%s is served by\n%s", name, plan)
		}
	}
}
