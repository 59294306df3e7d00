package proof

import (
	"context"
	"fmt"
	"time"

	"penstock.dev/deploy/local/estate"
)

// eventsWithin bounds the wait for events of what was decided.
const eventsWithin = 10 * time.Second

// shadowRule sends more than a shadow rule would let through, and reads what
// usage.v1 says of it.
func shadowRule(ctx context.Context, s *stage) (Finding, error) {
	const limit, sent = 3, 10
	tenant := s.named("shadow")
	err := s.enforce(ctx, s.tenant("shadow", "Under a shadow rule"), object{"rules", tenant, estate.Object{
		"mode": "shadow", "kind": "rate", "algorithm": "sliding_window_log", "subject": []string{"tenant"},
		"match": estate.Object{"tenant": tenant}, "limit": limit, "window": "1h",
	}})
	if err != nil {
		return Finding{}, err
	}
	usage, err := readFrom(ctx, s.Estate, "usage.v1")
	if err != nil {
		return Finding{}, err
	}
	defer usage.close()
	var statuses []int
	would := 0 // refusals that the answers themselves show
	for range sent {
		got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": tenant})
		if err != nil {
			return Finding{}, err
		}
		statuses = append(statuses, got.Status)
		for _, l := range got.Limits {
			if l.RuleID == tenant && l.Mode == "shadow" && !l.Passed {
				would++
			}
		}
	}
	told, all := map[string]int{}, 0
	err = usage.take(ctx, eventsWithin, func(key string, e event) bool {
		if key == tenant {
			told[e.text("decision")]++
			all++
		}
		return all == sent
	})
	if err != nil {
		return Finding{}, err
	}
	want := fmt.Sprintf("%d × 200, %d of them marked as what the rule would have refused; on usage.v1 %d ALLOW, %d SHADOW_DENY, %d in all",
		sent, sent-limit, limit, sent-limit, sent)
	got := fmt.Sprintf("%s, %d of them marked as what the rule would have refused; on usage.v1 %d ALLOW, %d SHADOW_DENY, %d in all",
		tallied(statuses), would, told["ALLOW"], told["SHADOW_DENY"], all)
	return Finding{
		Done:     fmt.Sprintf("%d decisions under a rule of %d an hour in shadow; their events read from usage.v1 by a plain Kafka client", sent, limit),
		Expected: want, Measured: got,
		Badges: []Badge{
			{"passed", fmt.Sprintf("%d of %d", sent-len(notOK(statuses)), sent), Good},
			{"SHADOW_DENY", fmt.Sprint(told["SHADOW_DENY"]), Shadow},
		},
		Held: got == want,
	}, nil
}

// notOK are the statuses that are not 200.
func notOK(statuses []int) []int {
	var others []int
	for _, status := range statuses {
		if status != 200 {
			others = append(others, status)
		}
	}
	return others
}
