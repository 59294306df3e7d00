package devbroker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"penstock.dev/deploy/local/devbroker"
)

func start(t *testing.T, cfg devbroker.Config) *devbroker.Broker {
	t.Helper()
	if cfg.Kafka == "" {
		cfg.Kafka, cfg.Registry = "127.0.0.1:0", "127.0.0.1:0"
	}
	b, err := devbroker.Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func client(t *testing.T, b *devbroker.Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.Brokers()...), kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.ProducerLinger(0), kgo.DisableClientMetrics(),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// bounded is a context for what must not take long.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func create(t *testing.T, b *devbroker.Broker, topic string, config ...string) {
	t.Helper()
	configs := make(map[string]*string)
	for pair := range slices.Chunk(config, 2) {
		configs[pair[0]] = &pair[1]
	}
	if _, err := kadm.NewClient(client(t, b)).CreateTopic(bounded(t), 1, 1, configs, topic); err != nil {
		t.Fatal(err)
	}
}

func produce(t *testing.T, b *devbroker.Broker, topic string, pairs ...string) {
	t.Helper()
	cl := client(t, b)
	for p := range slices.Chunk(pairs, 2) {
		r := &kgo.Record{Topic: topic, Key: []byte(p[0]), Value: []byte(p[1])}
		if err := cl.ProduceSync(bounded(t), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// consume reads records until n have arrived, as "key=value".
func consume(t *testing.T, b *devbroker.Broker, n int, opts ...kgo.Opt) (*kgo.Client, []string) {
	t.Helper()
	cl := client(t, b, opts...)
	ctx := bounded(t)
	var got []string
	for len(got) < n {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("only %d of %d records arrived: %v", len(got), n, got)
		}
		fetches.EachRecord(func(r *kgo.Record) { got = append(got, fmt.Sprintf("%s=%s", r.Key, r.Value)) })
	}
	return cl, got
}

func get(t *testing.T, url string) string {
	t.Helper()
	return send(t, http.MethodGet, url, "")
}

func send(t *testing.T, method, url, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestRestartKeepsEverything guarantees that a broker started again on the same
// ports has its topics with their settings, its records, the position of every
// consumer group, and its schemas under the same ids.
func TestRestartKeepsEverything(t *testing.T) {
	t.Parallel()
	for _, sync := range []bool{false, true} {
		t.Run("sync "+strconv.FormatBool(sync), func(t *testing.T) {
			t.Parallel()
			cfg := devbroker.Config{Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: t.TempDir(), Sync: sync}
			b := start(t, cfg)
			cfg.Kafka, cfg.Registry = b.Brokers()[0], strings.TrimPrefix(b.RegistryURL(), "http://")
			create(t, b, "rules", "cleanup.policy", "compact", "delete.retention.ms", "0")
			produce(t, b, "rules", "a", "1", "b", "2")
			group := []kgo.Opt{kgo.ConsumerGroup("g"), kgo.ConsumeTopics("rules"), kgo.DisableAutoCommit()}
			cl, _ := consume(t, b, 2, group...)
			if err := cl.CommitUncommittedOffsets(bounded(t)); err != nil {
				t.Fatal(err)
			}
			cl.Close()
			id := send(t, http.MethodPost, b.RegistryURL()+"/subjects/rules-value/versions", `{"schema":"\"string\""}`)
			b.Close()

			b = start(t, cfg)
			if got, want := b.Brokers()[0], cfg.Kafka; got != want {
				t.Errorf("address %s, want %s", got, want)
			}
			produce(t, b, "rules", "a", "3", "c", "4")
			if _, got := consume(t, b, 2, group...); !slices.Equal(got, []string{"a=3", "c=4"}) {
				t.Errorf("the group went on with %v, want what it had not seen", got)
			}
			if again := send(t, http.MethodPost, b.RegistryURL()+"/subjects/rules-value/versions", `{"schema":"\"string\""}`); again != id {
				t.Errorf("schema %s, before the restart %s", again, id)
			}
			if err := b.Compact(bounded(t)); err != nil {
				t.Fatal(err)
			}
			if _, got := consume(t, b, 3, kgo.ConsumeTopics("rules")); !slices.Equal(got, []string{"b=2", "a=3", "c=4"}) {
				t.Errorf("after compaction %v: the topic is not compacted any more", got)
			}
		})
	}
}

// TestRunningClientsSurviveARestart guarantees that consumers and producers
// that were connected go on by themselves.
func TestRunningClientsSurviveARestart(t *testing.T) {
	t.Parallel()
	cfg := devbroker.Config{Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: t.TempDir()}
	b := start(t, cfg)
	cfg.Kafka, cfg.Registry = b.Brokers()[0], strings.TrimPrefix(b.RegistryURL(), "http://")
	create(t, b, "rules")
	producer, consumer := client(t, b), client(t, b, kgo.ConsumeTopics("rules"))
	for i := range 3 {
		ctx := bounded(t)
		if err := producer.ProduceSync(ctx, &kgo.Record{Topic: "rules", Value: []byte(strconv.Itoa(i))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for n := 0; n == 0; n = consumer.PollFetches(ctx).NumRecords() {
			if ctx.Err() != nil {
				t.Fatalf("record %d did not arrive", i)
			}
		}
		b.Close()
		b = start(t, cfg)
	}
}

// TestFetchSessionsEndWithTheBroker guarantees that a client which goes on with
// a session of the broker before is told so, as by a real broker, and starts a
// new one. Restored sessions have lost the ids of their topics: their answers
// name a topic nobody knows, and the client asks again at once, for ever.
func TestFetchSessionsEndWithTheBroker(t *testing.T) {
	t.Parallel()
	cfg := devbroker.Config{Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: t.TempDir()}
	b := start(t, cfg)
	create(t, b, "rules")
	first := fetch(t, b, "rules", 0, 0)
	if first.ErrorCode != 0 || first.SessionID == 0 {
		t.Fatalf("first fetch = %+v, want a session", first)
	}
	produce(t, b, "rules", "a", "1")
	b.Close()
	b = start(t, cfg)
	again := fetch(t, b, "", first.SessionID, 1)
	if err := kerr.ErrorForCode(again.ErrorCode); !errors.Is(err, kerr.FetchSessionIDNotFound) {
		t.Errorf("a fetch in the old session = %v %+v, want FETCH_SESSION_ID_NOT_FOUND", err, again.Topics)
	}
}

// fetch asks for the start of partition 0 of a topic, or for what a session
// holds.
func fetch(t *testing.T, b *devbroker.Broker, topic string, session, epoch int32) *kmsg.FetchResponse {
	t.Helper()
	cl := client(t, b)
	req := kmsg.NewPtrFetchRequest()
	req.SessionID, req.SessionEpoch, req.MaxBytes = session, epoch, 1<<20
	if topic != "" {
		md, err := kadm.NewClient(cl).Metadata(bounded(t), topic)
		if err != nil {
			t.Fatal(err)
		}
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = topic, md.Topics[topic].ID
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.PartitionMaxBytes = 1 << 20
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := cl.Broker(0).RetriableRequest(bounded(t), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.(*kmsg.FetchResponse)
}

// TestCompactionRunsByItself guarantees that superseded records go away without
// anybody asking.
func TestCompactionRunsByItself(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", t.TempDir()} {
		b := start(t, devbroker.Config{DataDir: dir, CompactEvery: 20 * time.Millisecond})
		create(t, b, "rules", "cleanup.policy", "compact")
		produce(t, b, "rules", "a", "1", "a", "2", "b", "3")
		deadline := time.Now().Add(20 * time.Second)
		for {
			_, got := consume(t, b, 2, kgo.ConsumeTopics("rules"))
			if slices.Equal(got, []string{"a=2", "b=3"}) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("data %q: still %v", dir, got)
			}
		}
	}
}

// TestRefusals guarantees that the broker is not offered to other machines, and
// that two of them never share data.
func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, devbroker.Config{DataDir: dir})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cfg  devbroker.Config
		want string
	}{
		{"every interface", devbroker.Config{Kafka: "[::]:0", Registry: "127.0.0.1:0"}, "127.0.0.1 only"},
		{"every interface for the registry", devbroker.Config{Kafka: "127.0.0.1:0", Registry: ":0"}, "127.0.0.1 only"},
		{"no port", devbroker.Config{Kafka: "127.0.0.1", Registry: "127.0.0.1:0"}, "kafka address"},
		{"a port that is none", devbroker.Config{Kafka: "127.0.0.1:99999", Registry: "127.0.0.1:0"}, "port"},
		{"data another broker uses", devbroker.Config{Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: dir}, "another broker"},
		{"data that is a file", devbroker.Config{Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: file}, "data directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, err := devbroker.Start(t.Context(), tt.cfg, slog.New(slog.DiscardHandler))
			if err == nil {
				b.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestPortInUse guarantees that a taken port is an error of Start, and leaves
// the data free for the next attempt.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	b := start(t, devbroker.Config{})
	dir := t.TempDir()
	for _, cfg := range []devbroker.Config{
		{Kafka: b.Brokers()[0], Registry: "127.0.0.1:0", DataDir: dir},
		{Kafka: "127.0.0.1:0", Registry: strings.TrimPrefix(b.RegistryURL(), "http://"), DataDir: dir},
	} {
		if second, err := devbroker.Start(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil {
			second.Close()
			t.Errorf("Start on taken ports %+v = nil, want an error", cfg)
		}
	}
	start(t, devbroker.Config{DataDir: dir})
	if got := get(t, b.RegistryURL()+"/"); got != "{}" {
		t.Errorf("the first broker answers %s, want {}", got)
	}
}
