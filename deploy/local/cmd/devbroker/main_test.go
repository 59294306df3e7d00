package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	osexec "os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/deploy/local/devbroker"
)

// asDevbroker makes the test binary be the program itself.
const asDevbroker = "PENSTOCK_TEST_AS_DEVBROKER"

func TestMain(m *testing.M) {
	if os.Getenv(asDevbroker) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A process is a devbroker that runs beside the test.
type process struct {
	cmd      *osexec.Cmd
	brokers  []string
	registry string
	exit     chan error
	mu       sync.Mutex
	lines    []string // of the log
}

// run starts the program and returns when it says that it is ready.
func run(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := osexec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asDevbroker+"=1")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, exit: make(chan error, 1)}
	ready := make(chan bool, 1)
	go func() {
		defer close(ready)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if p.heed(lines.Text()) {
				ready <- true
			}
		}
		p.exit <- cmd.Wait()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	select {
	case ok := <-ready:
		if !ok {
			t.Fatalf("it ended before it was ready: %v", p.log())
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("not ready: %v", p.log())
	}
	return p
}

// heed keeps a line of the log and reports whether it says ready.
func (p *process) heed(line string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
	var entry struct {
		Msg, Registry string
		Kafka         []string
	}
	if json.Unmarshal([]byte(line), &entry) != nil || entry.Msg != "ready" {
		return false
	}
	p.brokers, p.registry = entry.Kafka, entry.Registry
	return true
}

func (p *process) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// signal ends the process and returns how it ended.
func (p *process) signal(t *testing.T, s syscall.Signal) error {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.exit:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("still there after %v: %v", s, p.log())
		return nil
	}
}

func client(t *testing.T, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.ProducerLinger(0), kgo.DisableClientMetrics(),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// ask makes a request to the registry and returns the body of a 200.
func (p *process) ask(ctx context.Context, method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.registry+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%d %s: %w", resp.StatusCode, raw, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// TestSIGTERMEndsCleanly guarantees exit code 0, a log of one JSON object a
// line, and that readiness is what the registry's GET / says.
func TestSIGTERMEndsCleanly(t *testing.T) {
	t.Parallel()
	p := run(t, "-kafka", "127.0.0.1:0", "-registry", "127.0.0.1:0", "-data", t.TempDir(), "-sync")
	if got, err := p.ask(bounded(t), http.MethodGet, "/", ""); got != "{}" || err != nil {
		t.Errorf("GET / = %s, %v, want {}", got, err)
	}
	if err := p.signal(t, syscall.SIGTERM); err != nil {
		t.Errorf("end = %v, want exit code 0", err)
	}
	for _, line := range p.log() {
		if !json.Valid([]byte(line)) {
			t.Errorf("log line %q is not JSON", line)
		}
	}
}

// TestExitCodes guarantees what scripts rely on.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"-nonsense"}, 2, "-nonsense"},
		{[]string{"extra"}, 2, "extra"},
		{[]string{"-compatibility", "SOMETIMES"}, 2, "SOMETIMES"},
		{[]string{"-kafka", "[::]:0"}, 1, "127.0.0.1 only"},
		{[]string{"-help"}, 0, "-compact-every"},
	} {
		var out bytes.Buffer
		if got := exec(t.Context(), tt.args, &out); got != tt.want || !strings.Contains(out.String(), tt.says) {
			t.Errorf("%v = %d %q, want %d with %q", tt.args, got, out.String(), tt.want, tt.says)
		}
	}
}

// TestREADMENamesEveryFlag guarantees that README's table has a row for every
// flag, with its default and what it means, and none for what is not there.
func TestREADMENamesEveryFlag(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../devbroker/README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Count(string(readme), "\n| `-")
	flags(new(devbroker.Config), new(string)).VisitAll(func(f *flag.Flag) {
		rows--
		def := "`" + f.DefValue + "`"
		switch f.DefValue {
		case "":
			def = "empty"
		case "false":
			def = "off"
		}
		if row := fmt.Sprintf("| `-%s` | %s | %s |", f.Name, def, f.Usage); !strings.Contains(string(readme), row) {
			t.Errorf("README has no row %s", row)
		}
	})
	if rows != 0 {
		t.Errorf("README has %d rows too many", rows)
	}
}

