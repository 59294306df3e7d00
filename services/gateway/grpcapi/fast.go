package grpcapi

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/grpcapi/h2"
)

// A fast engine serves a Face by package h2. What one read of a connection
// brought is asked for at once (docs/adr/0070).
type fast struct {
	cfg     Config
	face    *Face
	server  *h2.Server
	calls   atomic.Int64 // in flight
	closing atomic.Bool
	work    chan job       // for those of the goroutines that have nothing to do
	idle    atomic.Int64   // so many
	running sync.WaitGroup // goroutines that answer
	ending  context.Context
	end     context.CancelFunc

	askings memory // empty ones
}

// A memory is where *asking come from and go back to: a sync.Pool.
type memory interface {
	Get() any
	Put(v any)
}

// singly are the methods whose calls are answered each on its own.
var singly = map[string]func(e *fast, ctx context.Context, c *h2.Call) error{
	decisionv1.DecisionService_DecideBatch_FullMethodName: unary((*Face).DecideBatch),
	decisionv1.DecisionService_Refund_FullMethodName:      unary((*Face).Refund),
	decisionv1.DecisionService_Settle_FullMethodName:      unary((*Face).Settle),
}

func newFast(cfg Config, face *Face) (*fast, error) {
	cfg = cfg.withDefaults()
	e := &fast{cfg: cfg, face: face, work: make(chan job), askings: &sync.Pool{New: func() any { return new(asking) }}}
	e.ending, e.end = context.WithCancel(context.Background())
	methods := []string{
		ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName,
		decisionv1.DecisionService_Decide_FullMethodName,
		grpc_health_v1.Health_Check_FullMethodName,
	}
	for method := range singly {
		methods = append(methods, method)
	}
	var err error
	e.server, err = h2.New(h2.Config{
		Methods: methods, Log: face.log, MaxStreams: int(cfg.MaxStreams), MaxHeaders: maxHeaders, MaxRequest: cfg.MaxMessage, Grace: cfg.Drain,
	}, e)
	return e, err
}

// serve runs the face on ln.
func (e *fast) serve(ctx context.Context, ln net.Listener) error {
	defer e.running.Wait()
	defer e.end()
	defer context.AfterFunc(ctx, func() { e.closing.Store(true) })()
	return e.server.Serve(ctx, ln)
}

// Handle is h2.Handler's.
func (e *fast) Handle(calls []*h2.Call) {
	n := int64(len(calls))
	room := int64(e.cfg.MaxCalls) + n - e.calls.Add(n)
	together := make([]*h2.Call, 0, n)
	for i, c := range calls {
		if one, ok := singly[c.Method]; ok {
			e.running.Go(func() { e.single(c, one, int64(i) < room) })
		} else {
			together = append(together, c)
		}
	}
	if len(together) == 0 {
		return
	}
	j := job{together, room}
	select {
	case e.work <- j:
	default:
		e.running.Go(func() { e.worker(j) })
	}
}

// A job is calls to be answered together, as many of them as there is room for.
type job struct {
	calls []*h2.Call
	room  int64
}

// maxIdle is how many goroutines are kept for the next job: a fresh one's stack
// would have to grow first.
const maxIdle = 256

// worker does a job, and more while there are some.
func (e *fast) worker(j job) {
	for {
		e.together(j.calls, j.room)
		if e.idle.Add(1) > maxIdle {
			e.idle.Add(-1)
			return
		}
		select {
		case j = <-e.work:
			e.idle.Add(-1)
		case <-e.ending.Done():
			e.idle.Add(-1)
			return
		}
	}
}

// together answers calls at once.
func (e *fast) together(calls []*h2.Call, room int64) {
	defer func() { e.finish(calls, recover()) }()
	a := e.askings.Get().(*asking) //nolint:forcetypeassert // New's
	for i, c := range calls {
		if err := e.admit(c, int64(i) < room); err != nil {
			e.fail(e.ending, c, err)
			continue
		}
		if c.Method == grpc_health_v1.Health_Check_FullMethodName {
			e.check(c)
		} else {
			e.read(a, c)
		}
	}
	e.ask(a)
	if a.reset() {
		e.askings.Put(a)
	}
}

// admit lets in a call of a caller who may, if there is room.
func (e *fast) admit(c *h2.Call, room bool) error {
	if c.Method == grpc_health_v1.Health_Check_FullMethodName {
		return nil
	}
	service := Decision
	if c.Method == ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName {
		service = RateLimit
	}
	var authorization []string
	for _, f := range c.AllMetadata() {
		if f.Name == "authorization" {
			authorization = append(authorization, f.Value)
		}
	}
	if err := e.face.Admit(service, addressOf(c.Remote()), authorization); err != nil {
		return err
	}
	if !room {
		return errBusy
	}
	return nil
}

// finish sends the answers. failure is what recover returned: then calls have
// no answer, whatever they have now.
func (e *fast) finish(calls []*h2.Call, failure any) {
	if failure != nil {
		e.face.log.Error("calls failed", "calls", len(calls), "panic", fmt.Sprint(failure), "stack", string(debug.Stack()))
		for _, c := range calls {
			e.fail(e.ending, c, errPanic)
		}
	}
	e.calls.Add(-int64(len(calls)))
	h2.FinishAll(calls)
}

// single answers one call on its own.
func (e *fast) single(c *h2.Call, answer func(e *fast, ctx context.Context, c *h2.Call) error, room bool) {
	defer func() { e.finish([]*h2.Call{c}, recover()) }()
	ctx := c.Context()
	err := e.admit(c, room)
	if err == nil {
		err = answer(e, ctx, c)
	}
	if err != nil {
		e.fail(ctx, c, err)
	}
}

