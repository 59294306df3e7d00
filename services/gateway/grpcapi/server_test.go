package grpcapi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/internal/rule"
)

// TestHealth guarantees what an orchestrator asks.
func TestHealth(t *testing.T) { onEngines(t, testHealth) }

func testHealth(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	health := grpc_health_v1.NewHealthClient(s.conn)
	for _, service := range []string{"", grpcapi.Decision, grpcapi.RateLimit} {
		got, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v %v", service, got, err)
		}
	}
	if _, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "guess"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of what is not there: %v", err)
	}
}

// TestStreams guarantees what needs streams: reflection, and to watch the
// health until the face ends. Package h2 says that it has none.
func TestStreams(t *testing.T) { onEngines(t, testStreams) }

func testStreams(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := watch.Recv()
	if engine == grpcapi.H2 {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("a stream: %v %v", got, err)
		}
		return
	}
	if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatal(got, err)
	}
	if names := reflected(t, s); !slices.Contains(names, grpcapi.Decision) || !slices.Contains(names, grpcapi.RateLimit) {
		t.Errorf("reflection lists %v", names)
	}
	go func() { _ = s.stop() }() // the end of the test looks at its error
	for err == nil {
		got, err = watch.Recv()
	}
	if got.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("the watch ended with %v", got)
	}
}

// reflected are the services that reflection lists.
func reflected(t *testing.T, s *server) (names []string) {
	t.Helper()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list.GetListServicesResponse().GetService() {
		names = append(names, one.GetName())
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	return names
}

// TestUnreadable guarantees the status of a message that is none, of one that
// is too large, and of a method that is not there.
func TestUnreadable(t *testing.T) { onEngines(t, testUnreadable) }

func testUnreadable(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	err := s.conn.Invoke(s.ctx(), decisionv1.DecisionService_Decide_FullMethodName, wrapperspb.Bytes([]byte("\xff\xfe")), &emptypb.Empty{})
	refused(t, err, codes.InvalidArgument, "malformed")
	_, err = s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Path: strings.Repeat("/", 2<<20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("2 MiB: %v", err)
	}
	err = s.conn.Invoke(s.ctx(), "/"+grpcapi.Decision+"/Guess", &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("no such method: %v", err)
	}
}

// TestBusy guarantees that no more calls are in flight than are configured, and
// that one more is told to come again.
func TestBusy(t *testing.T) { onEngines(t, testBusy) }

func testBusy(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine, func(s *setting) { s.cfg.MaxCalls = 2 })
	s.rate("burst", rule.Tenant, 9, nil)
	s.hold = make(chan struct{})
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme"})
			done <- err
		}()
		<-s.held
	}
	_, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme"})
	refused(t, err, codes.Unavailable, "busy")
	close(s.hold)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestStop guarantees that a face which is told to stop serves nobody else,
// answers what is in flight, and then ends.
func TestStop(t *testing.T) { onEngines(t, testStop) }

func testStop(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine)
	s.rate("burst", rule.Tenant, 9, nil)
	s.hold = make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme"})
		done <- err
	}()
	<-s.held
	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	health := grpc_health_v1.NewHealthClient(s.conn)
	for { // until it serves nobody else
		got, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			break
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("ended with %v while a call was in flight", err)
	default:
	}
	close(s.hold)
	if err := <-done; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{}, grpc.WaitForReady(false)); status.Code(err) != codes.Unavailable {
		t.Errorf("afterwards: %v", err)
	}
}

// TestCut guarantees that a call which does not end is cut when the time to
// drain is over.
func TestCut(t *testing.T) { onEngines(t, testCut) }

func testCut(t *testing.T, engine grpcapi.Engine) {
	s := newServer(t, engine, func(s *setting) { s.cfg.Drain = 10 * time.Millisecond })
	s.rate("burst", rule.Tenant, 9, nil)
	s.hold = make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme"})
		done <- err
	}()
	<-s.held
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if err := <-done; status.Code(err) == codes.OK {
		t.Error("the call was answered")
	}
	if told := s.events(); len(told) != 0 {
		t.Errorf("told of %d decisions that nobody made", len(told))
	}
}
