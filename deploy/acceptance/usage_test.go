//go:build acceptance

package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// A registry is the estate's schema registry, for reading.
type registry struct{ client *sr.Client }

// Register is not needed for reading.
func (r registry) Register(context.Context, string, string) (uint32, error) {
	return 0, errors.New("this registry is read only")
}

// Schema looks a schema up.
func (r registry) Schema(ctx context.Context, id uint32) (string, []string, error) {
	schema, err := r.client.SchemaByID(ctx, int(id))
	if err != nil {
		return "", nil, err
	}
	return schema.Schema, []string{usagev1.Subject}, nil
}

// usage reads usage.v1 from its beginning to where it ends now.
func (s system) usage() []usagev1.Event {
	s.Helper()
	client := s.broker()
	admin := kadm.NewClient(client)
	ends, err := admin.ListEndOffsets(s.Context(), usagev1.Topic)
	if err != nil {
		s.Fatal(err)
	}
	reg, err := sr.NewClient(sr.URLs(s.Env["SCHEMA_REGISTRY_URL"]))
	if err != nil {
		s.Fatal(err)
	}
	decoder := usagev1.NewDecoder(wire.NewIDs(registry{reg}, usagev1.Subject))
	left := map[int32]int64{}
	offsets := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
			offsets[o.Partition] = kgo.NewOffset().AtStart()
		}
	})
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{usagev1.Topic: offsets})
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	var events []usagev1.Event
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			s.Fatalf("usage.v1 is not read to its end: %v", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			e, err := decoder.Decode(ctx, r.Key, r.Value)
			if err != nil {
				s.Fatalf("partition %d, offset %d: %v", r.Partition, r.Offset, err)
			}
			events = append(events, e)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return events
}

// numbered fails unless every stream of events is numbered from 1 without a
// gap, and no number came with two events. Repeats of one event are left out of
// what it returns.
func (s system) numbered(events []usagev1.Event) []usagev1.Event {
	s.Helper()
	last := map[usagev1.UUID]int64{}
	seen := map[usagev1.UUID]bool{}
	var once []usagev1.Event
	for _, e := range events {
		switch n := last[e.StreamID]; {
		case e.Sequence == n+1:
			last[e.StreamID] = e.Sequence
		case e.Sequence > n+1:
			s.Errorf("stream %v: %d follows %d", e.StreamID, e.Sequence, n)
			last[e.StreamID] = e.Sequence
		}
		if !seen[e.EventID] {
			seen[e.EventID] = true
			once = append(once, e)
		}
	}
	total := int64(0)
	for _, n := range last {
		total += n
	}
	if total != int64(len(once)) {
		s.Errorf("%d distinct events under %d numbers", len(once), total)
	}
	return once
}

// recorded waits until usage.v1 has an event of every decision, and returns
// those of the tenant by decision id.
func (s system) recorded(tenant string, decisions map[string]decision) map[string]usagev1.Event {
	s.Helper()
	found := map[string]usagev1.Event{}
	s.within(time.Minute, "usage.v1 to have every decision", func() error {
		clear(found)
		for _, e := range s.numbered(s.usage()) {
			if e.Tenant == tenant {
				found[e.DecisionID.String()] = e
			}
		}
		missing := 0
		for id := range decisions {
			if _, ok := found[id]; !ok {
				missing++
			}
		}
		if missing > 0 {
			<-time.After(200 * time.Millisecond)
			return fmt.Errorf("%d of %d are missing", missing, len(decisions))
		}
		return nil
	})
	return found
}

// A caller decides again and again and keeps the answers.
type caller struct {
	mu    sync.Mutex
	given map[string]decision
	sent  atomic.Int64
}

// call asks as the tenant until ctx ends, at most once a pause.
func (c *caller) call(ctx context.Context, s system, gateway int, tenant string, pause time.Duration) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		c.sent.Add(1)
		d, err := s.ask(gateway, estate.Object{"tenant": tenant, "user": fmt.Sprintf("u%d", i%7), "cost": 1 + i%3})
		if err == nil {
			c.mu.Lock()
			c.given[d.DecisionID] = d
			c.mu.Unlock()
		}
		<-tick.C
	}
}

// answered is a copy of the answers so far.
func (c *caller) answered() map[string]decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.given)
}

// more waits until n more decisions were answered.
func (c *caller) more(s system, n int) {
	s.Helper()
	want := len(c.answered()) + n
	s.within(30*time.Second, fmt.Sprintf("%d more decisions", n), func() error {
		if got := len(c.answered()); got < want {
			return fmt.Errorf("%d are missing", want-got)
		}
		return nil
	})
}

// spoolGrows waits until a gateway has written more to disk than it has now.
func (s system) spoolGrows(base string) {
	s.Helper()
	const name = "penstock_gateway_usage_spool_bytes"
	before := s.metric(base, name)
	s.within(20*time.Second, "a gateway to spool", func() error {
		if s.metric(base, name) <= before {
			return fmt.Errorf("%.0f bytes are on disk, as before", before)
		}
		return nil
	})
}

// load calls from some callers at once while do runs.
func (s system) load(tenant string, callers int, pause time.Duration, do func(*caller)) *caller {
	c := &caller{given: map[string]decision{}}
	ctx, stop := context.WithCancel(s.Context())
	var wg sync.WaitGroup
	for w := range callers {
		wg.Go(func() { c.call(ctx, s, w%len(s.gateways()), tenant, pause) })
	}
	do(c)
	stop()
	wg.Wait()
	return c
}

