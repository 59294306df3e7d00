//go:build acceptance

package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/wire"
)

// announced reads what is committed on quota-events.v1, by tenant and in order.
func (s system) announced() map[string][]quotaeventsv1.Event {
	s.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.Env["KAFKA_BROKERS"], ",")...), kgo.DisableClientMetrics(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	reg, err := sr.NewClient(sr.URLs(s.Env["SCHEMA_REGISTRY_URL"]))
	if err != nil {
		s.Fatal(err)
	}
	decoder := quotaeventsv1.NewDecoder(wire.NewIDs(eventRegistry{registry{reg}}, quotaeventsv1.Subject))
	ends, err := kadm.NewClient(client).ListCommittedOffsets(s.Context(), quotaeventsv1.Topic)
	if err != nil || ends.Error() != nil {
		s.Fatal(err, ends.Error())
	}
	left, offsets := map[int32]int64{}, map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition], offsets[o.Partition] = o.Offset, kgo.NewOffset().AtStart()
		}
	})
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{quotaeventsv1.Topic: offsets})
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	events := map[string][]quotaeventsv1.Event{}
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			s.Fatalf("quota-events.v1 is not read to its end: %v", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			e, err := decoder.Decode(ctx, r.Key, r.Value)
			if err != nil {
				s.Fatalf("partition %d, offset %d: %v", r.Partition, r.Offset, err)
			}
			events[e.TenantID] = append(events[e.TenantID], e)
		})
	}
	return events
}

// An eventRegistry has the schemas of quota-events.v1.
type eventRegistry struct{ registry }

func (r eventRegistry) Schema(ctx context.Context, id uint32) (string, []string, error) {
	text, _, err := r.registry.Schema(ctx, id)
	return text, []string{quotaeventsv1.Subject}, err
}

// crossed is an event as "TYPE level@consumed/limit arm".
func crossed(e quotaeventsv1.Event) string {
	level := int32(0)
	if e.ThresholdPercent != nil {
		level = *e.ThresholdPercent
	}
	return fmt.Sprintf("%s %d@%d/%d arm %d", e.Type, level, e.Consumed, e.Limit, e.Arm)
}

// TestThresholdsOnceWhateverIsKilled guarantees that a quota of 10 with the thresholds
// 80 and 100 is announced at 8 and at 10, with the decisions that crossed them, and
// again at 16 and 20 when it was raised, each once, although the watcher is killed
// under the traffic again and again; and that a plain consumer, which cannot tell what
// is committed, reads the same by dropping repeats.
func TestThresholdsOnceWhateverIsKilled(t *testing.T) {
	s := own(t, estate.Options{Gateways: 2, Search: estate.WithoutSearch})
	tenants := make([]string, 12)
	limit := func(n int64) {
		for i, tenant := range tenants {
			rule := monthly(tenant, n)
			rule["thresholds"] = []int{80, 100}
			s.put("rules", tenant, rule)
			tenants[i] = tenant
		}
		for _, tenant := range tenants {
			s.enforced(estate.Object{"tenant": tenant}, tenant, n)
		}
	}
	for i := range tenants {
		tenants[i] = fmt.Sprintf("quota-%d", i)
		s.put("tenants", tenants[i], estate.Object{"name": tenants[i]})
	}
	causes := map[string]map[int64]string{} // by tenant, the decision that made it the n-th unit
	use := func(from, to int64) {           // a tenant at one gateway, for those of two reach the topic in any order
		for n := from; n <= to; n++ {
			for i, tenant := range tenants {
				d := s.decided(i%2, estate.Object{"tenant": tenant, "request_id": fmt.Sprintf("%s-%d", tenant, n)})
				if d.allowed() {
					_, _, consumed, _ := d.limit(tenant)
					if causes[tenant] == nil {
						causes[tenant] = map[int64]string{}
					}
					causes[tenant][consumed] = d.DecisionID
				}
				if i == len(tenants)/2 && n%5 == 0 {
					if err := s.killAndRestart(estate.Watcher); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	limit(10)
	use(1, 13) // three are refused
	limit(20)
	use(14, 26)
	want := []string{
		"THRESHOLD_REACHED 80@8/10 arm 1", "EXHAUSTED 100@10/10 arm 1", "REPLENISHED 80@*/20 arm 2", "REPLENISHED 100@*/20 arm 2",
		"THRESHOLD_REACHED 80@16/20 arm 2", "EXHAUSTED 100@20/20 arm 2",
	}
	var events map[string][]quotaeventsv1.Event
	s.within(time.Minute, "every event", func() error {
		events = s.announced()
		for _, tenant := range tenants {
			if got := len(events[tenant]); got < len(want) {
				return fmt.Errorf("%s has %d events, want %d", tenant, got, len(want))
			}
		}
		return nil
	})
	ids := map[string]bool{}
	for _, tenant := range tenants {
		var got []string
		for _, e := range events[tenant] {
			ids[e.EventID] = true
			line := crossed(e)
			if e.Type == quotaeventsv1.EventTypeReplenished { // a peek that saw the new limit, or the first decision under it
				line = strings.Replace(line, fmt.Sprintf("@%d/", e.Consumed), "@*/", 1)
			} else if cause := causes[tenant][e.Consumed]; e.CauseDecisionID != cause {
				t.Errorf("%s: %s is caused by %s, want the decision %s", tenant, line, e.CauseDecisionID, cause)
			}
			got = append(got, line)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", tenant, got, want)
		}
	}
	if len(ids) != len(tenants)*len(want) {
		t.Errorf("%d ids, want %d", len(ids), len(tenants)*len(want))
	}
	outside := map[string]bool{}
	for _, l := range s.stranger()(quotaeventsv1.Topic, "quota-events.v1.avsc") {
		id, _ := l.Value["event_id"].(string)
		if !ids[id] || l.Repeat != outside[id] {
			t.Errorf("the plain consumer reads %+v", l)
		}
		outside[id] = true
	}
	if len(outside) != len(ids) {
		t.Errorf("the plain consumer reads %d events, want %d", len(outside), len(ids))
	}
	s.within(time.Minute, "the watcher to be ready", func() error {
		r, err := s.try(http.MethodGet, s.Env["THRESHOLD_WATCHER_METRICS_URL"]+"/ready")
		if err == nil && r.status != http.StatusOK {
			err = errors.New(r.body)
		}
		return err
	})
	for _, tenant := range slices.Sorted(maps.Keys(s.announced())) {
		if !slices.Contains(tenants, tenant) {
			t.Errorf("%s has events, and no quota", tenant)
		}
	}
}
