package grpcapi_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/internal/rule"
)

const (
	ok   = ratelimitv3.RateLimitResponse_OK
	over = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// limited asks the rate limit service as a trusted peer.
func (s *server) limited(in *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitResponse {
	s.t.Helper()
	out, err := s.limits.ShouldRateLimit(s.t.Context(), in)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func headers(out *ratelimitv3.RateLimitResponse) map[string]string {
	m := map[string]string{}
	for _, h := range out.GetResponseHeadersToAdd() {
		m[h.GetKey()] = h.GetValue()
	}
	return m
}

func digest(value string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(value))) }

// TestEntries guarantees what each entry of a descriptor stands for.
func TestEntries(t *testing.T) { onEngines(t, testEntries) }

func testEntries(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.key("k", "pk_live_4711", "keyed", "web", "u1")
	s.put(decide.ServiceKind, "payments", &decide.ServiceDef{ID: "payments", Upstream: "http://192.0.2.1"})
	s.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 3})
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		name   string
		pairs  []string
		want   decide.Usage
		labels string
	}{
		{
			"dimensions",
			[]string{"tenant", "acme", "application", "web", "user", "u1", "client_ip", "203.0.113.9", "method", "post", "path", "/v1/pay/7?x=1"},
			decide.Usage{Tenant: "acme", Application: "web", User: "u1", Address: netip.MustParseAddr("203.0.113.9"), Service: "payments", Method: "POST", Endpoint: "pay", Cost: 3},
			"",
		},
		{
			"as Envoy names them",
			[]string{"remote_address", "2001:db8::1", ":method", "POST", ":path", "/v1/pay/7"},
			decide.Usage{Address: netip.MustParseAddr("2001:db8::"), Service: "payments", Method: "POST", Endpoint: "pay", Cost: 3},
			"",
		},
		{
			"a key",
			[]string{"api_key", "pk_live_4711"},
			decide.Usage{Tenant: "keyed", Application: "web", User: "u1", APIKey: "k", Service: "payments", Cost: 1},
			"",
		},
		{
			"a service beats the domain",
			[]string{"service", "billing"},
			decide.Usage{Service: "billing", Cost: 1},
			"",
		},
		{
			"all others are labels",
			[]string{"generic_key", "slow", "generic_key", "deep", "destination_cluster", "c"},
			decide.Usage{Service: "payments", Cost: 1},
			`{"destination_cluster":"c","generic_key":"slow","generic_key.2":"deep"}`,
		},
		{
			"what is too long or no UTF-8 counts under its digest",
			[]string{"tenant", long, "user", "\xff", "agent", long},
			decide.Usage{
				Tenant: digest(long), User: digest("\xff"),
				Service: "payments", Cost: 1,
			},
			`{"agent":"` + digest(long) + `"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(s.events())
			out := s.limited(oneDescriptor(tt.pairs...))
			told := s.events()[before:]
			if out.GetOverallCode() != ok || len(told) != 1 {
				t.Fatalf("answered %v and told of %d", out, len(told))
			}
			u := told[0]
			got := decide.Usage{
				Tenant: u.Tenant, Application: u.Application, User: u.User, APIKey: u.APIKey, Address: u.Address,
				Service: u.Service, Endpoint: u.Endpoint, Method: u.Method, Cost: u.Cost,
			}
			if got.Tenant != tt.want.Tenant || got.Application != tt.want.Application || got.User != tt.want.User || got.APIKey != tt.want.APIKey ||
				got.Address != tt.want.Address || got.Service != tt.want.Service || got.Endpoint != tt.want.Endpoint || got.Method != tt.want.Method || got.Cost != tt.want.Cost {
				t.Errorf("asked about %+v, want %+v", got, tt.want)
			}
			if u.Labels != tt.labels {
				t.Errorf("labels %s, want %s", u.Labels, tt.labels)
			}
		})
	}
}

// TestAddend guarantees what is charged.
func TestAddend(t *testing.T) { onEngines(t, testAddend) }

func testAddend(t *testing.T, engine grpcapi.Engine) {
	for _, tt := range []struct {
		name       string
		call       uint32
		descriptor *wrapperspb.UInt64Value
		left       uint32
	}{
		{"nothing said is 1", 0, nil, 9},
		{"that of the call", 4, nil, 6},
		{"that of the descriptor", 4, wrapperspb.UInt64(7), 3},
		{"0 of the descriptor peeks", 4, wrapperspb.UInt64(0), 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, engine)
			s.rate("burst", rule.Tenant, 10, nil)
			in := oneDescriptor("tenant", "acme")
			in.HitsAddend, in.Descriptors[0].HitsAddend = tt.call, tt.descriptor
			if out := s.limited(in); out.GetOverallCode() != ok || out.GetStatuses()[0].GetLimitRemaining() != tt.left {
				t.Errorf("%v, want %d left", out, tt.left)
			}
		})
	}
}

// TestDescriptors guarantees that each descriptor is a decision of its own,
// that one refusal is the refusal of the call, and what the answer tells.
func TestDescriptors(t *testing.T) { onEngines(t, testDescriptors) }

func testDescriptors(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.rate("tenant", rule.Tenant, 2, nil)
	s.rate("address", rule.IP, 5, nil)
	both := &ratelimitv3.RateLimitRequest{Domain: "payments", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		descriptor("tenant", "acme"), descriptor("remote_address", "203.0.113.9"),
	}}
	s.limited(both)
	out := s.limited(both)
	if out.GetOverallCode() != ok || out.GetRawBody() != nil {
		t.Fatal(out)
	}
	if got := headers(out); got["x-ratelimit-limit"] != "2" || got["x-ratelimit-remaining"] != "0" || got["ratelimit"] != `"tenant";r=0;t=30` || got["retry-after"] != "" {
		t.Errorf("headers %v, want those of the limit that is reached first", got)
	}
	out = s.limited(both)
	if out.GetOverallCode() != over || out.GetStatuses()[0].GetCode() != over || out.GetStatuses()[1].GetCode() != ok {
		t.Fatal(out)
	}
	first, second := out.GetStatuses()[0], out.GetStatuses()[1]
	if l := first.GetCurrentLimit(); l.GetName() != "tenant" || l.GetRequestsPerUnit() != 2 || l.GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_MINUTE || l.UnitMultiplier != nil {
		t.Errorf("limit %v", l)
	}
	if first.GetLimitRemaining() != 0 || first.GetDurationUntilReset().GetSeconds() != 30 || second.GetLimitRemaining() != 2 {
		t.Errorf("statuses %v, want the second charged all the same", out.GetStatuses())
	}
	if got := headers(out); got["retry-after"] != "30" || got["content-type"] != "application/problem+json" || got["ratelimit-policy"] != `"tenant";q=2;w=60` {
		t.Errorf("headers %v", got)
	}
	var body struct {
		Code     string
		Status   int
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal(out.GetRawBody(), &body); err != nil || body.Code != "rate-limited" || body.Status != 429 || !slices.Equal(body.Violated, []string{"tenant"}) {
		t.Errorf("body %s %v", out.GetRawBody(), err)
	}
	if told := s.events(); len(told) != 6 {
		t.Errorf("told of %d decisions, want 6", len(told))
	}
}

// TestRefusals guarantees that whatever a client can cause is a refusal, and
// never an error that Envoy would let pass.
func TestRefusals(t *testing.T) { onEngines(t, testRefusals) }

func testRefusals(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.key("k", "secret", "acme", "", "")
	s.put(decide.RuleKind, "banned", &rule.Rule{
		ID: "banned", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Match: rule.Match{Tenant: "banned"}, OnFailure: rule.Open,
	})
	for _, tt := range []struct {
		name  string
		pairs []string
		code  string
	}{
		{"an unknown key", []string{"api_key", "nobody's"}, "unknown-key"},
		{"a key of another", []string{"api_key", "secret", "tenant", "globex"}, "malformed"},
		{"a path of two readings", []string{"path", "/a%2fb"}, "malformed"},
		{"a path without end", []string{":path", "/" + strings.Repeat("x", 8192)}, "malformed"},
		{"no method", []string{"method", "G T"}, "malformed"},
		{"no address", []string{"client_ip", "203.0.113.9, 203.0.113.10"}, "malformed"},
		{"blocked", []string{"tenant", "banned"}, "blocked"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := s.limited(oneDescriptor(tt.pairs...))
			var body struct{ Code, Type, Title, Detail string }
			if err := json.Unmarshal(out.GetRawBody(), &body); err != nil {
				t.Fatal(err)
			}
			if out.GetOverallCode() != over || body.Code != tt.code || body.Type != "https://penstock.dev/problems/"+tt.code || body.Title == "" || body.Detail == "" {
				t.Errorf("%v %s, want %s", out.GetOverallCode(), out.GetRawBody(), tt.code)
			}
			if out.GetStatuses()[0].GetCurrentLimit() != nil {
				t.Errorf("limit %v of no counter", out.GetStatuses()[0])
			}
		})
	}
}

// TestMisconfigured guarantees that a descriptor which no client but only a
// configuration can make is an error that names the place.
func TestMisconfigured(t *testing.T) { onEngines(t, testMisconfigured) }

func testMisconfigured(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	negative := oneDescriptor("tenant", "acme")
	negative.Descriptors[0].IsNegativeHits = true
	var many []*ratelimitv3.RateLimitDescriptor
	for range 101 {
		many = append(many, descriptor("tenant", "acme"))
	}
	var labels []string
	for range 65 {
		labels = append(labels, "generic_key", "x")
	}
	for _, tt := range []struct {
		name string
		in   *ratelimitv3.RateLimitRequest
		want []string
	}{
		{"nothing", &ratelimitv3.RateLimitRequest{}, []string{"domain", "descriptors"}},
		{"no text", &ratelimitv3.RateLimitRequest{Domain: "\xff", Descriptors: many[:1]}, []string{"domain"}},
		{"101 descriptors", &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: many}, []string{"descriptors"}},
		{"units to give back", negative, []string{"descriptors[0].is_negative_hits"}},
		{"a dimension twice", oneDescriptor("client_ip", "203.0.113.9", "remote_address", "203.0.113.9"), []string{"descriptors[0].entries"}},
		{"no key", oneDescriptor("", "x"), []string{"descriptors[0].entries"}},
		{"65 labels", oneDescriptor(labels...), []string{"descriptors[0].entries"}},
		{"73 entries", oneDescriptor(append(labels, labels[:16]...)...), []string{"descriptors[0].entries"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.limits.ShouldRateLimit(t.Context(), tt.in)
			if got := refused(t, err, codes.InvalidArgument, "malformed"); !slices.Equal(got, tt.want) {
				t.Errorf("names %v, want %v", got, tt.want)
			}
		})
	}
}

// TestDegraded guarantees that each rule's failure mode decides while the
// store does not answer, and that no number is told.
func TestDegraded(t *testing.T) { onEngines(t, testDegraded) }

func testDegraded(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	for _, mode := range []rule.FailureMode{rule.Open, rule.Closed} {
		s.rate(string(mode), rule.Tenant, 1, func(r *rule.Rule) { r.Match.Tenant, r.OnFailure = string(mode), mode })
	}
	s.lose(true)
	out := s.limited(oneDescriptor("tenant", "open"))
	if got, want := headers(out), map[string]string{"x-ratelimit-degraded": "true"}; out.GetOverallCode() != ok || !maps.Equal(got, want) {
		t.Errorf("open: %v %v", out, got)
	}
	out = s.limited(oneDescriptor("tenant", "closed"))
	if got := headers(out); out.GetOverallCode() != over || got["retry-after"] != "1" || got["x-ratelimit-degraded"] != "true" || !strings.Contains(string(out.GetRawBody()), "store-unavailable") {
		t.Errorf("closed: %v %v", out, got)
	}
	if st := out.GetStatuses()[0]; st.GetCurrentLimit() != nil || st.GetDurationUntilReset() != nil {
		t.Errorf("status %v has numbers", st)
	}
}

// TestUnits guarantees how windows and periods are told in Envoy's units.
func TestUnits(t *testing.T) { onEngines(t, testUnits) }

func testUnits(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	window := func(d time.Duration) func(*rule.Rule) {
		return func(r *rule.Rule) { r.Window, r.Match.Tenant = d, d.String() }
	}
	for d, want := range map[time.Duration]struct {
		unit  ratelimitv3.RateLimitResponse_RateLimit_Unit
		times uint32
	}{
		time.Second:            {ratelimitv3.RateLimitResponse_RateLimit_SECOND, 0},
		90 * time.Second:       {ratelimitv3.RateLimitResponse_RateLimit_SECOND, 90},
		time.Minute:            {ratelimitv3.RateLimitResponse_RateLimit_MINUTE, 0},
		5 * time.Minute:        {ratelimitv3.RateLimitResponse_RateLimit_MINUTE, 5},
		time.Hour:              {ratelimitv3.RateLimitResponse_RateLimit_HOUR, 0},
		24 * time.Hour:         {ratelimitv3.RateLimitResponse_RateLimit_DAY, 0},
		7 * 24 * time.Hour:     {ratelimitv3.RateLimitResponse_RateLimit_WEEK, 0},
		300 * time.Millisecond: {ratelimitv3.RateLimitResponse_RateLimit_UNKNOWN, 0},
	} {
		s.rate(d.String(), rule.Tenant, 1, window(d))
		l := s.limited(oneDescriptor("tenant", d.String())).GetStatuses()[0].GetCurrentLimit()
		if l.GetUnit() != want.unit || l.GetUnitMultiplier().GetValue() != want.times {
			t.Errorf("%v is told as %v", d, l)
		}
	}
	s = newServer(t, engine)
	s.monthly("month", 1<<40)
	st := s.limited(oneDescriptor("tenant", "acme")).GetStatuses()[0]
	if l := st.GetCurrentLimit(); l.GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_MONTH || l.GetRequestsPerUnit() != 1<<32-1 || st.GetLimitRemaining() != 1<<32-1 {
		t.Errorf("a month of 2^40 is told as %v", st)
	}
	s = newServer(t, engine)
	s.wallet("acme", 5)
	st = s.limited(oneDescriptor("tenant", "acme")).GetStatuses()[0]
	if l := st.GetCurrentLimit(); l.GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_UNKNOWN || st.GetLimitRemaining() != 4 || st.GetDurationUntilReset() != nil {
		t.Errorf("a wallet is told as %v", st)
	}
}
