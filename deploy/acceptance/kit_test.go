//go:build acceptance

// Package acceptance holds the whole system to its promises: the services as
// built binaries on real servers, as `make up` starts them, seen only through
// their faces. It may import no service.
package acceptance_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
)

// inForce is how soon a committed change is enforced on every gateway
// (convention V9 of the cases).
const inForce = 5 * time.Second

// A system is a running estate as one test sees it.
type system struct {
	*testing.T
	*estate.Estate
	admin *estate.Admin
}

// shared is one estate with two gateways, for tests that kill nothing and keep
// to tenants of their own.
var shared struct {
	once sync.Once
	e    *estate.Estate
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.e != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := shared.e.Down(ctx); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		cancel()
		if code == 0 {
			_ = os.RemoveAll(shared.e.Dir)
		}
	}
	os.Exit(code)
}

// kafka is the Kafka of the estates that do not ask for one:
// PENSTOCK_TEST_KAFKA=real runs the suite on Apache Kafka.
func kafka() string { return os.Getenv("PENSTOCK_TEST_KAFKA") }

// common returns the shared estate.
func common(t *testing.T) system {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "penstock-acceptance-") //nolint:usetesting // outlives the test that asks first
		if err != nil {
			shared.err = err
			return
		}
		shared.e, shared.err = estate.Up(context.Background(), estate.Options{
			Dir: dir, Gateways: 2, Samples: true, Volatile: true, Kafka: kafka(),
		})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return system{t, shared.e, shared.e.Admin()}
}

// own starts an estate for one test, which may kill its processes.
func own(t *testing.T, o estate.Options) system {
	t.Helper()
	o.Dir, o.Volatile, o.Kafka = t.TempDir(), true, cmp.Or(o.Kafka, kafka())
	e, err := estate.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range e.Names() {
				t.Logf("the end of %s", e.Process(name).Tail())
			}
		}
		if err := e.Down(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return system{t, e, e.Admin()}
}

// within polls until ok returns nil, and fails with its last error.
func (s system) within(d time.Duration, what string, ok func() error) {
	s.Helper()
	deadline := time.Now().Add(d)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("not within %v: %s: %v", d, what, err)
		}
		<-poll.C
	}
}

// put writes an object, whatever stands there.
func (s system) put(kind, id string, o estate.Object) {
	s.Helper()
	if _, _, err := s.admin.Put(s.Context(), kind, id, "*", o); err == nil {
		return
	}
	if _, _, err := s.admin.Put(s.Context(), kind, id, "", o); err != nil {
		s.Fatal(err)
	}
}

// tenant makes a tenant of the test's own and returns its id.
func (s system) tenant(more estate.Object) string {
	s.Helper()
	id := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(s.Name()))
	o := estate.Object{"name": s.Name()}
	maps.Copy(o, more)
	s.put("tenants", id, o)
	return id
}

