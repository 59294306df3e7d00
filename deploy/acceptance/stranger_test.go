//go:build acceptance

package acceptance_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
	"penstock.dev/schemas"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
)

// A line is what deploy/examples/consumer prints of one record.
type line struct {
	Topic     string            `json:"topic"`
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Key       string            `json:"key"`
	Headers   map[string]string `json:"headers"`
	SchemaID  uint32            `json:"schema_id"`
	Value     map[string]any    `json:"value"` // nil: a tombstone
	Repeat    bool              `json:"repeat"`
}

// stranger lays out what a subscriber has, the example and the schema files, in
// a folder of its own, and returns a function that reads a topic to its end.
// An empty schema means to show what the writers wrote.
func (s system) stranger() func(topic, schema string) []line {
	s.Helper()
	s.need(server.Python)
	python, err := server.FindPython()
	if err != nil {
		s.Fatal(err)
	}
	root, dir := s.root(), s.TempDir()
	files := []string{"deploy/examples/consumer/consume.py", "schemas/rules.v1.avsc", "schemas/usage.v1.avsc", "schemas/quota-events.v1.avsc"}
	for _, name := range files {
		s.copy(filepath.Join(root, name), filepath.Join(dir, filepath.Base(name)))
	}
	return func(topic, schema string) []line {
		s.Helper()
		args := []string{"consume.py", "--brokers", s.Env["KAFKA_BROKERS"], "--registry", s.Env["SCHEMA_REGISTRY_URL"], "--topic", topic}
		if schema != "" {
			args = append(args, "--schema", schema)
		}
		ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			s.Fatalf("consume.py of %s: %v: %s", topic, err, stderr.String())
		}
		return s.lines(out)
	}
}

func (s system) lines(out []byte) []line {
	s.Helper()
	var lines []line
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber()
	for {
		var l line
		err := d.Decode(&l)
		if err == io.EOF {
			return lines
		}
		if err != nil {
			s.Fatalf("%v in %s", err, out)
		}
		lines = append(lines, l)
	}
}

// need installs Debian's packages as root, else it names what is missing.
func (s system) need(tools ...server.Tool) {
	s.Helper()
	if err := server.Need(s.Context(), server.Run{Say: func(text string) { s.Log(text) }}, tools...); err != nil {
		s.Fatal(err)
	}
}

func (s system) root() string {
	s.Helper()
	root, err := server.Root()
	if err != nil {
		s.Fatal(err)
	}
	return root
}

func (s system) copy(from, to string) {
	s.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// broker is a Kafka client that partitions as Java's and waits for every
// replica.
func (s system) broker() *kgo.Client {
	s.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.Env["KAFKA_BROKERS"], ",")...), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(c.Close)
	return c
}

// register registers a schema and returns its id.
func (s system) register(subject, text string) uint32 {
	s.Helper()
	body, err := json.Marshal(map[string]string{"schema": text})
	if err != nil {
		s.Fatal(err)
	}
	r := s.send(http.MethodPost, s.Env["SCHEMA_REGISTRY_URL"]+"/subjects/"+subject+"/versions", string(body), "Content-Type", "application/vnd.schemaregistry.v1+json")
	var answer struct {
		ID uint32 `json:"id"`
	}
	if err := json.Unmarshal([]byte(r.body), &answer); err != nil || r.status != http.StatusOK || answer.ID == 0 {
		s.Fatalf("registering a version of %s: %d %s", subject, r.status, r.body)
	}
	return answer.ID
}

// framed is a body in Confluent framing.
func framed(id uint32, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, id), body...)
}

// golden lists the golden files of a topic's version by name: bytes, and what
// they say as Avro's JSON.
func (s system) golden(topic string, version int) map[string]struct {
	body []byte
	json any
} {
	s.Helper()
	dir := filepath.Join(s.root(), "schemas", "testdata", topic, strconv.Itoa(version))
	files, err := filepath.Glob(filepath.Join(dir, "*.bin"))
	if err != nil || len(files) == 0 {
		s.Fatalf("%s has no golden files (%v)", dir, err)
	}
	out := map[string]struct {
		body []byte
		json any
	}{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".bin")
		body, err := os.ReadFile(file)
		if err != nil {
			s.Fatal(err)
		}
		out[name] = struct {
			body []byte
			json any
		}{body, s.numbers(filepath.Join(dir, name+".json"))}
	}
	return out
}

