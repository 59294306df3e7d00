//go:build integration

package postgres_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/postgres"
	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/pgtest"
)

// A rig is the books on a database of their own, and what is written to them.
type rig struct {
	*postgres.Store
	t    *testing.T
	url  string
	conn *pgx.Conn

	version int64
	serial  uint64 // of ids
	streams map[metering.ID]int64
	offset  map[int32]int64
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, url: pgtest.Database(t), streams: map[metering.ID]int64{}, offset: map[int32]int64{}}
	r.Store = r.open(0)
	var err error
	if r.conn, err = pgx.Connect(t.Context(), r.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close(context.WithoutCancel(t.Context())) })
	r.exec(`SET search_path = billing`)
	return r
}

// open returns another process on the same books.
func (r *rig) open(grace time.Duration) *postgres.Store {
	r.t.Helper()
	s, err := postgres.Open(r.t.Context(), postgres.Config{URL: r.url, MaxConns: 8, Issuer: "penstock", Prefix: "INV", Grace: grace}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	if err := s.Prepare(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// at is an instant of a test.
func at(t *testing.T, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return v.UTC()
}

func (r *rig) learn(when time.Time, changes ...catalog.Change) {
	r.t.Helper()
	for i := range changes {
		r.version++
		changes[i].Version, changes[i].At = r.version, when
	}
	if err := r.Learn(r.t.Context(), changes, when); err != nil {
		r.t.Fatal(err)
	}
}

func tenant(id, plan, zone string) catalog.Change {
	return catalog.Change{Kind: catalog.KindTenant, ID: id, Tenant: &catalog.Tenant{Name: id, Plan: plan, Zone: zone, Currency: "USD"}}
}

// gold costs 99.00 a month with 100 calls in it, then 0.10 each for 400, then 0.05.
func gold(t *testing.T) catalog.Change {
	t.Helper()
	return plan(t, "gold", 9900, 100, "0.10", "0.05")
}

func plan(t *testing.T, id string, fee, included int64, first, rest string) catalog.Change {
	t.Helper()
	p := rating.Plan{
		Name: id, Fee: money.Amount{Minor: fee, Currency: "USD"}, Period: "month", Included: map[string]int64{"api-calls": included},
		Steps: map[string][]rating.Step{},
	}
	if first != "" {
		p.Steps["api-calls"] = []rating.Step{{UpTo: 400, Price: price(t, first)}, {Price: price(t, rest)}}
	}
	return catalog.Change{Kind: catalog.KindPlan, ID: id, Plan: &p}
}

func price(t *testing.T, s string) money.Price {
	t.Helper()
	p, err := money.ParsePrice(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// id is a UUIDv7 of an instant, unlike every other of the rig.
func (r *rig) id(when time.Time) metering.ID {
	r.serial++
	var id metering.ID
	binary.BigEndian.PutUint64(id[:8], uint64(when.UnixMilli())<<16|7<<12)
	binary.BigEndian.PutUint64(id[8:], 2<<62|r.serial)
	return id
}

// event is a call of a tenant that passed, the next of a stream of its partition.
func (r *rig) event(tenant string, when time.Time, cost int64) metering.Event {
	id := r.id(when)
	stream := metering.ID{1}
	r.streams[stream]++
	return metering.Event{
		ID: id, Decision: id, Stream: stream, Sequence: r.streams[stream], At: when, Arrived: when, Verdict: metering.Allow, Status: 200,
		Tenant: tenant, Application: "web", APIKey: tenant + "-1", Service: "payments", Endpoint: "pay", Cost: cost,
	}
}

// corrects makes an event a correction of another's decision.
func corrects(e, of metering.Event, v metering.Verdict, cost int64) metering.Event {
	e.Decision, e.Verdict, e.Cost, e.Status = of.Decision, v, cost, 0
	return e
}

// count counts events as one batch and returns what became of them.
func (r *rig) count(now time.Time, events ...metering.Event) metering.Result {
	r.t.Helper()
	return r.countBy(r.Store, now, events...)
}

func (r *rig) countBy(s *postgres.Store, now time.Time, events ...metering.Event) metering.Result {
	r.t.Helper()
	var read []metering.Position
	last := map[int32]int{}
	for _, e := range events {
		i, known := last[e.Partition]
		if !known {
			i = len(read)
			last[e.Partition] = i
			read = append(read, metering.Position{Partition: e.Partition, First: r.offset[e.Partition]})
		}
		r.offset[e.Partition]++
		read[i].Next, read[i].At = r.offset[e.Partition], e.Arrived
	}
	result, err := s.Count(r.t.Context(), events, read, now)
	if err != nil {
		r.t.Fatal(err)
	}
	return result
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.conn.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](r *rig, sql string, args ...any) []T {
	r.t.Helper()
	rows, err := r.conn.Query(r.t.Context(), sql, args...)
	if err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func (r *rig) finalize(now time.Time) int {
	r.t.Helper()
	n, err := r.Finalize(r.t.Context(), now)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) log() *slog.Logger { return slog.New(slog.DiscardHandler) }
