package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the usual codec
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/internal/boot"
)

// An Engine is what carries the calls of a Face.
type Engine string

// The engines, as -grpc-engine names them.
const (
	H2     Engine = "h2"      // package h2: no streams, so neither reflection nor health's Watch
	GRPCGo Engine = "grpc-go" // google.golang.org/grpc
)

// maxHeaders bounds the header list of a call, in bytes (RFC 9113 §6.5.2).
const maxHeaders = 64 << 10

// Config is how an engine serves. Zero is the value in brackets.
type Config struct {
	Engine     Engine        // [H2]
	Listen     string        // host:port
	MaxMessage int           // bytes of a call's message [1 MiB, as the JSON face's batch]
	MaxStreams uint32        // calls of one connection at a time [1000]
	MaxCalls   int           // calls at a time [10000]; more are UNAVAILABLE
	Drain      time.Duration // for calls in flight when the face closes; then they are cut [10s]
}

func (c Config) withDefaults() Config {
	if c.Engine == "" {
		c.Engine = H2
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 1 << 20
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = 1000
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 10000
	}
	if c.Drain == 0 {
		c.Drain = 10 * time.Second
	}
	return c
}

// Serve is the face on the engine that cfg names.
//
// When it is told to stop, its health is NOT_SERVING, it takes no further
// connection and no further call, lets what is running end within cfg.Drain,
// and cuts the rest.
func Serve(cfg Config, face *Face) boot.Part {
	return boot.Part{Name: "grpc", Run: func(ctx context.Context) error {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		return serve(ctx, cfg, face, ln)
	}}
}

func serve(ctx context.Context, cfg Config, face *Face, ln net.Listener) error {
	if cfg.Engine == GRPCGo {
		return newUsual(cfg, face).serve(ctx, ln)
	}
	e, err := newFast(cfg, face)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	return e.serve(ctx, ln)
}

// A usual engine serves a Face by grpc-go.
type usual struct {
	cfg    Config
	face   *Face
	server *grpc.Server
	health *health.Server
	calls  chan struct{} // one for each call in flight
	ending context.Context
	end    context.CancelFunc
}

func newUsual(cfg Config, face *Face) *usual {
	cfg = cfg.withDefaults()
	e := &usual{cfg: cfg, face: face, health: health.NewServer(), calls: make(chan struct{}, cfg.MaxCalls)}
	e.ending, e.end = context.WithCancel(context.Background())
	e.server = grpc.NewServer(
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.MaxRecvMsgSize(cfg.MaxMessage),
		grpc.MaxConcurrentStreams(cfg.MaxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 15 * time.Minute, Time: 30 * time.Second, Timeout: 15 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.NumStreamWorkers(64), // a goroutine each that need not grow its stack again (docs/adr/0068)
		grpc.StreamInterceptor(e.stream),
	)
	e.register(&ratelimitv3.RateLimitService_ServiceDesc, rateLimits{face: face})
	e.register(&decisionv1.DecisionService_ServiceDesc, decisions{face: face})
	grpc_health_v1.RegisterHealthServer(e.server, e.health)
	e.health.SetServingStatus(RateLimit, grpc_health_v1.HealthCheckResponse_SERVING)
	e.health.SetServingStatus(Decision, grpc_health_v1.HealthCheckResponse_SERVING)
	reflection.Register(e.server)
	return e
}

// serve runs the face on ln.
func (e *usual) serve(ctx context.Context, ln net.Listener) error {
	defer e.end()
	served := make(chan error, 1)
	go func() { served <- e.server.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	e.health.Shutdown()
	e.end()
	patience := time.AfterFunc(e.cfg.Drain, e.server.Stop)
	defer patience.Stop()
	e.server.GracefulStop()
	return <-served
}

// stream ends what has no end of its own, such as a watch of the health, when
// the face closes.
func (e *usual) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	defer context.AfterFunc(e.ending, cancel)()
	return next(srv, ending{s, ctx})
}

type ending struct {
	grpc.ServerStream
	ctx context.Context
}

// Context ends with the face.
func (e ending) Context() context.Context { return e.ctx }

// register adds a service whose calls are admitted before they are read.
func (e *usual) register(desc *grpc.ServiceDesc, srv any) {
	own := *desc
	own.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		next := m.Handler
		m.Handler = func(srv any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			answer, err := e.call(ctx, desc.ServiceName, func() (any, error) {
				return next(srv, ctx, func(in any) error {
					message := incoming{message: in}
					if err := read(&message); err != nil {
						return fmt.Errorf("%w: %w", errUnreadable, err) // grpc-go has sent its status
					}
					return message.err
				}, nil)
			})
			if err != nil {
				return nil, statusOfFailure(e.face.FailureOf(ctx, err))
			}
			return answer, nil
		}
		own.Methods[i] = m
	}
	e.server.RegisterService(&own, srv)
}