// unary is a method of a Face as a call has it.
func unary[In any, Request interface {
	*In
	proto.Message
}, Response proto.Message](method func(*Face, context.Context, Request) (Response, error)) func(*fast, context.Context, *h2.Call) error {
	return func(e *fast, ctx context.Context, c *h2.Call) error {
		in := Request(new(In))
		if err := proto.Unmarshal(c.Request, in); err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		out, err := method(e.face, ctx, in)
		if err != nil {
			return err
		}
		return write(c, out)
	}
}

// write makes a message the answer of a call.
func write(c *h2.Call, out proto.Message) (err error) {
	c.Response, err = proto.MarshalOptions{}.MarshalAppend(c.Response, out)
	return err
}

// fail makes an error the answer of a call.
func (e *fast) fail(ctx context.Context, c *h2.Call, err error) {
	s, _ := status.FromError(statusOfFailure(e.face.FailureOf(ctx, err)))
	c.Status, c.Message = h2.Code(s.Code()), s.Message()
	details, err := proto.Marshal(s.Proto())
	if err != nil { // the status and its message say it without
		return
	}
	c.Trailers = append(c.Trailers[:0], h2.Field{Name: "grpc-status-details-bin", Value: base64.RawStdEncoding.EncodeToString(details)})
}

// check answers a call about the health. Watches are the other engine's.
func (e *fast) check(c *h2.Call) {
	var in grpc_health_v1.HealthCheckRequest
	if err := proto.Unmarshal(c.Request, &in); err != nil {
		c.Status, c.Message = h2.InvalidArgument, errUnreadable.Error()
		return
	}
	out := &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	switch {
	case !slices.Contains([]string{"", RateLimit, Decision}, in.GetService()):
		c.Status, c.Message = h2.NotFound, "unknown service"
		return
	case e.closing.Load():
		out.Status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	if err := write(c, out); err != nil {
		c.Status, c.Message = h2.Internal, err.Error()
	}
}

// An asking is what calls ask, to be asked at once. Its memory serves one job
// after another: nothing in it is looked at once their answers are written.
type asking struct {
	calls    []asked
	batch    ask.Batch
	deadline time.Time // the last of the calls'
	endless  bool      // one has none

	in  limitCall // the one that is read
	out limited   // the one that is written
}

// maxQuestions is how many questions an asking has room for that is used again:
// what is rare keeps no memory.
const maxQuestions = 256

// reset empties a, and reports whether it is to be used again.
func (a *asking) reset() bool {
	if cap(a.batch.Questions) > maxQuestions {
		return false
	}
	clear(a.calls)
	a.batch.Reset()
	a.in.reset()
	a.out.reset()
	a.calls, a.deadline, a.endless = a.calls[:0], time.Time{}, false
	return true
}

// An asked is one of these calls.
type asked struct {
	call    *h2.Call
	decides bool         // it is of the decision service
	refused []ask.Faults // of read
	index   int          // of its first question
	count   int
}

// read adds what a call asks.
func (e *fast) read(a *asking, c *h2.Call) {
	one := asked{call: c, index: len(a.batch.Questions)}
	if err := e.question(a, &one); err != nil {
		a.batch.Questions = a.batch.Questions[:one.index]
		e.fail(c.Context(), c, err)
		return
	}
	one.count = len(a.batch.Questions) - one.index
	a.calls = append(a.calls, one)
	a.endless = a.endless || c.Deadline.IsZero()
	if c.Deadline.After(a.deadline) {
		a.deadline = c.Deadline
	}
}

// question adds the questions of one call.
func (e *fast) question(a *asking, one *asked) error {
	if err := expired(one.call); err != nil {
		return err
	}
	if one.decides = one.call.Method == decisionv1.DecisionService_Decide_FullMethodName; one.decides {
		var in decisionv1.DecideRequest
		if err := proto.Unmarshal(one.call.Request, &in); err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		var list ask.Faults
		a.batch.Questions = append(a.batch.Questions, question(&in, &list))
		return list.Err()
	}
	if err := a.in.parse(one.call.Request); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	qs, refused, err := read(&a.in, a.batch.Questions)
	a.batch.Questions, one.refused = qs, refused
	return err
}

// expired is ask.ErrGone where nobody waits for the answer any more.
func expired(c *h2.Call) error {
	if c.Gone() || !c.Deadline.IsZero() && !time.Now().Before(c.Deadline) {
		return ask.ErrGone
	}
	return nil
}

// ask asks all, and makes the outcomes the calls' answers. Nothing is charged
// that was not sent by the last deadline.
func (e *fast) ask(a *asking) {
	if len(a.calls) == 0 {
		return
	}
	ctx := e.ending
	if !a.endless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, a.deadline)
		defer cancel()
	}
	failure := e.face.desk.AnswerEach(ctx, &a.batch)
	for i := range a.calls {
		one := &a.calls[i]
		err := failure
		if err == nil {
			err = one.answer(e.face, a.batch.Outcomes[one.index:one.index+one.count], &a.out)
		}
		if err != nil {
			e.fail(ctx, one.call, err)
		}
	}
}

// answer makes outcomes the answer of a call.
func (a *asked) answer(face *Face, outcomes []ask.Outcome, out *limited) error {
	if a.decides {
		if err := outcomes[0].Err; err != nil {
			return err
		}
		return write(a.call, face.decision(outcomes[0].Decision))
	}
	if err := out.tell(told(a.refused, outcomes)); err != nil {
		return err
	}
	a.call.Response = out.append(a.call.Response)
	return nil
}

// addressOf is the address of who has opened a connection.
func addressOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{}
}
