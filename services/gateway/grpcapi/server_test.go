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

// TestHealthAndReflection guarantees what tools ask first.
func TestHealthAndReflection(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, service := range []string{"", grpcapi.Decision, grpcapi.RateLimit} {
		got, err := grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v %v", service, got, err)
		}
	}
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
	var names []string
	for _, one := range list.GetListServicesResponse().GetService() {
		names = append(names, one.GetName())
	}
	for _, want := range []string{grpcapi.Decision, grpcapi.RateLimit} {
		if !slices.Contains(names, want) {
			t.Errorf("reflection lists %v, not %s", names, want)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

// TestUnreadable guarantees the status of a message that is none, of one that
// is too large, and of a method that is not there.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	s := newServer(t)
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
func TestBusy(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(s *setting) { s.cfg.MaxCalls = 2 })
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

// TestStop guarantees that a face which is told to stop says so to who watches
// its health, answers what is in flight, and then ends.
func TestStop(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.rate("burst", rule.Tenant, 9, nil)
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatal(got, err)
	}
	s.hold = make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := s.client.Decide(s.ctx(), &decisionv1.DecideRequest{Tenant: "acme"})
		done <- err
	}()
	<-s.held
	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	for { // until the watch has ended, which is after the face began to
		if _, err := watch.Recv(); err != nil {
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
func TestCut(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(s *setting) { s.cfg.Drain = 10 * time.Millisecond })
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
