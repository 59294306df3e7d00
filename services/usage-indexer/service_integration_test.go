//go:build integration

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
	"penstock.dev/schemas/usagev1"

	"penstock.dev/services/internal/estest"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/usage-indexer/topics"
)

var buildIndexer = sync.OnceValues(func() (string, error) {
	root, err := server.Root()
	if err != nil {
		return "", err
	}
	return server.Build(context.Background(), root, "services/usage-indexer", ".", server.Run{})
})

// binary returns the built service.
func binary(t testing.TB) string {
	t.Helper()
	path, err := buildIndexer()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// flags are how the binary finds the servers of a test.
func flags(b *kafkatest.Broker, s *estest.Server, prefix string) []string {
	return []string{
		"-kafka-brokers", strings.Join(b.Brokers, ","), "-schema-registry", b.RegistryURL, "-elasticsearch-url", s.URL,
		"-elasticsearch-flavor", string(s.Flavor), "-index-prefix", prefix, "-replicas", "0", "-topic-replicas", "1",
	}
}

// start runs the built service with an admin port that it returns the URL of.
func start(t testing.TB, b *kafkatest.Broker, s *estest.Server, prefix string, more ...string) (*server.Process, string) {
	t.Helper()
	port, err := server.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin := "127.0.0.1:" + strconv.Itoa(port)
	args := append([]string{"-admin-listen", admin}, flags(b, s, prefix)...)
	p, err := server.Start(t.Context(), server.Spec{
		Name: "usage-indexer", Path: binary(t), Args: append(args, more...), Dir: t.TempDir(),
		Ready: server.Answers200("http://" + admin + "/live"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Tail())
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p, "http://" + admin
}

// page returns a page of an admin port, empty when it does not answer 200.
func page(t testing.TB, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}

// TestIntegrationKilledLosesNothing guarantees that with the service killed again
// and again, and the store killed in the middle of a request, every event is one
// document; that the service says so; and that a replay finds nothing to do.
//
// It runs on Apache Kafka: the embedded broker waits for a member that dies while
// it joins until nobody has tried to join for 30 s.
func TestIntegrationKilledLosesNothing(t *testing.T) {
	t.Parallel()
	for _, flavor := range estest.Flavors {
		t.Run(string(flavor), func(t *testing.T) {
			t.Parallel()
			store, broker, prefix := estest.Start(t, flavor), kafkatest.StartReal(t), "usage"
			broker.RegistryURL = kafkatest.Start(t).RegistryURL
			broker.CreateTopic(usagev1.Topic, 2)
			events, next := 0, [2]int{1, 1_000_001} // the numbers of a stream have no gaps
			more := func(n int) {
				for p := range next {
					produceDecisions(t, broker, int32(p), next[p], next[p]+n)
					next[p] += n
					events += n
				}
			}
			more(10_000)
			broker.Produce(&kafkatest.Record{Topic: usagev1.Topic, Partition: 1, Key: "acme", Value: []byte("not Avro")})
			small := []string{"-batch", "500", "-elasticsearch-timeout", "5s"}
			first, firstAdmin := start(t, broker, store, prefix, small...)
			second, admin := start(t, broker, store, prefix, small...)
			for range 3 {
				kafkatest.Eventually(t, func() bool {
					if indexed(t, firstAdmin) > 1000 {
						return true
					}
					if behind(t, broker) == 0 {
						more(1000)
					}
					return false
				}, "the first to have its share")
				if err := first.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := first.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			kafkatest.Eventually(t, func() bool { return indexed(t, firstAdmin) > 0 || behind(t, broker) == 0 }, "the first to be back")
			more(10_000)
			before := indexed(t, admin)
			kafkatest.Eventually(t, func() bool { return indexed(t, admin) > before }, "a load")
			store.Kill()
			store.Restart()
			kafkatest.Eventually(t, func() bool { return behind(t, broker) == 0 }, "everything to be committed")
			if n := store.Count(prefix + "-*"); n != events {
				t.Errorf("%d documents, want %d", n, events)
			}
			if held := broker.Consume(topics.Aside); len(held) < 1 || len(held) > 5 || held[0].Headers[topics.HeaderPartition] != "1" {
				t.Errorf("%d records are set aside, want the one that is no event", len(held))
			}
			kafkatest.Eventually(t, func() bool { return strings.Contains(page(t, admin+"/ready"), `"ready":true`) }, "the second to be ready")
			if metrics := page(t, admin+"/metrics"); !strings.Contains(metrics, `penstock_usage_indexer_sequence_gaps_total 0`) {
				t.Error("gaps are reported, and there are none")
			}

			replay := exec.CommandContext(t.Context(), binary(t), append([]string{"replay", "-days", "1"}, flags(broker, store, prefix)...)...)
			out, err := replay.Output()
			want := fmt.Sprintf("%d events read: 0 documents created, %d were there, 1 not taken (undecodable)", events+1, events)
			if err != nil || !strings.HasPrefix(string(out), want) {
				t.Errorf("replay printed %q (%v), want %q", out, err, want)
			}
			if n := store.Count(prefix + "-*"); n != events {
				t.Errorf("%d documents after the replay, want %d", n, events)
			}
			for _, p := range []*server.Process{first, second} {
				if err := p.Stop(t.Context()); err != nil {
					t.Error(err)
				}
				if err := p.Wait(t.Context()); err != nil {
					t.Errorf("SIGTERM ended the service with %v, want exit code 0", err)
				}
			}
		})
	}
}

// TestIntegrationReplayMendsAnIndex guarantees what a replay is for: an index that
// was lost is there again, while the service goes on.
func TestIntegrationReplayMendsAnIndex(t *testing.T) {
	t.Parallel()
	estest.Each(t, func(t *testing.T, store *estest.Server) {
		broker, prefix := kafkatest.Start(t), estest.Prefix()
		broker.CreateTopic(usagev1.Topic, 1)
		produceDecisions(t, broker, 0, 1, 3001)
		start(t, broker, store, prefix)
		kafkatest.Eventually(t, func() bool { return behind(t, broker) == 0 }, "everything to be committed")
		index := ""
		for _, name := range store.Indices(prefix + "-*") {
			if store.Count(name) > 0 {
				index = name
			}
		}
		store.Call(http.MethodDelete, index, nil, nil)
		args := append([]string{"replay", "-days", "1", "-rate", "3000"}, flags(broker, store, prefix)...)
		out, err := exec.CommandContext(t.Context(), binary(t), args...).Output()
		if want := "3000 events read: 3000 documents created, 0 were there"; err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("replay printed %q (%v), want %q", out, err, want)
		}
		produceDecisions(t, broker, 0, 3001, 3011)
		kafkatest.Eventually(t, func() bool { return behind(t, broker) == 0 }, "what came since to be committed")
		if n := store.Count(prefix + "-*"); n != 3010 {
			t.Errorf("%d documents, want 3010", n)
		}
	})
}

// cpu is how long a process has computed.
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("stat: %s", text)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // of 100 a second
}

// BenchmarkService is the running service on a real store: how many documents a
// second, and what each costs the service and the store, when all are new and when
// all are there already. The store is set up for tests, not for speed.
func BenchmarkService(b *testing.B) {
	const events = 200_000
	for _, flavor := range estest.Flavors {
		b.Run(string(flavor), func(b *testing.B) {
			for b.Loop() {
				store, broker := estest.Start(b, flavor), kafkatest.Start(b)
				broker.CreateTopic(usagev1.Topic, 2)
				produceDecisions(b, broker, 0, 1, events/2+1)
				produceDecisions(b, broker, 1, events/2+1, events+1)
				path := binary(b)
				report := func(name string, index func() time.Duration) {
					began, before := time.Now(), cpu(b, store.PID())
					used := index()
					b.ReportMetric(events/time.Since(began).Seconds(), name+"-docs/s")
					b.ReportMetric(float64(used.Nanoseconds())/1000/events, name+"-us/doc")
					b.ReportMetric(float64((cpu(b, store.PID())-before).Nanoseconds())/1000/events, name+"-store-us/doc")
				}
				report("new", func() time.Duration {
					p, admin := start(b, broker, store, "usage")
					for indexed(b, admin) < events {
						select {
						case <-p.Exited():
							b.Fatal("the service ended")
						case <-time.After(100 * time.Millisecond):
						}
					}
					return cpu(b, p.PID())
				})
				report("there", func() time.Duration {
					cmd := exec.CommandContext(b.Context(), path, append([]string{"replay", "-days", "1"}, flags(broker, store, "usage")...)...)
					if out, err := cmd.Output(); err != nil {
						b.Fatalf("%v: %s", err, out)
					}
					return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
				})
			}
		})
	}
}

// indexed is how many documents the service says that it has had indexed.
func indexed(b testing.TB, admin string) float64 {
	b.Helper()
	sum := 0.0
	for line := range strings.Lines(page(b, admin+"/metrics")) {
		if rest, ok := strings.CutPrefix(line, "penstock_usage_indexer_documents_total{"); ok {
			_, value, _ := strings.Cut(strings.TrimSpace(rest), " ")
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
