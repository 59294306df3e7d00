package kafkatest_test

import (
	"net/http"
	"slices"
	"testing"

	"penstock.dev/services/internal/kafkatest"
)

// TestBrokerKeepsItsDataAcrossRestarts guarantees what tests of restarts build
// on: after Stop and Start the same addresses serve the same records.
func TestBrokerKeepsItsDataAcrossRestarts(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("things", 2)
	b.Produce(&kafkatest.Record{Topic: "things", Partition: 0, Key: "a", Value: []byte("1")},
		&kafkatest.Record{Topic: "things", Partition: 1, Key: "b", Headers: map[string]string{"version": "7"}})
	b.Abort(kafkatest.Record{Topic: "things", Partition: 0, Key: "a", Value: []byte("never")})
	before := b.Consume("things")
	b.Stop()
	b.Start()
	after := b.WaitFor("things", 2)
	same := slices.EqualFunc(before, after, func(a, b kafkatest.Record) bool {
		return a.Key == b.Key && a.Offset == b.Offset && string(a.Value) == string(b.Value) && (a.Value == nil) == (b.Value == nil)
	})
	if len(before) != 2 || !same {
		t.Errorf("before %+v, after %+v, want the same two records", before, after)
	}
	if got := after[1].Headers["version"]; after[1].Value != nil || got != "7" {
		t.Errorf("tombstone = %+v, want no value and version 7", after[1])
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.RegistryURL+"/subjects", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("registry answered %d, want 200", resp.StatusCode)
	}
}

// TestConsumeAfterCompaction guarantees that Compact removes superseded records
// and Consume still ends.
func TestConsumeAfterCompaction(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("log", 1, "cleanup.policy", "compact", "delete.retention.ms", "0")
	for _, v := range []string{"1", "2", "3"} {
		b.Produce(&kafkatest.Record{Topic: "log", Key: "a", Value: []byte(v)})
	}
	b.Produce(&kafkatest.Record{Topic: "log", Key: "b"}, &kafkatest.Record{Topic: "log", Key: "c", Value: []byte("9")})
	b.Compact()
	var keys []string
	for _, r := range b.Consume("log") {
		keys = append(keys, r.Key+string(r.Value))
	}
	if want := []string{"a3", "c9"}; !slices.Equal(keys, want) {
		t.Errorf("after compaction %v, want %v", keys, want)
	}
	if got := b.Consume("nothing"); got != nil {
		t.Errorf("a topic that does not exist holds %v", got)
	}
}