// TestSIGKILLLosesNothing guarantees that a broker killed at any moment, also
// in the middle of a compaction, has every record it acknowledged, the position
// of every group it acknowledged, and every schema under the id it answered.
func TestSIGKILLLosesNothing(t *testing.T) {
	t.Parallel()
	const rounds = 4
	args := []string{"-kafka", "127.0.0.1:0", "-registry", "127.0.0.1:0", "-data", t.TempDir(), "-compact-every", "1ms"}
	p := run(t, args...)
	compact := "compact"
	admin := kadm.NewClient(client(t, p.brokers))
	if _, err := admin.CreateTopic(bounded(t), 1, 1, nil, "events"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTopic(bounded(t), 1, 1, map[string]*string{"cleanup.policy": &compact}, "rules"); err != nil {
		t.Fatal(err)
	}
	args[1], args[3] = p.brokers[0], strings.TrimPrefix(p.registry, "http://")

	var done history
	undone := 0
	for round := range rounds {
		if round > 0 {
			p = run(t, args...)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		cl := client(t, p.brokers)
		context.AfterFunc(ctx, cl.Close) // what was sent and not answered waits for the broker otherwise
		writers.Go(func() { done.events(ctx, cl) })
		writers.Go(func() { done.rules(ctx, cl) })
		writers.Go(func() { done.schemas(ctx, p) })
		for begin := time.Now(); done.acked.Load() < int64(300*(round+1)); {
			if time.Since(begin) > 30*time.Second {
				t.Fatalf("only %d writes in round %d: %v", done.acked.Load(), round, p.log())
			}
			done.commit(t, cl)
		}
		if err := p.signal(t, syscall.SIGKILL); err == nil {
			t.Error("a killed process ended without an error")
		}
		cancel()
		writers.Wait()
		for _, line := range p.log() {
			if strings.Contains(line, "compaction was interrupted") {
				undone++
			}
		}
	}
	p = run(t, args...)
	done.check(t, p)
	t.Logf("%d interrupted compactions were undone", undone)
}

// A history is what the broker acknowledged.
type history struct {
	acked  atomic.Int64
	event  int // highest number acknowledged in events, 1 apart
	rule   [5]int
	schema map[int]string // id by number
	offset int64          // committed by the group
}

func (h *history) events(ctx context.Context, cl *kgo.Client) {
	for n := h.event + 1; ctx.Err() == nil; n++ {
		if cl.ProduceSync(ctx, &kgo.Record{Topic: "events", Value: []byte(strconv.Itoa(n))}).FirstErr() != nil {
			return
		}
		h.event = n
		h.acked.Add(1)
	}
}

func (h *history) rules(ctx context.Context, cl *kgo.Client) {
	for ctx.Err() == nil {
		for k := range h.rule {
			n := h.rule[k] + 1
			if cl.ProduceSync(ctx, &kgo.Record{Topic: "rules", Key: []byte{byte('a' + k)}, Value: []byte(strconv.Itoa(n))}).FirstErr() != nil {
				return
			}
			h.rule[k] = n
			h.acked.Add(1)
		}
	}
}

func (h *history) schemas(ctx context.Context, p *process) {
	if h.schema == nil {
		h.schema = make(map[int]string)
	}
	for n := len(h.schema); ctx.Err() == nil; n++ {
		body := fmt.Sprintf(`{"schema":"{\"type\":\"fixed\",\"name\":\"F\",\"size\":%d}"}`, n+1)
		id, err := p.ask(ctx, http.MethodPost, fmt.Sprintf("/subjects/s%d/versions", n), body)
		if err != nil {
			return
		}
		h.schema[n] = id
	}
}

// commit moves the group on by one, if the broker says so.
func (h *history) commit(t *testing.T, cl *kgo.Client) {
	t.Helper()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: "events", Partition: 0, At: h.offset + 1, LeaderEpoch: -1})
	if err := kadm.NewClient(cl).CommitAllOffsets(bounded(t), "g", offsets); err != nil {
		t.Fatal(err)
	}
	h.offset++
}

// check looks for all of it.
func (h *history) check(t *testing.T, p *process) {
	t.Helper()
	cl := client(t, p.brokers, kgo.ConsumeTopics("events", "rules"))
	ctx := bounded(t)
	seen, rules := 0, [5]int{}
	for missing := true; missing; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("acknowledged: events to %d, rules %v; found: events to %d, rules %v", h.event, h.rule, seen, rules)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n, err := strconv.Atoi(string(r.Value))
			switch {
			case err != nil:
				t.Error(err)
			case r.Topic == "rules":
				rules[r.Key[0]-'a'] = n
			case n > seen+1: // one that was not acknowledged may be there twice, none may be missing
				t.Errorf("event %d follows %d", n, seen)
			default:
				seen = n
			}
		})
		missing = seen < h.event
		for k := range rules {
			missing = missing || rules[k] < h.rule[k]
		}
	}
	got, err := kadm.NewClient(cl).FetchOffsets(ctx, "g")
	if o, ok := got.Lookup("events", 0); err != nil || !ok || o.At < h.offset {
		t.Errorf("committed offset = %+v, %v, want %d", o.Offset, err, h.offset)
	}
	ids := make(map[string]bool)
	for n, want := range h.schema {
		id, err := p.ask(ctx, http.MethodGet, fmt.Sprintf("/subjects/s%d/versions/1", n), "")
		if err != nil || !strings.Contains(id, strings.Trim(want, "{}")) {
			t.Errorf("schema %d = %s, %v, want %s", n, id, err, want)
		}
		ids[want] = true
	}
	if len(ids) != len(h.schema) || len(ids) == 0 {
		t.Errorf("%d schemas got %d ids", len(h.schema), len(ids))
	}
	t.Logf("found events to %d, rules %v, %d schemas, the group at %d", h.event, h.rule, len(h.schema), h.offset)
}
