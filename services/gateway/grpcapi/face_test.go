package grpcapi_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/internal/rule"
)

// TestDecide guarantees the answer to each kind of question.
func TestDecide(t *testing.T) { onEngines(t, testDecide) }

func testDecide(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.rate("burst", rule.Tenant, 3, nil)
	s.monthly("month", 1000)
	s.key("k", "pk_live_4711", "keyed", "web", "u1")

	d, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme", Cost: new(int64(2)), Labels: map[string]string{"b": "2", "a": `"1`}})
	if err != nil {
		t.Fatal(err)
	}
	if d.GetOutcome() != decisionv1.Decision_ALLOW || d.GetStatus() != 200 || d.GetCost() != 2 || d.GetReceipt() == "" || len(d.GetLimits()) != 2 {
		t.Errorf("first: %v", d)
	}
	if l := d.GetLimits()[1]; l.GetRuleId() != "month" || l.GetConsumed() != 2 || l.Refunded == nil || l.Balance != nil || l.GetPeriodEnd().AsTime() != t0.Add(time.Hour) {
		t.Errorf("month: %v", l)
	}
	if told := s.events(); len(told) != 1 || told[0].Labels != `{"a":"\"1","b":"2"}` {
		t.Errorf("events %+v, want one with its labels by name", told)
	}

	d, err = s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme", Cost: new(int64(2))})
	if err != nil || d.GetOutcome() != decisionv1.Decision_DENY || d.GetCode() != "rate-limited" || d.GetRuleId() != "burst" || d.GetRetryAfterSeconds() != 20 {
		t.Errorf("second: %v %v", d, err)
	}
	d, err = s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme", Cost: new(int64(0))})
	if err != nil || d.GetOutcome() != decisionv1.Decision_ALLOW || d.GetReceipt() != "" || d.GetLimits()[0].GetRemaining() != 1 {
		t.Errorf("peek: %v %v", d, err)
	}
	d, err = s.client.Decide(s.ctx(), &decisionv1.DecideRequest{ApiKey: "pk_live_4711"})
	if err != nil || d.GetOutcome() != decisionv1.Decision_ALLOW || s.events()[2].APIKey != "k" || s.events()[2].Tenant != "keyed" {
		t.Errorf("key: %v %v %+v", d, err, s.events())
	}
	d, err = s.client.Decide(s.ctx(), &decisionv1.DecideRequest{ApiKey: "nobody's"})
	if err != nil || d.GetOutcome() != decisionv1.Decision_DENY || d.GetStatus() != 401 || d.GetCode() != "unknown-key" {
		t.Errorf("unknown key: %v %v", d, err)
	}
	s.lose(true)
	d, err = s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme"})
	if err != nil || !d.GetDegraded() || d.GetStatus() != 503 || d.GetCode() != "store-unavailable" || len(d.GetLimits()) != 0 {
		t.Errorf("degraded: %v %v", d, err)
	}
}

// TestRepeat guarantees that a request id makes a question safe to repeat.
func TestRepeat(t *testing.T) { onEngines(t, testRepeat) }

func testRepeat(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.rate("burst", rule.Tenant, 3, nil)
	question := &decisionv1.DecideRequest{Tenant: "acme", RequestId: "r-1"}
	first, err := s.client.Decide(s.ctx(), question)
	if err != nil || first.GetReplayed() {
		t.Fatal(first, err)
	}
	again, err := s.client.Decide(s.ctx(), question)
	if err != nil || !again.GetReplayed() || again.GetDecisionId() != first.GetDecisionId() {
		t.Errorf("again: %v %v", again, err)
	}
	_, err = s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme", RequestId: "r-1", Cost: new(int64(2))})
	if fields := refused(t, err, codes.AlreadyExists, "request-id-reused"); !slices.Equal(fields, []string{"request_id"}) {
		t.Errorf("names %v", fields)
	}
}

// TestBounds guarantees that what is out of bounds is refused by the name of
// its field, and charges nothing.
func TestBounds(t *testing.T) { onEngines(t, testBounds) }

func testBounds(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.key("k", "secret", "acme", "", "")
	long := strings.Repeat("x", 257)
	many := map[string]string{}
	for i := range 65 {
		many[strconv.Itoa(i)] = ""
	}
	big := map[string]string{}
	for i := range 40 {
		big[strconv.Itoa(i)] = strings.Repeat("x", 256)
	}
	for _, tt := range []struct {
		name string
		in   *decisionv1.DecideRequest
		want []string
	}{
		{
			"every text", &decisionv1.DecideRequest{
				RequestId: long, Tenant: long, Application: long, User: long, ApiKey: long, ClientIp: long, Service: long, Method: long[:33], Path: strings.Repeat("/", 8193),
			},
			[]string{"request_id", "tenant", "application", "user", "api_key", "client_ip", "service", "method", "path"},
		},
		{"no address", &decisionv1.DecideRequest{ClientIp: "nowhere"}, []string{"client_ip"}},
		{"no method", &decisionv1.DecideRequest{Method: "G T"}, []string{"method"}},
		{"two paths in one", &decisionv1.DecideRequest{Path: "/a%2Fb"}, []string{"path"}},
		{"a cost below zero", &decisionv1.DecideRequest{Cost: new(int64(-1))}, []string{"cost"}},
		{"a cost above all", &decisionv1.DecideRequest{Cost: new(int64(rule.Unlimited + 1))}, []string{"cost"}},
		{"a label without a name", &decisionv1.DecideRequest{Labels: map[string]string{"": "x"}}, []string{"labels"}},
		{"a long label", &decisionv1.DecideRequest{Labels: map[string]string{"a": long}}, []string{"labels.a"}},
		{"many labels", &decisionv1.DecideRequest{Labels: many}, []string{"labels"}},
		{"labels that no event holds", &decisionv1.DecideRequest{Labels: big}, []string{"labels"}},
		{"a key of another tenant", &decisionv1.DecideRequest{ApiKey: "secret", Tenant: "globex"}, []string{"tenant"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.client.Decide(s.ctx(), tt.in)
			if got := refused(t, err, codes.InvalidArgument, "malformed"); !slices.Equal(got, tt.want) {
				t.Errorf("names %v, want %v", got, tt.want)
			}
		})
	}
	if told := s.events(); len(told) != 0 {
		t.Errorf("told of %d, want none", len(told))
	}
}

// TestBatch guarantees the size of a batch, that its answers are in order, and
// that one malformed question stops all.
func TestBatch(t *testing.T) { onEngines(t, testBatch) }

func testBatch(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.rate("burst", rule.Tenant, 99, nil)
	hundred := make([]*decisionv1.DecideRequest, 100)
	for i := range hundred {
		hundred[i] = &decisionv1.DecideRequest{Tenant: "acme"}
	}
	out, err := s.client.DecideBatch(s.ctx(), &decisionv1.DecideBatchRequest{Decisions: hundred})
	if err != nil || len(out.GetDecisions()) != 100 {
		t.Fatal(out, err)
	}
	for i, d := range out.GetDecisions() {
		if passed := d.GetOutcome() == decisionv1.Decision_ALLOW; passed != (i < 99) {
			t.Errorf("number %d: %v", i, d)
		}
	}
	if told := s.events(); len(told) != 100 {
		t.Errorf("told of %d, want 100", len(told))
	}
	for _, tt := range []struct {
		name string
		in   []*decisionv1.DecideRequest
		want []string
	}{
		{"none", nil, []string{"decisions"}},
		{"101", append(slices.Clone(hundred), hundred[0]), []string{"decisions"}},
		{"two wrong", []*decisionv1.DecideRequest{{}, {Cost: new(int64(-1))}, {ClientIp: "x", Method: " "}}, []string{"decisions[1].cost", "decisions[2].client_ip", "decisions[2].method"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.client.DecideBatch(s.ctx(), &decisionv1.DecideBatchRequest{Decisions: tt.in})
			if got := refused(t, err, codes.InvalidArgument, "malformed"); !slices.Equal(got, tt.want) {
				t.Errorf("names %v, want %v", got, tt.want)
			}
		})
	}
	out, err = s.client.DecideBatch(s.ctx(), &decisionv1.DecideBatchRequest{Decisions: []*decisionv1.DecideRequest{
		{Tenant: "globex", RequestId: "r"}, {Tenant: "globex", RequestId: "r"}, {Tenant: "globex", RequestId: "r", Cost: new(int64(2))}, {ApiKey: "nobody's"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if d := out.GetDecisions(); !d[1].GetReplayed() || d[2].GetStatus() != 409 || d[2].GetCode() != "request-id-reused" || d[2].GetDecisionId() != "" || d[3].GetStatus() != 401 {
		t.Errorf("a repeat, another question, a stranger: %v", d)
	}
}

// TestCorrections guarantees that what was charged can be given back and
// settled, once, and what each refusal of that is.
func TestCorrections(t *testing.T) { onEngines(t, testCorrections) }

func testCorrections(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.wallet("acme", 100)
	d, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme", Cost: new(int64(5))})
	if err != nil {
		t.Fatal(err)
	}
	refund := &decisionv1.RefundRequest{DecisionId: d.GetDecisionId(), Receipt: d.GetReceipt(), RefundId: "f-1", Units: new(int64(2))}
	first, err := s.client.Refund(s.ctx(), refund)
	if err != nil || first.GetRefundId() != "f-1" || first.GetUnits() != 2 || first.GetRefundedTotal() != 2 || first.GetReplayed() {
		t.Errorf("refund: %v %v", first, err)
	}
	again, err := s.client.Refund(s.ctx(), refund)
	if err != nil || !again.GetReplayed() || again.GetUnits() != 2 {
		t.Errorf("again: %v %v", again, err)
	}
	settled, err := s.client.Settle(s.ctx(), &decisionv1.SettleRequest{DecisionId: strings.ToUpper(d.GetDecisionId()), Receipt: d.GetReceipt(), Cost: new(int64(7))})
	if err != nil || settled.GetDecisionId() != d.GetDecisionId() || settled.GetUnits() != 2 || settled.GetRefundedTotal() != 2 {
		t.Errorf("settlement: %v %v", settled, err)
	}
	if told := s.events(); len(told) != 3 {
		t.Errorf("told of %d, want a decision, a refund and a settlement", len(told))
	}
	_, err = s.client.Settle(s.ctx(), &decisionv1.SettleRequest{DecisionId: d.GetDecisionId(), Receipt: d.GetReceipt(), Cost: new(int64(8))})
	refused(t, err, codes.FailedPrecondition, "already-settled")
	_, err = s.client.Refund(s.ctx(), &decisionv1.RefundRequest{DecisionId: d.GetDecisionId(), Receipt: d.GetReceipt(), RefundId: "f-2", Units: new(int64(50))})
	refused(t, err, codes.FailedPrecondition, "refund-exceeds-charge")
	_, err = s.client.Refund(s.ctx(), &decisionv1.RefundRequest{DecisionId: d.GetDecisionId(), Receipt: "x" + d.GetReceipt()})
	refused(t, err, codes.PermissionDenied, "receipt-invalid")
	_, err = s.client.Refund(s.ctx(), &decisionv1.RefundRequest{DecisionId: "d", RefundId: strings.Repeat("x", 129), Units: new(int64(0))})
	if got, want := refused(t, err, codes.InvalidArgument, "malformed"), []string{"decision_id", "receipt", "refund_id", "units"}; !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	_, err = s.client.Settle(s.ctx(), &decisionv1.SettleRequest{DecisionId: d.GetDecisionId(), Receipt: d.GetReceipt()})
	if got := refused(t, err, codes.InvalidArgument, "malformed"); !slices.Equal(got, []string{"cost"}) {
		t.Errorf("names %v, want cost", got)
	}
	free, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "globex"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.client.Refund(s.ctx(), &decisionv1.RefundRequest{DecisionId: free.GetDecisionId(), Receipt: free.GetReceipt()})
	refused(t, err, codes.FailedPrecondition, "nothing-charged")
	s.lose(true)
	_, err = s.client.Refund(s.ctx(), &decisionv1.RefundRequest{DecisionId: d.GetDecisionId(), Receipt: d.GetReceipt()})
	refused(t, err, codes.Unavailable, "store-unavailable")
}

// TestTrust guarantees who may ask: DecisionService only with a token, the rate
// limit service also from an address that is named.
func TestTrust(t *testing.T) { onEngines(t, testTrust) }

func testTrust(t *testing.T, engine grpcapi.Engine) {
	named := newServer(t, engine)
	nobody := newServer(t, engine, func(s *setting) { s.trusted = nil })
	for _, tt := range []struct {
		name              string
		authorization     []string
		decisions, limits bool // of an unnamed peer
	}{
		{"a token", []string{"Bearer " + token}, true, true},
		{"another of them", []string{"bearer another-0123456789"}, true, true},
		{"none", nil, false, false},
		{"an unknown one", []string{"Bearer 0123456789abcdef"}, false, false},
		{"two", []string{"Bearer " + token, "Bearer " + token}, false, false},
		{"another scheme", []string{"Basic " + token}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			for _, a := range tt.authorization {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", a)
			}
			for _, s := range []*server{named, nobody} {
				if _, err := s.client.Decide(ctx, &decisionv1.DecideRequest{}); tt.decisions {
					if err != nil {
						t.Error(err)
					}
				} else {
					refused(t, err, codes.Unauthenticated, "unauthorized")
				}
			}
			_, err := nobody.limits.ShouldRateLimit(ctx, oneDescriptor("tenant", "acme"))
			switch {
			case !tt.limits:
				refused(t, err, codes.Unauthenticated, "unauthorized")
			case err != nil:
				t.Error(err)
			}
			if _, err := named.limits.ShouldRateLimit(ctx, oneDescriptor("tenant", "acme")); err != nil {
				t.Errorf("a named peer: %v", err)
			}
		})
	}
}

func oneDescriptor(pairs ...string) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: "payments", Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor(pairs...)}}
}

func descriptor(pairs ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// TestEveryProblem guarantees that no problem of ask is answered as ours.
func TestEveryProblem(t *testing.T) {
	t.Parallel()
	known := grpcapi.Codes()
	for _, p := range ask.Problems() {
		if _, ok := known[p.Code]; !ok && !p.Internal() {
			t.Errorf("%s has no status", p.Code)
		}
	}
	if len(ask.Problems()) < len(known) {
		t.Errorf("%d statuses of %d problems", len(known), len(ask.Problems()))
	}
}

// TestGone guarantees that a call whose caller does not wait ends at once, with
// the status that says why.
func TestGone(t *testing.T) { onEngines(t, testGone) }

func testGone(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.rate("burst", rule.Tenant, 3, nil)
	s.hold = make(chan struct{})
	deadline, cancel := context.WithTimeout(s.ctx(), 20*time.Millisecond)
	defer cancel()
	_, err := s.face.Decide(deadline, &decisionv1.DecideRequest{Tenant: "acme"})
	if f := s.face.FailureOf(deadline, err); f.Code != grpcapi.DeadlineExceeded || f.Reason != "request-timeout" {
		t.Errorf("late: %+v", f)
	}
	<-s.held
	gone, leave := context.WithCancel(s.ctx())
	done := make(chan error, 1)
	go func() {
		_, err := s.client.Decide(gone, &decisionv1.DecideRequest{Tenant: "acme"})
		done <- err
	}()
	<-s.held
	leave()
	if err := <-done; !strings.Contains(err.Error(), "Canceled") {
		t.Errorf("gone: %v", err)
	}
	left, leaveToo := context.WithCancel(s.ctx())
	leaveToo()
	_, err = s.face.DecideBatch(left, &decisionv1.DecideBatchRequest{Decisions: []*decisionv1.DecideRequest{{Tenant: "acme"}}})
	if f := s.face.FailureOf(left, err); f.Code != grpcapi.Canceled || f.Reason != "client-gone" {
		t.Errorf("gone: %+v", f)
	}
	if told := s.events(); len(told) != 0 {
		t.Errorf("told of %d decisions that nobody made", len(told))
	}
}
