//go:build integration

package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/pgtest"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
	"penstock.dev/services/rule-admin/postgres"
)

// encode stands for the adapter that knows the schema.
func encode(c catalog.Change, _ catalog.Moment) (catalog.Record, error) {
	if c.After == nil {
		return catalog.Record{Topic: "rules.v1", Key: string(c.Before.Kind) + "/" + c.Before.ID, Type: string(c.Before.Kind) + ".deleted"}, nil
	}
	return catalog.Record{
		Topic: "rules.v1", Key: string(c.After.Kind) + "/" + c.After.ID, Type: string(c.After.Kind) + ".changed", Payload: []byte(c.After.ID),
	}, nil
}

// open returns a store on a database of its own, and a connection to it.
func open(t *testing.T, cfg postgres.Config, enc postgres.Encode) (*postgres.Store, *pgx.Conn) {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = pgtest.Database(t)
	}
	s, err := postgres.Open(t.Context(), cfg, enc, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), cfg.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return s, conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) []T {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// TestIntegrationStore guarantees that PostgreSQL keeps a catalogue as any store
// must.
func TestIntegrationStore(t *testing.T) {
	t.Parallel()
	catalogtest.Conform(t, condition.Compile, func(t *testing.T) catalogtest.Store {
		s, _ := open(t, postgres.Config{}, encode)
		return s
	})
}

// TestIntegrationOutbox guarantees what a relay, ours or Debezium, reads: one
// row for each change, in the order of the commits, with key, type, payload and
// version, NULL for a tombstone, under the id that the audit has, and a
// publication of inserts alone.
func TestIntegrationOutbox(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	c := catalog.New(s, rand.Reader, condition.Compile)
	catalogtest.Put(t, c, catalog.KindTenant, "acme", `{}`, catalog.Condition{})
	catalogtest.Put(t, c, catalog.KindTenant, "acme", `{"name":"Acme"}`, catalogtest.Any)
	if err := c.Delete(t.Context(), catalog.Removal{Kind: catalog.KindTenant, ID: "acme", Caller: catalogtest.Caller}); err != nil {
		t.Fatal(err)
	}
	got := query[string](t, conn, `SELECT concat_ws(' ', o.aggregatetype, o.aggregateid, o.type, o.version, coalesce(encode(o.payload, 'escape'), 'NULL'))
		FROM outbox o JOIN audit a ON a.id = o.id AND a.revision = o.version ORDER BY o.version`)
	want := []string{
		"rules.v1 tenant/acme tenant.changed 1 acme",
		"rules.v1 tenant/acme tenant.changed 2 acme",
		"rules.v1 tenant/acme tenant.deleted 3 NULL",
	}
	if !slices.Equal(got, want) {
		t.Errorf("outbox holds %q, want %q", got, want)
	}
	publication := query[string](t, conn, `SELECT concat_ws(' ', t.tablename, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate)
		FROM pg_publication p JOIN pg_publication_tables t USING (pubname) WHERE pubname = 'penstock_outbox'`)
	if want := []string{"outbox t f f f"}; !slices.Equal(publication, want) {
		t.Errorf("publication is %q, want %q", publication, want)
	}
	columns := query[string](t, conn, `SELECT column_name || ' ' || data_type FROM information_schema.columns WHERE table_name = 'outbox' ORDER BY ordinal_position`)
	if want := []string{
		"id uuid", "aggregatetype character varying", "aggregateid character varying", "type character varying", "payload bytea",
		"version bigint", "created_at timestamp with time zone",
	}; !slices.Equal(columns, want) {
		t.Errorf("columns are %q, want %q", columns, want)
	}
}

// state is everything a change touches.
func state(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return query[string](t, conn, `SELECT concat_ws(' | ',
		(SELECT value FROM revision),
		(SELECT string_agg(kind || '/' || id || ' ' || version || ' ' || body, ',' ORDER BY kind, id) FROM objects),
		(SELECT string_agg(id || ' ' || field || ' ' || ref_id, ',' ORDER BY id, field) FROM object_refs),
		(SELECT string_agg(aggregateid || ' ' || version, ',' ORDER BY version) FROM outbox),
		(SELECT string_agg(object_id || ' ' || revision, ',' ORDER BY revision) FROM audit))`)[0]
}

// TestIntegrationAllOrNothing guarantees that a change which is cut off at any
// step, the commit included, leaves no trace, and that the next one goes
// through.
func TestIntegrationAllOrNothing(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	c := catalog.New(s, rand.Reader, condition.Compile)
	catalogtest.Seed(t, c)

	kill := `PERFORM pg_terminate_backend(pg_backend_pid());`
	refuse := `RAISE EXCEPTION 'cut off';`
	for _, table := range []string{"revision", "objects", "object_refs", "outbox", "audit"} {
		for _, how := range []struct{ name, body, when string }{
			{"an error before the row", refuse, "BEFORE"},
			{"an error after the row", refuse, "AFTER"},
			{"a lost connection", kill, "AFTER"},
			{"a failed commit", refuse, "CONSTRAINT"},
			{"a connection lost in the commit", kill, "CONSTRAINT"},
		} {
			exec(t, conn, `CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+how.body+` RETURN NEW; END $$`)
			trigger := `CREATE TRIGGER cut ` + how.when + ` INSERT OR UPDATE ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION cut()`
			if how.when == "CONSTRAINT" {
				trigger = `CREATE CONSTRAINT TRIGGER cut AFTER INSERT OR UPDATE ON ` + table + ` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cut()`
			}
			exec(t, conn, trigger)
			before := state(t, conn)
			_, err := c.Put(t.Context(), catalog.Put{
				Kind: catalog.KindRule, ID: "web-key", Text: []byte(`{"kind":"block","match":{"tenant":"acme"}}`), Condition: catalogtest.Any,
			})
			if err == nil {
				t.Errorf("%s on %s: the change went through", how.name, table)
			}
			if after := state(t, conn); after != before {
				t.Errorf("%s on %s left\n%s\nwhere there was\n%s", how.name, table, after, before)
			}
			exec(t, conn, `DROP FUNCTION cut() CASCADE`)
		}
	}
	catalogtest.Put(t, c, catalog.KindRule, "web-key", `{"kind":"block","match":{"tenant":"acme"}}`, catalogtest.Any)

	failing, _ := open(t, postgres.Config{URL: conn.Config().ConnString()}, func(catalog.Change, catalog.Moment) (catalog.Record, error) {
		return catalog.Record{}, catalog.ErrNoSchema
	})
	before := state(t, conn)
	_, err := catalog.New(failing, rand.Reader, condition.Compile).Put(t.Context(), catalog.Put{Kind: catalog.KindTenant, ID: "new", Text: []byte(`{}`)})
	if !errors.Is(err, catalog.ErrNoSchema) || state(t, conn) != before {
		t.Errorf("without a schema id: %v, want %v and no trace", err, catalog.ErrNoSchema)
	}
}

// TestIntegrationDatabaseRefusesDeletion guarantees that the database itself
// refuses to lose what others refer to, whoever asks.
func TestIntegrationDatabaseRefusesDeletion(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	catalogtest.Seed(t, catalog.New(s, rand.Reader, condition.Compile))
	_, err := conn.Exec(t.Context(), `DELETE FROM objects WHERE kind = 'tenant' AND id = 'acme'`)
	if err == nil || !strings.Contains(err.Error(), "object_refs_in_use") {
		t.Errorf("DELETE = %v, want object_refs_in_use to refuse it", err)
	}
}

// TestIntegrationAuditIsAppendOnly guarantees that no statement changes an
// entry.
func TestIntegrationAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	catalogtest.Seed(t, catalog.New(s, rand.Reader, condition.Compile))
	for _, sql := range []string{`UPDATE audit SET actor = 'nobody'`, `DELETE FROM audit`, `TRUNCATE audit`} {
		if _, err := conn.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s = %v, want it refused", sql, err)
		}
	}
	if n := query[int64](t, conn, `SELECT count(*) FROM audit`)[0]; n != int64(len(catalogtest.Samples)) {
		t.Errorf("%d entries are left, want %d", n, len(catalogtest.Samples))
	}
}

// TestIntegrationPrune guarantees what leaves the outbox: rows that are old and
// replaced, and old tombstones once nothing older of their key is left; never
// the newest row of an object that is there.
func TestIntegrationPrune(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{Keep: time.Hour}, encode)
	add := func(key string, version int, payload any, age time.Duration) {
		t.Helper()
		exec(t, conn, `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, version, created_at)
			VALUES (gen_random_uuid(), 'rules.v1', $1, 'x', $2, $3, now() - $4::interval)`, key, payload, version, age)
	}
	body := []byte("x")
	add("kept", 1, body, 100*time.Hour) // the newest of its key, however old
	add("replaced", 2, body, 3*time.Hour)
	add("replaced", 3, body, 2*time.Hour)
	add("replaced", 4, body, time.Minute)
	add("young", 5, body, 50*time.Minute) // replaced, and not old
	add("young", 6, body, time.Minute)
	add("gone", 7, body, 4*time.Hour)
	add("gone", 8, nil, 3*time.Hour)
	add("goneyoung", 9, body, 4*time.Hour)
	add("goneyoung", 10, nil, time.Minute)
	add("back", 11, body, 4*time.Hour)
	add("back", 12, nil, 3*time.Hour)
	add("back", 13, body, 2*time.Hour)
	// An old row that came late, e.g. by a restored copy: its tombstone has to wait.
	add("late", 14, body, time.Minute)
	add("late", 15, nil, 3*time.Hour)

	rows, pending, err := s.OutboxRows(t.Context())
	if err != nil || rows != 15 || pending != 6 {
		t.Errorf("OutboxRows = %d, %d, %v, want 15 rows and 6 to prune at once", rows, pending, err)
	}
	n, err := s.Prune(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := query[int64](t, conn, `SELECT version FROM outbox ORDER BY version`)
	if want := []int64{1, 4, 5, 6, 10, 13, 14, 15}; !slices.Equal(left, want) || n != 7 {
		t.Errorf("pruned %d, left %v, want 7 and %v", n, left, want)
	}
	if rows, pending, err = s.OutboxRows(t.Context()); err != nil || rows != 8 || pending != 0 {
		t.Errorf("OutboxRows = %d, %d, %v, want 8 and none to prune", rows, pending, err)
	}
}

// TestIntegrationPruneNeverRevives guarantees that a relay which re-reads the
// outbox at any moment of its pruning, in the order of versions, ends with the
// objects that are there.
func TestIntegrationPruneNeverRevives(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{Keep: time.Nanosecond}, encode)
	c := catalog.New(s, rand.Reader, condition.Compile)
	changes := make(chan struct{})
	var pruner sync.WaitGroup
	pruner.Go(func() {
		for range changes { // while the next change is made
			if _, err := s.Prune(t.Context()); err != nil {
				t.Errorf("Prune = %v", err)
			}
		}
	})
	there := map[string]bool{}
	for i := range 150 {
		changes <- struct{}{}
		id := fmt.Sprintf("t%d", i%7)
		gone := there[id] && i%3 == 0
		if gone {
			if err := c.Delete(t.Context(), catalog.Removal{Kind: catalog.KindTenant, ID: id}); err != nil {
				t.Fatal(err)
			}
		} else {
			catalogtest.Put(t, c, catalog.KindTenant, id, `{}`, catalogtest.Any)
		}
		there[id] = !gone
		replayed := query[string](t, conn, `SELECT aggregateid FROM (
			SELECT DISTINCT ON (aggregateid) aggregateid, payload FROM outbox ORDER BY aggregateid, version DESC) newest WHERE payload IS NOT NULL ORDER BY 1`)
		objects := query[string](t, conn, `SELECT kind || '/' || id FROM objects ORDER BY 1`)
		if !slices.Equal(replayed, objects) {
			t.Fatalf("after change %d the outbox replays to %q, and the objects are %q", i, replayed, objects)
		}
	}
	close(changes)
	pruner.Wait()
}

// TestIntegrationPrepare guarantees that instances which start together on an
// empty database all come up, and that starting again changes nothing.
func TestIntegrationPrepare(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := postgres.Open(t.Context(), postgres.Config{URL: url}, encode, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = s.Close() }()
			if err := s.Ready(t.Context()); err == nil {
				t.Error("ready before the tables were prepared")
			}
			if _, err := s.Object(t.Context(), catalog.KindTenant, "acme"); !errors.Is(err, catalog.ErrUnavailable) {
				t.Errorf("Object before the tables = %v, want unavailable", err)
			}
			if err := s.Prepare(t.Context()); err != nil {
				t.Errorf("Prepare = %v", err)
			}
			if err := s.Ready(t.Context()); err != nil {
				t.Errorf("Ready = %v", err)
			}
		})
	}
	wg.Wait()
}

// waitUntil asks until the answer is yes, for at most 20 s.
func waitUntil(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !yes(); {
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s it is not so that %s", what)
		}
	}
}

// TestIntegrationAway guarantees that a database that goes away is unavailable,
// never a wrong answer, within the time a caller gives; and that the same store
// serves again when it is back, with nothing lost.
func TestIntegrationAway(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	s, _ := open(t, postgres.Config{URL: server.URL}, encode)
	c := catalog.New(s, rand.Reader, condition.Compile)
	catalogtest.Put(t, c, catalog.KindTenant, "acme", `{}`, catalog.Condition{})
	calls := map[string]func(ctx context.Context) error{
		"Object": func(ctx context.Context) error { _, err := c.Object(ctx, catalog.KindTenant, "acme"); return err },
		"List":   func(ctx context.Context) error { _, err := c.List(ctx, catalog.KindTenant, "", 1); return err },
		"Audit":  func(ctx context.Context) error { _, err := s.Audit(ctx, catalog.Search{Most: 1}); return err },
		"Put": func(ctx context.Context) error {
			_, err := c.Put(ctx, catalog.Put{Kind: catalog.KindTenant, ID: "acme", Text: []byte(`{}`), Condition: catalogtest.Any})
			return err
		},
		"Delete": func(ctx context.Context) error {
			return c.Delete(ctx, catalog.Removal{Kind: catalog.KindTenant, ID: "none"})
		},
		"Prune": func(ctx context.Context) error { _, err := s.Prune(ctx); return err },
	}
	away := func(how string) {
		t.Helper()
		for name, call := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if err := call(ctx); !errors.Is(err, catalog.ErrUnavailable) {
				t.Errorf("%s with the database %s = %v, want unavailable", name, how, err)
			}
			cancel()
		}
	}
	server.Kill()
	// Backends outlive their postmaster by a moment, and may still answer.
	waitUntil(t, "the last backend is gone", func() bool { return s.Ready(t.Context()) != nil })
	away("killed")
	if err := s.Ready(t.Context()); err == nil {
		t.Error("ready without a database")
	}
	server.Restart()
	waitUntil(t, "the store serves again", func() bool {
		_, err := c.Object(t.Context(), catalog.KindTenant, "acme")
		return err == nil
	})
	for name, call := range calls {
		if err := call(t.Context()); err != nil && !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("%s with the database back = %v", name, err)
		}
	}
}

// TestIntegrationHeldLock guarantees that a writer which hangs in the middle of
// a change does not stop the others for good: the database ends it, and callers
// that do not wait as long are told that it is unavailable.
func TestIntegrationHeldLock(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	_, watch := open(t, postgres.Config{URL: conn.Config().ConnString()}, encode) // a transaction sees one moment's activity
	c := catalog.New(s, rand.Reader, condition.Compile)
	exec(t, conn, `BEGIN`)
	exec(t, conn, `UPDATE revision SET value = value`)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := c.Put(ctx, catalog.Put{Kind: catalog.KindTenant, ID: "acme", Text: []byte(`{}`)})
	if !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("Put behind a held lock = %v, want unavailable", err)
	}
	var writers sync.WaitGroup
	for i := range 50 { // more than there are connections
		writers.Go(func() { catalogtest.Put(t, c, catalog.KindTenant, fmt.Sprintf("w%d", i), `{}`, catalog.Condition{}) })
	}
	waitUntil(t, "a change waits in the database", func() bool {
		return query[bool](t, watch, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())`)[0]
	})
	if _, err := c.List(t.Context(), catalog.KindTenant, "", 1); err != nil {
		t.Errorf("List behind a held lock = %v: reads never wait", err)
	}
	exec(t, conn, `ROLLBACK`)
	writers.Wait()
	catalogtest.Put(t, c, catalog.KindTenant, "acme", `{}`, catalog.Condition{})
}