// An incoming message is one whose fault is ours to tell: what a codec returns,
// grpc-go sends as INTERNAL.
type incoming struct {
	message any
	err     error
}

// A codec is the usual one, and knows incoming messages.
type codec struct{ encoding.CodecV2 }

// Unmarshal is encoding.CodecV2's.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if err := c.CodecV2.Unmarshal(data, in.message); err != nil {
		in.err = fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

// call answers one call of a caller who may.
func (e *usual) call(ctx context.Context, service string, answer func() (any, error)) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			e.face.log.Error("call failed", "service", service, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			out, err = nil, errPanic
		}
	}()
	md, _ := metadata.FromIncomingContext(ctx)
	if err := e.face.Admit(service, peerOf(ctx), md.Get("authorization")); err != nil {
		return nil, err
	}
	select {
	case e.calls <- struct{}{}:
		defer func() { <-e.calls }()
	default:
		return nil, errBusy
	}
	return answer()
}

// peerOf is the address of who has opened the connection.
func peerOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return addressOf(p.Addr)
}

// statusOfFailure is the status of a call as grpc-go sends it.
func statusOfFailure(f Failure) error {
	s := status.New(codes.Code(f.Code), f.Message)
	info := &errdetails.ErrorInfo{Reason: f.Reason, Domain: Domain}
	var wrong errdetails.BadRequest
	for _, one := range f.Fields {
		wrong.FieldViolations = append(wrong.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: one.Field, Description: one.Message})
	}
	full, err := s.WithDetails(info)
	if err == nil && len(wrong.FieldViolations) > 0 {
		full, err = full.WithDetails(&wrong)
	}
	if err != nil {
		return s.Err()
	}
	return full.Err()
}

// rateLimits is the generated interface of a Face.
type rateLimits struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	face *Face
}

// ShouldRateLimit is the Face's.
func (s rateLimits) ShouldRateLimit(ctx context.Context, in *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return s.face.ShouldRateLimit(ctx, in)
}

// decisions is the generated interface of a Face.
type decisions struct {
	decisionv1.UnimplementedDecisionServiceServer
	face *Face
}

// Decide is the Face's.
func (s decisions) Decide(ctx context.Context, in *decisionv1.DecideRequest) (*decisionv1.Decision, error) {
	return s.face.Decide(ctx, in)
}

// DecideBatch is the Face's.
func (s decisions) DecideBatch(ctx context.Context, in *decisionv1.DecideBatchRequest) (*decisionv1.DecideBatchResponse, error) {
	return s.face.DecideBatch(ctx, in)
}

// Refund is the Face's.
func (s decisions) Refund(ctx context.Context, in *decisionv1.RefundRequest) (*decisionv1.RefundResponse, error) {
	return s.face.Refund(ctx, in)
}

// Settle is the Face's.
func (s decisions) Settle(ctx context.Context, in *decisionv1.SettleRequest) (*decisionv1.SettleResponse, error) {
	return s.face.Settle(ctx, in)
}
