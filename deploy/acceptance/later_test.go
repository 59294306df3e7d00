//go:build acceptance

package acceptance_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
)

// later returns a committed record of a later version, by its file's name.
func later(s system, name string) []byte {
	s.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "later", name))
	if err != nil {
		s.Fatal(err)
	}
	return b
}

// produce writes a record as a service of a later version would.
func (s system) produce(c *kgo.Client, topic, key string, id uint32, body []byte) {
	s.Helper()
	if err := c.ProduceSync(s.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: framed(id, body)}).FirstErr(); err != nil {
		s.Fatal(err)
	}
}

// at returns the body of a usage event with another time. The rest stays as it
// was committed: the time stands behind two ids of 16 bytes.
func at(body []byte, t time.Time) []byte {
	const from = 32
	_, n := binary.Varint(body[from:])
	out := append([]byte(nil), body[:from]...)
	out = binary.AppendVarint(out, t.UnixMicro())
	return append(out, body[from+n:]...)
}

// TestLaterRules guarantees that a version of rules.v1 that is registered, and
// written, after these binaries were built disturbs none of them: what uses
// nothing new is enforced, what they cannot know leaves the last good rule in
// force, the changes of today's rule-admin go on, and so does a gateway that is
// started again among such records.
func TestLaterRules(t *testing.T) {
	t.Parallel()

	s := own(t, estate.Options{})
	s.put("tenants", "later", estate.Object{"name": "Later"})
	q := estate.Object{"tenant": "later"}
	for _, id := range []string{"later-symbol", "later-selector"} {
		rule := gcra("later", 7, "60s", 7)
		rule["meter"] = id
		s.put("rules", id, rule)
		s.enforced(q, id, 7)
	}

	id, broker := s.register(rulesv1.Subject, string(later(s, "rules.v1.avsc"))), s.broker()
	for name, key := range map[string]string{
		"symbol": "rule/later-symbol", "selector": "rule/later-selector", "unchanged": "rule/later-unchanged", "kind": "later/anything",
	} {
		s.produce(broker, rulesv1.Topic, key, id, later(s, "rules.v1."+name+".bin"))
	}
	undisturbed := func() error {
		for rule, limit := range map[string]int64{"later-unchanged": 5, "later-symbol": 7, "later-selector": 7} {
			if got, _, _, ok := s.decide(0, estate.Object{"tenant": "later", "cost": 0}).limit(rule); !ok || got != limit {
				return fmt.Errorf("%s has limit %d (%v), want %d", rule, got, ok, limit)
			}
		}
		if n := s.metric(s.Env["GATEWAY_METRICS_URL"], "penstock_gateway_rules_set_aside"); n != 2 {
			return fmt.Errorf("%v keys are set aside, want 2", n)
		}
		return nil
	}
	s.within(inForce, "the gateway to take what it knows", undisturbed)

	change := gcra("later", 9, "60s", 9)
	change["meter"] = "later-change"
	s.put("rules", "later-change", change)
	s.enforced(q, "later-change", 9)

	if err := s.killAndRestart(estate.Gateway); err != nil {
		s.Fatal(err)
	}
	s.within(inForce, "the gateway that was started again to take what it knows", undisturbed)
	s.enforced(q, "later-change", 9)
	s.saysTheSame(rulesv1.Topic, map[string]string{
		"later-symbol": "symbol", "later-selector": "selector", "later-unchanged": "unchanged", "anything": "kind",
	}, id, func(l line) string { return fmt.Sprint(l.Value["id"]) }, nil)
}

// saysTheSame checks that each committed .bin of a topic, as it was produced,
// says what its .json says. The names of the files go by what of gives.
func (s system) saysTheSame(topic string, names map[string]string, id uint32, of func(line) string, change map[string]any) {
	s.Helper()
	avsc, err := parseSchema(string(later(s, topic+".avsc")))
	if err != nil {
		s.Fatal(err)
	}
	seen := 0
	for _, l := range s.stranger()(topic, "") {
		if l.SchemaID != id {
			continue
		}
		seen++
		want := avsc.shown(avsc.root, s.numbers(filepath.Join("testdata", "later", topic+"."+names[of(l)]+".json")))
		maps.Copy(object(want), change)
		if diff := gocmp.Diff(want, any(l.Value)); diff != "" {
			s.Errorf("%s.%s.bin says something else than its .json (-want +got):\n%s", topic, names[of(l)], diff)
		}
	}
	if seen != len(names) {
		s.Errorf("%d records of the later %s were read, want %d", seen, topic, len(names))
	}
}

// TestLaterUsage guarantees that events of a later version of usage.v1 are
// indexed beside the gateway's own by the indexer that knows nothing of it, and
// read by a subscriber whose schema file is today's: nothing is set aside, the
// numbers are right, and an outcome that came later is UNKNOWN.
func TestLaterUsage(t *testing.T) {
	t.Parallel()

	s := own(t, estate.Options{Search: estate.WithElasticsearch})
	tenant := s.tenant(nil)
	mine := s.decided(0, estate.Object{"tenant": tenant, "request_id": "before"})
	id, broker := s.register(usagev1.Subject, string(later(s, "usage.v1.avsc"))), s.broker()
	now := time.Now()
	for _, name := range []string{"allow", "deny", "later"} {
		s.produce(broker, usagev1.Topic, "later", id, at(later(s, "usage.v1."+name+".bin"), now))
	}
	also := s.decided(0, estate.Object{"tenant": tenant, "request_id": "after"})

	// The index.
	want := map[string]any{"ALLOW": 3.0, "DENY": 1.0, "UNKNOWN": 3.0}
	s.within(indexed, "events of both versions to be found", func() error {
		docs, err := s.documents(`{"term": {"tenantId": "later"}}`)
		if err != nil {
			return err
		}
		got := map[string]any{}
		for _, doc := range docs {
			decision, _ := doc["decision"].(string)
			got[decision] = doc["cost"]
			if counters := list(doc["counters"]); len(counters) == 1 && object(counters[0])["consumed"] != 903.0 {
				return fmt.Errorf("the counter is %v", counters[0])
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		docs, err = s.documents(fmt.Sprintf(`{"terms": {"eventId": [%q, %q]}}`, mine.DecisionID, also.DecisionID))
		if err == nil && len(docs) != 2 {
			err = fmt.Errorf("%d of the gateway's own 2 decisions are there", len(docs))
		}
		return err
	})

	if n := s.metric(s.Env["USAGE_INDEXER_METRICS_URL"], "penstock_usage_indexer_set_aside_total"); n != 0 {
		s.Errorf("the indexer set %v records aside, want none", n)
	}

	// A stranger.
	read, avsc := s.stranger(), map[string]any{}
	for _, l := range read(usagev1.Topic, usagev1.Topic+".avsc") {
		if l.Key == "later" {
			decision, _ := l.Value["decision"].(string)
			avsc[decision] = fmt.Sprint(l.Value["cost"])
			if _, ok := l.Value["later_region"]; ok {
				s.Error("a field that today's schema file does not have is shown")
			}
		}
	}
	if diff := gocmp.Diff(map[string]any{"ALLOW": "3", "DENY": "1", "UNKNOWN": "3"}, avsc); diff != "" {
		s.Errorf("what today's schema file shows (-want +got):\n%s", diff)
	}
	s.saysTheSame(usagev1.Topic, map[string]string{"ALLOW": "allow", "DENY": "deny", "LATER": "later"}, id,
		func(l line) string { return fmt.Sprint(l.Value["decision"]) }, map[string]any{"ts": micros(now)})
}