// equal fails unless every answer and its event say the same, and there is no
// event without an answer beyond the allowed number of lost answers.
func (s system) equal(given map[string]decision, events map[string]usagev1.Event, lost int) {
	s.Helper()
	for id, d := range given {
		e := events[id]
		outcome := e.Decision.String()
		if d.Degraded {
			outcome = strings.TrimPrefix(outcome, "DEGRADED_")
		}
		if outcome != d.Outcome || int(e.Status) != d.Status || e.Cost != d.Cost || e.RulesVersion != d.RulesVersion {
			s.Errorf("decision %+v is told of as %+v", d, e)
			return
		}
	}
	if more := len(events) - len(given); more > lost {
		s.Errorf("%d events of decisions that nobody was answered, want at most %d", more, lost)
	}
}

// TestEveryDecisionIsOnUsage guarantees that usage.v1 has every decision once:
// allowed and refused, of both gateways, asked for and proxied, numbered without
// a gap, and that the units told of add up to what the counter holds.
func TestEveryDecisionIsOnUsage(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	quota := "quota-" + tenant
	s.put("rules", quota, monthly(tenant, 150))
	s.enforced(estate.Object{"tenant": tenant}, quota, 150)
	secret := s.key(tenant)

	c := s.load(tenant, 4, time.Millisecond, func(c *caller) {
		c.more(s, 200)
		for range 20 {
			s.send(http.MethodPost, s.Env["GATEWAY_URL"]+"/payments/v1/pay", "", "X-API-Key", secret)
		}
	})
	events := s.recorded(tenant, c.given)
	s.equal(c.given, events, 20)
	if proxied := len(events) - len(c.given); proxied != 20 {
		t.Errorf("%d events of proxied requests, want 20", proxied)
	}
	var units, consumed int64
	denied := 0
	for _, e := range events {
		if e.Decision == usagev1.DecisionDeny {
			denied++
		}
		if len(e.Counters) != 1 || e.Counters[0].RuleID != quota {
			t.Fatalf("counters of %v: %+v, want one of %s", e.EventID, e.Counters, quota)
		}
		units += e.Counters[0].Units
		consumed = max(consumed, e.Counters[0].Consumed)
	}
	_, _, used, _ := s.decided(0, estate.Object{"tenant": tenant, "cost": 0}).limit(quota)
	if units != used || consumed != used || denied == 0 {
		t.Errorf("%d units in events, %d the most consumed, %d on the counter; %d refusals, want some", units, consumed, used, denied)
	}
}

// TestUsageWaitsForKafka guarantees that a broker that is gone for seconds
// under load costs no event: they go to disk and come in order.
func TestUsageWaitsForKafka(t *testing.T) {
	s := own(t, estate.Options{Gateways: 2})
	s.put("tenants", churned, estate.Object{"name": "Churn"})
	broker := s.Process(estate.Kafka)
	c := s.load(churned, 4, 2*time.Millisecond, func(c *caller) {
		c.more(s, 500)
		if err := broker.Kill(); err != nil {
			t.Fatal(err)
		}
		s.spoolGrows(s.Env["GATEWAY_METRICS_URL"])
		s.spoolGrows(s.Env["GATEWAY_METRICS_URL_2"])
		c.more(s, 500)
		if err := broker.Restart(s.Context()); err != nil {
			t.Fatal(err)
		}
		c.more(s, 500)
	})
	s.equal(c.given, s.recorded(churned, c.given), 0)
	for _, base := range []string{"GATEWAY_METRICS_URL", "GATEWAY_METRICS_URL_2"} {
		if lost := s.metric(s.Env[base], "penstock_gateway_usage_lost_total"); lost != 0 {
			t.Errorf("%s: %v events lost", base, lost)
		}
	}
}

// TestSpoolSurvivesAKill guarantees that what a gateway has spooled while Kafka
// is away is sent by its next run, when it is killed in the middle of it: of what
// it answered, only what was younger than its last write may be missing.
func TestSpoolSurvivesAKill(t *testing.T) {
	s := own(t, estate.Options{})
	s.put("tenants", churned, estate.Object{"name": "Churn"})
	broker, gateway := s.Process(estate.Kafka), s.Process(estate.Gateway)
	var kept map[string]decision
	c := s.load(churned, 4, 2*time.Millisecond, func(c *caller) {
		c.more(s, 200)
		if err := broker.Kill(); err != nil {
			t.Fatal(err)
		}
		s.spoolGrows(s.Env["GATEWAY_METRICS_URL"])
		c.more(s, 1000)
		kept = c.answered()
		for range 2 { // the first write may have begun before
			s.spoolGrows(s.Env["GATEWAY_METRICS_URL"])
		}
		if err := gateway.Kill(); err != nil {
			t.Fatal(err)
		}
	})
	if err := errors.Join(broker.Restart(s.Context()), gateway.Restart(s.Context())); err != nil {
		t.Fatal(err)
	}
	s.equal(kept, s.recorded(churned, kept), int(c.sent.Load())-len(kept))
}

// TestGatewayEndsWithoutLoss guarantees case FC-34 of a whole process: a
// gateway that is told to stop under load delivers every decision that it
// answered.
func TestGatewayEndsWithoutLoss(t *testing.T) {
	s := own(t, estate.Options{})
	s.put("tenants", churned, estate.Object{"name": "Churn"})
	gateway := s.Process(estate.Gateway)
	c := s.load(churned, 8, time.Millisecond, func(c *caller) {
		c.more(s, 500)
		if err := gateway.Stop(s.Context()); err != nil {
			t.Error(err)
		}
	})
	if len(c.given) < 100 {
		t.Fatalf("only %d decisions were made", len(c.given))
	}
	s.equal(c.given, s.recorded(churned, c.given), 8) // an answer may be cut off on its way
}