// key makes an API key of the tenant and returns its secret, once every
// gateway knows it.
func (s system) key(tenant string) string {
	s.Helper()
	made, _, err := s.admin.Put(s.Context(), "api-keys", tenant+"-key", "", estate.Object{"tenant": tenant})
	if err != nil {
		s.Fatal(err)
	}
	secret, _ := made["secret"].(string)
	for g := range s.gateways() {
		s.within(inForce, "the key", func() error {
			if d := s.decide(g, estate.Object{"api_key": secret, "cost": 0}); d.Status != http.StatusOK {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
	}
	return secret
}

// gcra is a rate rule of the tenant.
func gcra(tenant string, limit int64, window string, burst int64) estate.Object {
	return estate.Object{
		"kind": "rate", "algorithm": "gcra", "subject": []string{"tenant"}, "match": estate.Object{"tenant": tenant},
		"limit": limit, "window": window, "burst": burst,
	}
}

// monthly is a quota rule of the tenant.
func monthly(tenant string, limit int64) estate.Object {
	return estate.Object{
		"kind": "quota", "algorithm": "quota", "subject": []string{"tenant"}, "match": estate.Object{"tenant": tenant},
		"limit": limit, "period": estate.Object{"unit": "month", "count": 1, "alignment": "calendar"},
	}
}

// A decision is a gateway's answer to POST /v1/decisions.
type decision struct {
	DecisionID   string `json:"decision_id"`
	Outcome      string `json:"outcome"`
	Status       int    `json:"status"`
	Code         string `json:"code"`
	RuleID       string `json:"rule_id"`
	RetryAfter   *int64 `json:"retry_after_seconds"`
	Degraded     bool   `json:"degraded"`
	Cost         int64  `json:"cost"`
	RulesVersion int64  `json:"rules_version"`
	Receipt      string `json:"receipt"`
	Delay        int64  `json:"delay_ms"`
	Limits       []struct {
		RuleID    string    `json:"rule_id"`
		Limit     int64     `json:"limit"`
		Remaining int64     `json:"remaining"`
		Consumed  int64     `json:"consumed"`
		Refunded  int64     `json:"refunded"`
		Balance   int64     `json:"balance"`
		Reset     int64     `json:"reset_seconds"`
		PeriodEnd time.Time `json:"period_end"`
		Passed    bool      `json:"passed"`
	} `json:"limits"`
}

func (d decision) allowed() bool { return d.Outcome == "ALLOW" }

// limit returns what the decision says of a rule; ok is false when it did not
// win.
func (d decision) limit(rule string) (limit, remaining, consumed int64, ok bool) {
	for _, l := range d.Limits {
		if l.RuleID == rule {
			return l.Limit, l.Remaining, l.Consumed, true
		}
	}
	return 0, 0, 0, false
}

// gateways returns the base URLs of the gateways by number, from 0.
func (s system) gateways() []string {
	urls := []string{s.Env["GATEWAY_URL"]}
	if second := s.Env["GATEWAY_URL_2"]; second != "" {
		urls = append(urls, second)
	}
	return urls
}

var client = &http.Client{
	Timeout: 20 * time.Second,
	Transport: &http.Transport{
		MaxIdleConnsPerHost: 200, MaxConnsPerHost: 200, DisableCompression: true,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// ask sends a decision request to gateway g and does not fail the test.
func (s system) ask(g int, q estate.Object) (decision, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return decision{}, err
	}
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.gateways()[g]+"/v1/decisions", bytes.NewReader(body))
	if err != nil {
		return decision{}, err
	}
	req.Header.Set("Authorization", "Bearer "+s.Env["DECISION_TOKEN"])
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return decision{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return decision{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return decision{}, fmt.Errorf("%s: %s", resp.Status, answer)
	}
	var d decision
	return d, json.Unmarshal(answer, &d)
}

func (s system) decide(g int, q estate.Object) decision {
	s.Helper()
	d, err := s.ask(g, q)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// decided is decide, repeated while the store does not decide, as a caller
// does on a machine too busy for the budget (convention V11). The request id of
// q keeps a repeat from charging again.
func (s system) decided(g int, q estate.Object) (d decision) {
	s.Helper()
	s.within(20*time.Second, "the store to decide", func() error {
		var err error
		if d, err = s.ask(g, q); err == nil && d.Degraded {
			err = errors.New("degraded")
		}
		return err
	})
	return d
}

// enforced waits until every gateway answers a peek with that limit of a rule.
func (s system) enforced(q estate.Object, rule string, limit int64) {
	s.Helper()
	peek := maps.Clone(q)
	peek["cost"] = 0
	for g := range s.gateways() {
		s.within(inForce, fmt.Sprintf("gateway %d to enforce %d of %s", g, limit, rule), func() error {
			d, err := s.ask(g, peek)
			if err != nil {
				return err
			}
			if got, _, _, ok := d.limit(rule); !ok || got != limit {
				return fmt.Errorf("it answers %+v", d)
			}
			return nil
		})
	}
}

// gone waits until no gateway has the rule among its winners.
func (s system) gone(q estate.Object, rule string) {
	s.Helper()
	peek := maps.Clone(q)
	peek["cost"] = 0
	for g := range s.gateways() {
		s.within(inForce, rule+" to be gone", func() error {
			if _, _, _, ok := s.decide(g, peek).limit(rule); ok {
				return errors.New("still there")
			}
			return nil
		})
	}
}

// A reply is a proxied answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// send sends one request. Headers are pairs of name and value.
func (s system) send(method, url, body string, headers ...string) reply {
	s.Helper()
	r, err := s.request(method, url, body, headers)
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// try is send without a body, for when nobody may be there to answer.
func (s system) try(method, url string, headers ...string) (reply, error) {
	return s.request(method, url, "", headers)
}

func (s system) request(method, url, body string, headers []string) (reply, error) {
	req, err := http.NewRequestWithContext(s.Context(), method, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	return reply{resp.StatusCode, resp.Header, string(b)}, nil
}

// metric returns the sum of a metric over its labels that contain all of the
// given texts, e.g. `outcome="DENY"`.
func (s system) metric(base, name string, labels ...string) float64 {
	s.Helper()
	r := s.send(http.MethodGet, base+"/metrics", "")
	sum := 0.0
	lines := bufio.NewScanner(strings.NewReader(r.body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			s.Fatal(err)
		}
		sum += v
	}
	return sum
}

// series returns how many series a process exposes.
func (s system) series(base string) int {
	s.Helper()
	n := 0
	for line := range strings.Lines(s.send(http.MethodGet, base+"/metrics", "").body) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}
