package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"penstock.dev/deploy/local/devbroker"
	"penstock.dev/schemas"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/wire"
)

// secret is the one of Standard Webhooks' own example.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestSign guarantees the signature of Standard Webhooks' own example, and one for
// each secret while one is being replaced.
func TestSign(t *testing.T) {
	t.Parallel()
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	got, err := sign([]string{secret}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if err != nil || got != want {
		t.Errorf("signature %q (%v), want %q", got, err, want)
	}
	two, err := sign([]string{secret, secret}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if err != nil || two != want+" "+want {
		t.Errorf("two secrets give %q (%v)", two, err)
	}
}

// A receiver answers with its statuses in turn, then 204, and keeps what it got.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	got      []*http.Request
	bodies   []string
}

func newReceiver(t *testing.T, statuses ...int) *receiver {
	t.Helper()
	r := &receiver{statuses: statuses}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got, r.bodies = append(r.got, req), append(r.bodies, string(body))
		status := http.StatusNoContent
		if len(r.statuses) > 0 {
			status, r.statuses = r.statuses[0], r.statuses[1:]
		}
		if status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "600")
		}
		if status == http.StatusFound {
			w.Header().Set("Location", r.URL)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

// A post is a sender with a clock of its own.
type post struct {
	*sender
	t   *testing.T
	now time.Time
}

func newPost(t *testing.T, r *receiver, dir string) *post {
	t.Helper()
	q, err := openQueue(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	return &post{newSender(&endpoint{ID: "one", URL: r.URL, Secrets: []string{secret}}, q, slog.New(slog.DiscardHandler)), t, time.Unix(1_800_000_000, 0)}
}

// after works on the queue when d has passed.
func (p *post) after(d time.Duration) {
	p.t.Helper()
	p.now = p.now.Add(d)
	if err := p.round(p.t.Context(), func() time.Time { return p.now }); err != nil {
		p.t.Fatal(err)
	}
}

func (p *post) add(id string) {
	p.t.Helper()
	if err := p.queue.add(id, []byte(`{"n":1}`), p.now); err != nil {
		p.t.Fatal(err)
	}
}

// in is what lies in a directory of the queue.
func (p *post) in(state string) int {
	p.t.Helper()
	files, err := os.ReadDir(filepath.Join(p.queue.dir, state))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(files)
}

// TestRetries guarantees the attempts and their times, that every one is signed anew
// under the same id, also after a restart, and that the last one fails.
func TestRetries(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, slices.Repeat([]int{500}, 20)...)
	dir := t.TempDir()
	p := newPost(t, r, dir)
	p.add("a")
	for i, wait := range schedule {
		if i > 0 {
			p.after(wait - time.Second)
			if r.count() != i {
				t.Fatalf("attempt %d was made %v after the last, want %v", r.count(), wait-time.Second, wait)
			}
			wait = time.Second
		}
		now := p.now
		p = newPost(t, r, dir)
		p.now = now
		p.after(wait)
		if r.count() != i+1 {
			t.Fatalf("%d attempts, want %d", r.count(), i+1)
		}
		req := r.got[i]
		want, err := sign([]string{secret}, "a", p.now, []byte(r.bodies[i]))
		if err != nil || req.Header.Get("webhook-id") != "a" || req.Header.Get("webhook-signature") != want ||
			req.Header.Get("webhook-timestamp") != fmt.Sprint(p.now.Unix()) || r.bodies[i] != `{"n":1}` {
			t.Errorf("attempt %d came with %v and %s", i, req.Header, r.bodies[i])
		}
	}
	p.after(100 * time.Hour)
	if r.count() != len(schedule) || p.in(failed) != 1 || p.in(pending) != 0 {
		t.Errorf("%d attempts, %d failed, %d pending", r.count(), p.in(failed), p.in(pending))
	}
}

// TestOnce guarantees that an event which comes again is not sent again, whatever
// became of it, and that what is old is forgotten.
func TestOnce(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	p := newPost(t, r, t.TempDir())
	p.add("a")
	p.add("a")
	p.after(0)
	p.add("a")
	p.after(time.Hour)
	if r.count() != 1 || p.in(done) != 1 {
		t.Errorf("sent %d times", r.count())
	}
	if err := p.queue.forget(time.Now().Add(kept + time.Hour)); err != nil || p.in(done) != 0 {
		t.Errorf("%d files are kept (%v)", p.in(done), err)
	}
}

// TestAnswers guarantees what each answer does.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		status          int
		within          time.Duration // after this no second attempt yet
		by              time.Duration // after this one
		disabled, again bool
	}{
		{"success", 200, 0, 100 * time.Hour, false, false},
		{"a fault", 500, 4 * time.Second, 5 * time.Second, false, true},
		{"a redirect is no success and is not followed", 302, 4 * time.Second, 5 * time.Second, false, true},
		{"asked to wait", 429, 599 * time.Second, 600 * time.Second, false, true},
		{"gone", 410, 0, 100 * time.Hour, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, tt.status)
			p := newPost(t, r, t.TempDir())
			p.add("a")
			p.after(0)
			p.after(tt.within)
			if r.count() != 1 {
				t.Errorf("%d attempts within %v, want 1", r.count(), tt.within)
			}
			p.after(tt.by - tt.within)
			if again := r.count() == 2; again != tt.again || p.queue.disabled() != tt.disabled {
				t.Errorf("sent again %v, disabled %v", again, p.queue.disabled())
			}
		})
	}
}