// numbers reads JSON and keeps numbers as they are spelled.
func (s system) numbers(file string) any {
	s.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		s.Fatalf("%s: %v", file, err)
	}
	return v
}

// TestStrangerReadsEveryVersion guarantees that somebody who has nothing of us
// but a schema file, with libraries that are not ours, reads the committed
// bytes of every version ever published, each field as it was written.
func TestStrangerReadsEveryVersion(t *testing.T) {
	t.Parallel()

	s := common(t)
	read, broker := s.stranger(), s.broker()
	for _, topic := range []string{rulesv1.Topic, usagev1.Topic, quotaeventsv1.Topic} {
		published := schemas.Published(topic)
		for i, text := range published {
			version := i + 1
			own := fmt.Sprintf("golden.%s.%d", topic, version)
			if _, err := kadm.NewClient(broker).CreateTopic(s.Context(), 3, 1, nil, own); err != nil {
				s.Fatal(err)
			}
			avsc, err := parseSchema(text)
			if err != nil {
				s.Fatal(err)
			}
			id, want := s.register(own+"-value", text), map[string]any{}
			for name, g := range s.golden(topic, version) {
				want[name] = avsc.shown(avsc.root, g.json)
				if err := broker.ProduceSync(s.Context(), &kgo.Record{Topic: own, Key: []byte(name), Value: framed(id, g.body)}).FirstErr(); err != nil {
					s.Fatal(err)
				}
			}
			// By the schema of its writer, and, resolved, by the newest of the topic.
			for _, schema := range []string{"", topic + ".avsc"} {
				got := map[string]any{}
				for _, l := range read(own, schema) {
					if l.SchemaID != id {
						t.Errorf("%s is shown with schema %d, want %d", l.Key, l.SchemaID, id)
					}
					got[l.Key] = any(l.Value)
				}
				if schema != "" && version < len(published) {
					continue // read whole; fields that came later are at their defaults
				}
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("%s version %d, read with schema %q, is not what was written (-want +got):\n%s", topic, version, schema, diff)
				}
			}
		}
	}
}