// TestIntegrationSchemaID guarantees that the registry's id outlives the
// process, for one text of the schema.
func TestIntegrationSchemaID(t *testing.T) {
	t.Parallel()
	s, _ := open(t, postgres.Config{}, encode)
	if _, ok, err := s.SchemaID(t.Context(), "rules.v1-value", "f"); ok || err != nil {
		t.Errorf("SchemaID = %v, %v before any was kept", ok, err)
	}
	for _, want := range []uint32{7, 1<<32 - 1} {
		if err := s.KeepSchemaID(t.Context(), "rules.v1-value", "f", want); err != nil {
			t.Fatal(err)
		}
		if id, ok, err := s.SchemaID(t.Context(), "rules.v1-value", "f"); id != want || !ok || err != nil {
			t.Errorf("SchemaID = %d, %v, %v, want %d", id, ok, err, want)
		}
	}
	if _, ok, err := s.SchemaID(t.Context(), "rules.v1-value", "g"); ok || err != nil {
		t.Errorf("SchemaID of another text = %v, %v, want none", ok, err)
	}
}

// TestIntegrationTenantPeriods guarantees that the periods which depend on a
// tenant are found, and no others.
func TestIntegrationTenantPeriods(t *testing.T) {
	t.Parallel()
	s, _ := open(t, postgres.Config{}, encode)
	c := catalog.New(s, rand.Reader, condition.Compile)
	catalogtest.Put(t, c, catalog.KindTenant, "acme", `{"anchor":"2026-01-31T10:00:00Z"}`, catalog.Condition{})
	catalogtest.Put(t, c, catalog.KindTenant, "globex", `{}`, catalog.Condition{})
	quota := func(id, match, period string) {
		t.Helper()
		catalogtest.Put(t, c, catalog.KindRule, id, `{"kind":"quota","subject":["tenant"],"limit":1,"match":`+match+`,"period":`+period+`}`, catalogtest.Any)
	}
	quota("a-any", `{}`, `{"unit":"day"}`)
	quota("b-acme", `{"tenant":"acme"}`, `{"unit":"week"}`)
	quota("c-globex", `{"tenant":"globex"}`, `{"unit":"week"}`)
	quota("d-zoned", `{"tenant":"acme"}`, `{"unit":"week","zone":"UTC"}`)
	quota("e-anchor", `{"tenant":"acme"}`, `{"unit":"month","alignment":"anniversary","zone":"UTC"}`)
	quota("f-own", `{"tenant":"acme"}`, `{"unit":"month","alignment":"anniversary","zone":"UTC","anchor":"2026-01-31T10:00:00Z"}`)
	quota("g-was", `{}`, `{"unit":"month"}`)
	quota("g-was", `{}`, `{"unit":"week","zone":"UTC"}`) // carries the month as its previous period
	catalogtest.Put(t, c, catalog.KindRule, "h-rate", `{"kind":"rate","algorithm":"gcra","subject":[],"limit":1,"window":"1s"}`, catalog.Condition{})

	var got []string
	err := s.Change(t.Context(), catalog.KindTenant, "acme", nil, func(ctx context.Context, tx catalog.Tx, _ catalog.Moment, _ *catalog.Object) (catalog.Change, error) {
		periods, err := tx.TenantPeriods(ctx, "acme")
		for _, p := range periods {
			text := p.RuleID + " " + *p.Period.Unit
			if p.Previous != nil {
				text += " after " + *p.Previous.Period.Unit
			}
			if p.ChangedAt.IsZero() {
				t.Errorf("%s was never changed", text)
			}
			got = append(got, text)
		}
		return catalog.Change{}, errors.Join(err, catalog.ErrConflict)
	})
	if !errors.Is(err, catalog.ErrConflict) {
		t.Fatal(err)
	}
	if want := []string{"a-any day", "b-acme week", "e-anchor month", "g-was week after month"}; !slices.Equal(got, want) {
		t.Errorf("TenantPeriods = %q, want %q", got, want)
	}
}