// TestEndpoints guarantees that a list with a fault is refused.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	good := `{"id":"a","url":"https://example.com/x","secrets":["` + secret + `"]}`
	for text, ok := range map[string]bool{
		"[" + good + "]": true, "[" + good + "," + good + "]": false, "{": false,
		`[{"id":"../a","url":"https://example.com","secrets":["` + secret + `"]}]`: false,
		`[{"id":"a","url":"ftp://example.com","secrets":["` + secret + `"]}]`:      false,
		`[{"id":"a","url":"https://example.com","secrets":["short"]}]`:             false,
		`[{"id":"a","url":"https://example.com"}]`:                                 false,
	} {
		file := filepath.Join(t.TempDir(), "endpoints.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readEndpoints(file); (err == nil) != ok || ok && !got[0].wants("acme") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestFromTheTopic guarantees the whole way: an event on the topic, twice, is one
// webhook, and a record that is none is passed over.
func TestFromTheTopic(t *testing.T) {
	t.Parallel()
	broker, err := devbroker.Start(t.Context(), devbroker.Config{Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	producer, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)
	if _, err := kadm.NewClient(producer).CreateTopic(t.Context(), 1, 1, nil, quotaeventsv1.Topic); err != nil {
		t.Fatal(err)
	}
	reg, err := sr.NewClient(sr.URLs(broker.RegistryURL()))
	if err != nil {
		t.Fatal(err)
	}
	schema, err := reg.CreateSchema(t.Context(), quotaeventsv1.Subject, sr.Schema{Schema: schemas.QuotaEventsV1})
	if err != nil {
		t.Fatal(err)
	}
	percent := int32(100)
	e := quotaeventsv1.Event{
		EventID: strings.Repeat("ab", 16), Type: quotaeventsv1.EventTypeExhausted, TenantID: "acme", RuleID: "month", Meter: "calls", CounterKey: "k",
		ThresholdPercent: &percent, Limit: 10, Consumed: 10, Arm: 1, CauseDecisionID: "01998d3a-5e43-7c11-9a52-3f0d6be0c1a7", TS: 1796061765123,
	}
	body, err := quotaeventsv1.AppendEvent(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	event := func() *kgo.Record {
		return &kgo.Record{Topic: quotaeventsv1.Topic, Key: []byte("acme"), Value: wire.Frame(nil, uint32(schema.ID), body)}
	}
	if err := producer.ProduceSync(t.Context(), event(), &kgo.Record{Topic: quotaeventsv1.Topic, Value: []byte("none")}, event()).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r := newReceiver(t)
	list, err := json.Marshal([]endpoint{
		{ID: "acme", URL: r.URL, Secrets: []string{secret}, Tenants: []string{"acme"}}, {ID: "other", URL: r.URL, Secrets: []string{secret}, Tenants: []string{"globex"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := config{brokers: broker.Brokers()[0], registry: broker.RegistryURL(), group: "hooks", endpoints: filepath.Join(t.TempDir(), "e.json"), dir: t.TempDir()}
	if err := os.WriteFile(c.endpoints, list, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var log bytes.Buffer
	go func() { ended <- run(ctx, c, slog.New(slog.NewTextHandler(&log, nil))) }()
	deadline := time.Now().Add(time.Minute)
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for r.count() == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no webhook came")
		}
		<-poll.C
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("run = %v", err)
	}
	for _, want := range []string{"reading quota-events.v1", "brokers=" + c.brokers, "endpoints=2", "dir=" + c.dir} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var got struct {
		Type string         `json:"type"`
		Data map[string]any `json:"data"`
	}
	if err := json.Unmarshal([]byte(r.bodies[0]), &got); err != nil {
		t.Fatal(err)
	}
	if len(r.got) != 1 || r.got[0].Header.Get("webhook-id") != e.EventID || got.Type != "quota.exhausted" || got.Data["tenant_id"] != "acme" || got.Data["limit"] != 10.0 {
		t.Errorf("%d webhooks, the first %s", len(r.got), r.bodies[0])
	}
}