// TestStrangerReadsDecisions guarantees that a subscriber of usage.v1 sees what
// the gateways answered: each decision once, whichever gateway and face took it,
// with the dimensions that were asked, the numbers that were answered, and the
// digest of a key, never the key.
func TestStrangerReadsDecisions(t *testing.T) {
	t.Parallel()

	s := common(t)
	tenant := s.tenant(nil)
	burst, month := tenant+"-burst", tenant+"-month"
	s.put("rules", burst, gcra(tenant, 3, "1h", 3))
	s.put("rules", month, monthly(tenant, 1000))
	q := estate.Object{
		"tenant": tenant, "application": "web", "user": "u1", "client_ip": "198.51.100.9",
		"service": "payments", "method": "POST", "path": "/v1/pay", "labels": estate.Object{"region": "eu"},
	}
	s.enforced(q, burst, 3)
	s.enforced(q, month, 1000)

	begun := time.Now().Add(-time.Minute) // the store's clock tells the time of a decision
	want := map[string]map[string]any{}
	for i, outcome := range []string{"ALLOW", "ALLOW", "DENY"} {
		ask := maps.Clone(q)
		ask["request_id"], ask["cost"] = fmt.Sprint("r-", i), 1+i%2 // 1, 2, and 1 more than there is
		d := s.decided(i%2, ask)
		if d.Outcome != outcome {
			s.Fatalf("decision %d is %+v, want %s", i, d, outcome)
		}
		_, _, consumed, _ := d.limit(month)
		want[d.DecisionID] = map[string]any{
			"decision": outcome, "status": number(int64(d.Status)), "cost": number(d.Cost), "rules_version": number(d.RulesVersion), "rule_id": burst,
			"algorithm": "gcra", "tenant": tenant, "application": "web", "user": "u1", "api_key": "", "api_key_hash": "", "client_address": "198.51.100.9",
			"service": "payments", "endpoint": "pay", "method": "POST", "path_template": "/v1/pay", "gateway_id": []string{estate.Gateway, estate.Gateway2}[i%2],
			"upstream": nil, "labels_json": `{"region":"eu"}`, "consumed": number(consumed),
		}
	}
	proxied := tenant + "-proxied"
	s.put("tenants", proxied, estate.Object{})
	s.put("rules", proxied, monthly(proxied, 1000))
	secret := s.key(proxied)
	s.enforced(estate.Object{"tenant": proxied}, proxied, 1000)
	s.within(20*time.Second, "the store to decide", func() error {
		if r := s.send(http.MethodGet, s.Env["GATEWAY_URL"]+"/payments/v1/payments/7", "", "X-API-Key", secret); r.status != http.StatusOK {
			return fmt.Errorf("the proxied request: %d %s", r.status, r.body)
		}
		return nil
	})

	read, digest := s.stranger(), sha256.Sum256([]byte(secret))
	s.within(indexed, "every decision to be on the topic", func() error {
		seen, viaProxy := map[string]bool{}, 0
		for _, l := range read(usagev1.Topic, usagev1.Topic+".avsc") {
			decision, _ := l.Value["decision"].(string)
			if l.Key != tenant && l.Key != proxied || l.Repeat || strings.HasPrefix(decision, "DEGRADED") { // of a machine that was too busy
				continue
			}
			id, _ := l.Value["decision_id"].(string)
			at, err := time.Parse(time.RFC3339, fmt.Sprint(l.Value["ts"]))
			if err != nil || at.Before(begun) || at.After(time.Now().Add(time.Minute)) || l.Value["event_id"] != id {
				s.Fatalf("event %v at %v of decision %s", l.Value["event_id"], l.Value["ts"], id)
			}
			w, ok := want[id]
			if l.Key == proxied {
				ok, w = true, map[string]any{
					"decision": "ALLOW", "status": number(200), "cost": number(1), "rule_id": proxied, "algorithm": "quota",
					"api_key": proxied + "-key", "api_key_hash": hex.EncodeToString(digest[:16]), "client_address": "127.0.0.1",
					"service": "payments", "endpoint": "payment", "method": "GET", "path_template": "/v1/payments/{id}",
					"consumed": number(1), "upstream": number(200),
				}
				viaProxy++
			}
			if !ok || seen[id] {
				s.Fatalf("event of decision %s, which was not made or is there twice: %v", id, l.Value)
			}
			seen[id] = true
			s.compare(w, l.Value)
		}
		if len(seen) != len(want)+1 || viaProxy != 1 {
			return fmt.Errorf("%d of %d decisions and %d proxied requests are there", len(seen)-viaProxy, len(want), viaProxy)
		}
		return nil
	})
}

// compare checks the fields of an event that are wanted. The only counter's
// consumption and the upstream's status count as such.
func (s system) compare(want, event map[string]any) {
	s.Helper()
	got := map[string]any{}
	for field := range want {
		got[field] = event[field]
	}
	counters := list(event["counters"])
	if len(counters) != 1 {
		s.Fatalf("the event has %d counters, want 1: %v", len(counters), event)
	}
	got["consumed"] = object(counters[0])["consumed"]
	if up := object(event["upstream"]); up != nil {
		got["upstream"] = up["status"]
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		s.Fatalf("an event is not what was answered (-want +got):\n%s", diff)
	}
}

func number(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }

// TestStrangerFollowsTheReadme guarantees that the commands of the example's
// page work as they stand, and that a record which kcat writes that way lies
// where Java's client, and ours, would put it.
func TestStrangerFollowsTheReadme(t *testing.T) {
	t.Parallel()

	s := common(t)
	s.need(server.Python, server.Kcat)
	python, err := server.FindPython()
	if err != nil {
		s.Fatal(err)
	}
	const topic = "readme.copy"
	broker, bin := s.broker(), s.TempDir()
	if _, err := kadm.NewClient(broker).CreateTopic(s.Context(), 6, 1, nil, topic); err != nil {
		s.Fatal(err)
	}
	if err := os.Symlink(python, filepath.Join(bin, "python3")); err != nil {
		s.Fatal(err)
	}
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "TOPIC=" + topic}
	for name, value := range s.Env {
		env = append(env, name+"="+value)
	}
	folder := filepath.Join(s.root(), "deploy", "examples", "consumer")
	page, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		s.Fatal(err)
	}
	commands := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(page, -1)
	for _, c := range commands {
		ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", string(c[1]))
		cmd.Dir, cmd.Env = folder, env
		if out, err := cmd.CombinedOutput(); err != nil {
			s.Errorf("%s: %v: %s", c[1], err, out)
		} else if bytes.Contains(c[1], []byte("rules.v1")) && !bytes.Contains(out, []byte("rule/acme-burst")) {
			s.Errorf("%s does not show rule/acme-burst: %s", c[1], out)
		}
		cancel()
	}
	if len(commands) != 4 {
		s.Errorf("the page has %d commands, want 4", len(commands))
	}

	// The same key from here, beside what kcat has just written.
	if err := broker.ProduceSync(s.Context(), &kgo.Record{Topic: topic, Key: []byte("acme"), Value: []byte("ours")}).FirstErr(); err != nil {
		s.Fatal(err)
	}
	ends, err := kadm.NewClient(broker).ListEndOffsets(s.Context(), topic)
	if err != nil {
		s.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset != 0 && o.Offset != 2 {
			s.Errorf("partition %d has %d records, want both of the key in one", o.Partition, o.Offset)
		}
	})
}

// plural is how the administration interface spells kinds of object.
func plural() map[string]string {
	return map[string]string{
		"tenant": "tenants", "application": "applications", "user": "users", "api_key": "api-keys",
		"service": "services", "endpoint": "endpoints", "plan": "plans", "rule": "rules",
	}
}

// TestStrangerReadsTheCatalogue guarantees that a subscriber of rules.v1 sees
// the objects that were put into the catalogue, each field as the
// administration interface shows it, under the key <kind>/<id>.
func TestStrangerReadsTheCatalogue(t *testing.T) {
	t.Parallel()

	s := common(t)
	read := s.stranger()
	secrets, err := s.Keys()
	if err != nil {
		s.Fatal(err)
	}
	avsc, err := parseSchema(schemas.RulesV1)
	if err != nil {
		s.Fatal(err)
	}
	newest := map[string]line{}
	for _, l := range read(rulesv1.Topic, rulesv1.Topic+".avsc") {
		if old, ok := newest[l.Key]; !ok || version(l) >= version(old) {
			newest[l.Key] = l
		}
	}
	seen := map[string]int{}
	for key, l := range newest {
		kind, id, _ := strings.Cut(key, "/")
		if l.Value == nil || !sample(kind, id) {
			continue
		}
		seen[kind]++
		put, _, err := s.admin.Get(s.Context(), plural()[kind], id)
		if err != nil {
			s.Error(err)
			continue
		}
		want := wanted(avsc, kind, put)
		if kind == "api_key" {
			digest := sha256.Sum256([]byte(secrets[strings.ToUpper(map[string]string{
				"acme-web-ada": "acme", "acme-batch": "acme_batch", "globex-shop": "globex", "initech-tps": "initech",
			}[id])+"_KEY"]))
			object(want[kind])["digest"] = hex.EncodeToString(digest[:])
		}
		if diff := gocmp.Diff(want, l.Value); diff != "" {
			s.Errorf("%s is not what was put (-want +got):\n%s", key, diff)
		}
	}
	for kind := range plural() {
		if seen[kind] == 0 {
			s.Errorf("no %s of the sample catalogue was read", kind)
		}
	}
}

// version is a record's, or a tombstone's header.
func version(l line) int64 {
	text := cmp.Or(l.Headers[rulesv1.HeaderVersion], "0")
	if n, ok := l.Value["version"].(json.Number); ok {
		text = n.String()
	}
	v, _ := strconv.ParseInt(text, 10, 64)
	return v
}

// sample reports whether an object is of the sample catalogue, which nobody
// changes here, and not another test's.
func sample(kind, id string) bool {
	names := map[string][]string{
		"tenant": {"acme", "globex", "initech"}, "plan": {"gold", "silver", "free"}, "user": {"ada", "hank", "peter"},
		"application": {"acme-web", "acme-batch", "globex-shop", "initech-tps"}, "service": {"payments", "search", "export"},
		"api_key":  {"acme-web-ada", "acme-batch", "globex-shop", "initech-tps"},
		"endpoint": {"pay", "payment", "search", "deep-search", "export", "export-rows"},
		"rule": {
			"gold-rate", "silver-rate", "free-rate", "acme-burst", "free-month", "export-per-application", "search-per-user", "blocked-network",
		},
	}
	return slices.Contains(names[kind], id)
}