// TestIntegrationRivalsAreIndexed guarantees that who else takes the requests of
// a service or an endpoint is looked up, however many there are.
func TestIntegrationRivalsAreIndexed(t *testing.T) {
	t.Parallel()
	s, conn := open(t, postgres.Config{}, encode)
	exec(t, conn, `INSERT INTO objects (kind, id, version, body, kept, changed_at, changed_by)
		SELECT kind, kind || n, 1000000 + row_number() OVER (), CASE kind
			WHEN 'endpoint' THEN jsonb_build_object('service', 'service' || n % 10, 'method', 'GET', 'path', '/' || n || '/{id}')
			ELSE jsonb_build_object('upstream', 'http://u', 'path_prefix', '/' || n) || CASE n % 2
				WHEN 0 THEN '{}' ELSE jsonb_build_object('hosts', jsonb_build_array('h' || n || '.example')) END
			END, '{}', now(), 'x'
		FROM generate_series(1, 3000) n, unnest('{service,endpoint}'::text[]) kind`)
	exec(t, conn, `ANALYZE objects`)
	c := catalog.New(s, rand.Reader, condition.Compile)
	for _, p := range []struct {
		kind     catalog.Kind
		id, text string
		rival    string
	}{
		{catalog.KindEndpoint, "e", `{"service":"service7","method":"GET","path":"/17/{name}"}`, "endpoints/endpoint17"},
		{catalog.KindService, "s", `{"upstream":"http://u","path_prefix":"/18"}`, "services/service18"},
		{catalog.KindService, "s", `{"upstream":"http://u","path_prefix":"/19","hosts":["other.example","h19.example"]}`, "services/service19"},
	} {
		_, err := c.Put(t.Context(), catalog.Put{Kind: p.kind, ID: p.id, Text: []byte(p.text)})
		if !errors.Is(err, catalog.ErrConflict) || !strings.Contains(err.Error(), p.rival) {
			t.Errorf("put %s: %v, want a conflict with %s", p.text, err, p.rival)
		}
	}
	_ = s.Close() // a connection that ends reports what it did
	waitUntil(t, "each index was used once", func() bool {
		return query[bool](t, conn, `SELECT count(*) = 3 FROM pg_stat_user_indexes
			WHERE indexrelname IN ('objects_endpoint_claims', 'objects_service_hosts', 'objects_service_prefixes') AND idx_scan = 1`)[0]
	})
}
