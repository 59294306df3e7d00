package proof

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
)

// thresholdLimit is the quota whose thresholds are crossed.
const thresholdLimit = 10

// thresholdsOnce uses a quota up, and reads what quota-events.v1 says of it.
func thresholdsOnce(ctx context.Context, s *stage) (Finding, error) {
	const asked = 14
	tenant := s.named("thresholds")
	rule := func(id, user string, limit int) object {
		return object{"rules", id, estate.Object{
			"kind": "quota", "algorithm": "quota", "subject": []string{"tenant", "user"}, "match": estate.Object{"tenant": tenant, "user": user},
			"limit": limit, "period": estate.Object{"unit": "year", "count": 100, "zone": "UTC"}, "thresholds": []int{80, 100},
		}}
	}
	fence := tenant + "-fence"
	if err := s.enforce(ctx, s.tenant("thresholds", "Thresholds"), rule(tenant, "ada", thresholdLimit), rule(fence, "fence", 1)); err != nil {
		return Finding{}, err
	}
	events, err := s.readWhenThere(ctx, "quota-events.v1")
	if err != nil {
		return Finding{}, err
	}
	defer events.close()
	begun := time.Now()
	var statuses []int
	for range asked {
		got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": tenant, "user": "ada"})
		if err != nil {
			return Finding{}, err
		}
		statuses = append(statuses, got.Status)
	}
	// A tenant's events come in order: what is told behind this one came last.
	if _, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": tenant, "user": "fence"}); err != nil {
		return Finding{}, err
	}
	var told []string
	ids := map[string]bool{}
	err = events.take(ctx, eventsWithin, func(key string, e event) bool {
		if key == tenant && e.text("rule_id") == tenant {
			told = append(told, crossing(e))
			ids[e.text("event_id")] = true
		}
		return key == tenant && e.text("rule_id") == fence && e.text("type") == "EXHAUSTED"
	})
	if err != nil {
		return Finding{}, err
	}
	return judgeThresholds(thresholdLimit, statuses, told, len(ids), time.Since(begun)), nil
}

// judgeThresholds holds what was answered and told against a quota.
func judgeThresholds(limit int, statuses []int, told []string, ids int, took time.Duration) Finding {
	asked := len(statuses)
	want := fmt.Sprintf("%d × 200, %d × 429; THRESHOLD_REACHED 80 %% at %d, EXHAUSTED 100 %% at %d, and nothing else", limit, asked-limit, limit*8/10, limit)
	got := fmt.Sprintf("%s; %s, and nothing else", tallied(statuses), strings.Join(told, ", "))
	return Finding{
		Done:     fmt.Sprintf("%d decisions under a quota of %d with thresholds of 80 and 100 per cent; quota-events.v1 read by a plain Kafka client that reads committed", asked, limit),
		Expected: want,
		Measured: got + fmt.Sprintf(" (all read %s after the first decision)", span(took)),
		Badges: []Badge{
			{"passed", fmt.Sprintf("%d of %d", asked-len(notOK(statuses)), asked), Plain},
			{"events", strconv.Itoa(len(told)), Good},
			{"different ids", strconv.Itoa(ids), Good},
			{"read after", span(took), Plain},
		},
		Held: got == want && ids == len(told),
	}
}

// crossing shows what an event says was reached.
func crossing(e event) string {
	return fmt.Sprintf("%s %v %% at %v", e.text("type"), e["threshold_percent"], e["consumed"])
}

// readWhenThere opens a topic at its end, once somebody has made it.
func (s *stage) readWhenThere(ctx context.Context, topic string) (*reader, error) {
	var r *reader
	err := s.await(ctx, eventsWithin, func(ctx context.Context) (err error) {
		r, err = readFrom(ctx, s.Estate, topic)
		return err
	})
	return r, err
}

// watcher says whether thresholds are watched.
func watcher(_ context.Context, s *stage) string {
	if s.Env["THRESHOLD_WATCHER_METRICS_URL"] == "" {
		return "threshold-watcher"
	}
	return ""
}