// wanted is the record of an object that the administration interface shows so.
func wanted(avsc *schema, kind string, put estate.Object) map[string]any {
	name := map[string]string{"api_key": "ApiKey"}[kind]
	body := avsc.initial(cmp.Or(name, strings.ToUpper(kind[:1])+kind[1:]))
	for field, v := range put {
		switch field {
		case "id", "version", "changed_at", "changed_by":
		case "window", "connect_timeout", "response_timeout", "idle_timeout":
			d, _ := time.ParseDuration(fmt.Sprint(v))
			body[field+"_us"] = json.Number(strconv.FormatInt(d.Microseconds(), 10))
		case "included":
			included := []any{}
			for _, meter := range slices.Sorted(maps.Keys(object(v))) {
				included = append(included, map[string]any{"meter": meter, "units": spelled(object(v)[meter])})
			}
			body[field] = included
		case "overage", "fee", "period", "match":
			body[field] = nested(avsc, map[string]string{"overage": "Overage", "fee": "Fee", "period": "Period", "match": "Match"}[field], v)
		case "thresholds":
			body["thresholds_percent"] = spelled(v)
		default:
			body[field] = spelled(v)
		}
	}
	if kind == "rule" {
		body["wallet"] = "none"
		if body["kind"] == "block" { // the interface shows no counting of what is not counted
			body["algorithm"], body["on_failure"], body["limit"] = "none", "open", nil
		}
		if _, named := put["thresholds"]; !named && (body["kind"] == "quota" || body["kind"] == "wallet") {
			body["thresholds_percent"] = []any{json.Number("80"), json.Number("100")}
		}
	}
	at, _ := time.Parse(time.RFC3339, fmt.Sprint(put["changed_at"]))
	out := avsc.initial(avsc.root)
	maps.Copy(out, map[string]any{
		"kind": kind, "id": put["id"], "version": spelled(put["version"]), "revision": spelled(put["version"]),
		"changed_at": micros(at), "changed_by": put["changed_by"], kind: body,
	})
	return out
}

// nested is a record, or a list of them, with the defaults of its schema.
func nested(avsc *schema, name string, v any) any {
	if items, ok := v.([]any); ok {
		out := []any{}
		for _, item := range items {
			out = append(out, nested(avsc, name, item))
		}
		return out
	}
	out := avsc.initial(name)
	for field, v := range object(v) {
		out[field] = spelled(v)
	}
	return out
}

// spelled turns the numbers of plain JSON into what UseNumber gives.
func spelled(v any) any {
	switch v := v.(type) {
	case float64:
		return json.Number(strconv.FormatFloat(v, 'f', -1, 64))
	case []any:
		out := make([]any, 0, len(v))
		for _, item := range v {
			out = append(out, spelled(item))
		}
		return out
	}
	return v
}

// indexed is how soon an event is found in the index: the way through Kafka,
// and the index's refresh.
const indexed = 30 * time.Second

// documents returns what the index has that a query finds, at most 1,000. A
// store that is just making the index answers with an error.
func (s system) documents(query string) ([]map[string]any, error) {
	s.Helper()
	r := s.send(http.MethodPost, s.Env["ELASTICSEARCH_URL"]+"/ratelimit-usage-*/_search?size=1000&allow_no_indices=true",
		`{"query": `+query+`}`, "Content-Type", "application/json")
	var answer struct {
		Hits struct {
			Hits []struct {
				Source map[string]any `json:"_source"`
			} `json:"hits"`
		} `json:"hits"`
	}
	if r.status != http.StatusOK {
		return nil, fmt.Errorf("%d %.300s", r.status, r.body)
	}
	if err := json.Unmarshal([]byte(r.body), &answer); err != nil {
		return nil, fmt.Errorf("%w in %.300s", err, r.body)
	}
	docs := make([]map[string]any, 0, len(answer.Hits.Hits))
	for _, hit := range answer.Hits.Hits {
		docs = append(docs, hit.Source)
	}
	return docs, nil
}
