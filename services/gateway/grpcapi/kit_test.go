package grpcapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/gateway/receipt"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

const token = "0123456789abcdef0123456789abcdef"

var t0 = time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)

// A server is the face over the real domain, on an engine, with the model for a
// store and a clock that stands still.
type server struct {
	t    testing.TB
	book *decide.Book
	desk *ask.Desk
	face *grpcapi.Face
	conn *grpc.ClientConn
	stop func() error // ends the face

	client decisionv1.DecisionServiceClient
	limits ratelimitv3.RateLimitServiceClient

	mu      sync.Mutex
	now     time.Time
	state   limit.State
	down    bool
	hold    chan struct{} // not nil: the store answers once it is closed, or its caller gives up
	held    chan struct{} // told of each that waits for that
	told    []decide.Usage
	version int64
	log     bytes.Buffer
}

// A setting changes how a server is made.
type setting struct {
	cfg     grpcapi.Config
	trusted canon.Proxies
	keys    string
}

// onEngines runs a test on each.
func onEngines(t *testing.T, test func(t *testing.T, engine grpcapi.Engine)) {
	t.Parallel()
	for _, engine := range []grpcapi.Engine{grpcapi.H2, grpcapi.GRPCGo} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

func newServer(t testing.TB, engine grpcapi.Engine, change ...func(*setting)) *server {
	t.Helper()
	set := setting{trusted: canon.Proxies{netip.MustParsePrefix("127.0.0.1/32")}, keys: "2026-11:secret-of-november"}
	set.cfg.Engine = engine
	for _, c := range change {
		c(&set)
	}
	keys, err := receipt.ParseKeys(set.keys)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, book: decide.NewBook(), now: t0, state: limit.NewState(), held: make(chan struct{}, 1000)}
	service := decide.NewService(s.book, s, s.clock, decide.NewID, decide.Options{})
	s.desk = ask.New(ask.Config{Tokens: []string{"another-0123456789", token}, Receipts: keys}, ask.Deps{
		Catalogue: func() ask.Catalogue { return s.book.Current() }, Decider: service, Recorder: s, Now: s.clock,
	})
	s.face = grpcapi.New(s.desk, set.trusted, slog.New(slog.NewTextHandler(&lockedWriter{s: s}, nil)))

	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- grpcapi.Listen(ctx, set.cfg, s.face, ln) }()
	s.stop = sync.OnceValue(func() error { cancel(); return <-served })
	s.conn, err = grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s.client, s.limits = decisionv1.NewDecisionServiceClient(s.conn), ratelimitv3.NewRateLimitServiceClient(s.conn)
	t.Cleanup(func() {
		if err := s.conn.Close(); err != nil {
			t.Error(err)
		}
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A lockedWriter is the log.
type lockedWriter struct{ s *server }

// Write is io.Writer's.
func (w *lockedWriter) Write(p []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.log.Write(p)
}

// ctx is that of a caller with the token.
func (s *server) ctx() context.Context {
	return metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+token)
}

// Record is the recorder.
func (s *server) Record(u decide.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, u)
}

// events are what the recorder was told so far.
func (s *server) events() []decide.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]decide.Usage(nil), s.told...)
}

// Decide is the counter store.
func (s *server) Decide(ctx context.Context, d limit.Decision) (limit.Answer, error) {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		s.held <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
			return limit.Answer{}, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return limit.Answer{}, context.DeadlineExceeded
	}
	return limit.Decide(s.state, s.now, d)
}

// DecideAll is the counter store.
func (s *server) DecideAll(ctx context.Context, ds []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(ds)), make([]error, len(ds))
	for i := range ds {
		answers[i], errs[i] = s.Decide(ctx, ds[i])
	}
	return answers, errs
}

// Correct is the counter store.
func (s *server) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return limit.CorrectionAnswer{}, context.DeadlineExceeded
	}
	return limit.Correct(s.state, s.now, c)
}

func (s *server) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *server) lose(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *server) put(kind decide.Kind, id string, object any) {
	s.version++
	s.book.Apply([]decide.Change{{Kind: kind, ID: id, Version: s.version, Object: object}})
}

func (s *server) key(id, secret, tenant, application, user string) {
	s.put(decide.KeyKind, id, &decide.Key{ID: id, Tenant: tenant, Application: application, User: user, Digest: sha256.Sum256([]byte(secret))})
}

// rate adds a GCRA rule of so many units a minute, all of which may pass at
// once.
func (s *server) rate(id string, subject rule.Subject, units int64, change func(*rule.Rule)) {
	r := &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: subject, Meter: "api-calls",
		Limit: units, Window: time.Minute, Burst: units, OnFailure: rule.Open,
	}
	if change != nil {
		change(r)
	}
	s.put(decide.RuleKind, id, r)
}

func (s *server) wallet(tenant string, granted int64) {
	s.put(decide.WalletKind, tenant+":credits", &decide.Wallet{Tenant: tenant, Meter: "credits", Granted: granted})
	s.put(decide.RuleKind, tenant+"-wallet", &rule.Rule{
		ID: tenant + "-wallet", Enabled: true, Mode: rule.Enforce, Kind: rule.Wallet, Algorithm: rule.OverdraftWallet, Wallet: rule.Prepaid,
		Subject: rule.Tenant, Match: rule.Match{Tenant: tenant}, Meter: "credits", OnFailure: rule.Closed,
	})
}

func (s *server) monthly(id string, units int64) {
	s.put(decide.RuleKind, id, &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota, Subject: rule.Tenant, Meter: "api-calls",
		Limit: units, Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar}, OnFailure: rule.Closed,
	})
}

// refused checks that an error is a failure of that status and reason, and
// returns the fields that it names.
func refused(t testing.TB, err error, code codes.Code, reason string) (fields []string) {
	t.Helper()
	s, ok := status.FromError(err)
	if !ok || s.Code() != code || !strings.HasPrefix(s.Message(), reason+": ") {
		t.Fatalf("failed with %v %q, want %v %s", s.Code(), s.Message(), code, reason)
	}
	found := false
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			found = d.GetReason() == reason && d.GetDomain() == grpcapi.Domain
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	if !found {
		t.Errorf("no ErrorInfo of %s among %v", reason, s.Details())
	}
	return fields
}
