package wire_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"penstock.dev/loadtest/wire"
)

const echo = "/t.Test/Echo"

// grpcServer serves echo by grpc-go.
func grpcServer(t *testing.T, answer func(context.Context, *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error), options ...grpc.ServerOption) string {
	t.Helper()
	ln := listen(t)
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "t.Test", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
			MethodName: "Echo",
			Handler: func(_ any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				in := &wrapperspb.BytesValue{}
				if err := read(in); err != nil {
					return nil, err
				}
				return answer(ctx, in)
			},
		}},
	}, nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func same(_ context.Context, in *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
	return in, nil
}

// messages are n different ones of a size.
func messages(t *testing.T, n, size int) [][]byte {
	t.Helper()
	all := make([][]byte, n)
	for i := range all {
		b, err := proto.Marshal(wrapperspb.Bytes([]byte(strings.Repeat(string(rune('a'+i)), size))))
		if err != nil {
			t.Fatal(err)
		}
		all[i] = b
	}
	return all
}

// echoed judges answers that are to be what was sent.
func echoed(requests [][]byte) func(i, status int, body []byte) wire.Answer {
	return func(i, status int, body []byte) wire.Answer {
		switch {
		case status == int(codes.ResourceExhausted) && len(body) == 0:
			return wire.Refused
		case status == 0 && string(body) == string(requests[i]):
			return wire.Passed
		default:
			return wire.Wrong
		}
	}
}

func run(t *testing.T, l wire.Load) *wire.Result {
	t.Helper()
	r, err := wire.Run(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestGRPC guarantees that every call is answered with its own message, and
// counted once, by a server of grpc-go: with small messages and with such as
// fill the windows of both sides, with many connections and one.
func TestGRPC(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		conns, inFlight, size int
		options               []grpc.ServerOption
	}{
		"small":                     {4, 30, 10, nil},
		"one connection":            {1, 200, 10, nil},
		"larger than the windows":   {2, 64, 15_000, nil},
		"windows that do not grow":  {2, 64, 15_000, []grpc.ServerOption{grpc.StaticConnWindowSize(65535), grpc.StaticStreamWindowSize(65535)}},
		"few streams at a time":     {2, 64, 10, []grpc.ServerOption{grpc.MaxConcurrentStreams(3)}},
		"no table of header fields": {2, 16, 10, []grpc.ServerOption{grpc.HeaderTableSize(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var served atomic.Int64
			addr := grpcServer(t, func(ctx context.Context, in *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
				served.Add(1)
				return same(ctx, in)
			}, tt.options...)
			requests, measured := messages(t, 5, tt.size), 0
			r := run(t, wire.Load{
				Addr: addr, Conns: tt.conns, InFlight: tt.inFlight, Warm: 20 * time.Millisecond, For: 200 * time.Millisecond,
				Method: echo, Requests: requests, Judge: echoed(requests), Begin: func() { measured++ }, End: func() { measured += 2 },
			})
			if r.Sent == 0 || r.Passed != r.Sent || r.Passed != served.Load() || r.Failed+r.Wrong+r.Refused != 0 {
				t.Errorf("%+v, failed %d (%s); the server answered %d", r.Answers, r.Failed, r.Why, served.Load())
			}
			if measured != 3 || r.Measured == 0 || r.Measured > r.Passed || r.Latency.TotalCount() == 0 || r.Took < 200*time.Millisecond || r.CPU <= 0 {
				t.Errorf("measured %d of %d in %v with %v of CPU, %d latencies", r.Measured, r.Passed, r.Took, r.CPU, r.Latency.TotalCount())
			}
		})
	}
}

// TestGRPCFailures guarantees that a call's status is judged and that of one
// that was not expected told.
func TestGRPCFailures(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	addr := grpcServer(t, func(ctx context.Context, in *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
		switch n.Add(1) {
		case 2:
			return nil, status.Error(codes.ResourceExhausted, "enough")
		case 3:
			return nil, status.Error(codes.Internal, "broken here")
		case 4:
			return wrapperspb.Bytes([]byte("another")), nil
		}
		return same(ctx, in)
	})
	requests := messages(t, 1, 10)
	r := run(t, wire.Load{Addr: addr, Conns: 1, InFlight: 1, For: 200 * time.Millisecond, Method: echo, Requests: requests, Judge: echoed(requests)})
	if r.Refused != 1 || r.Wrong != 2 || r.Passed != r.Sent-3 || r.Failed != 0 || !strings.Contains(r.Why, "status 13") || !strings.Contains(r.Why, "broken here") {
		t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
}

// TestOpenLoop guarantees that requests leave when they are due and not before,
// although nothing is answered, and that latency counts from then: the server
// answers none of them before the last has come.
func TestOpenLoop(t *testing.T) {
	t.Parallel()
	const rate, length = 500, 400 * time.Millisecond
	const all = rate * 4 / 10
	var n atomic.Int64
	var last time.Duration
	came := make(chan struct{})
	var start time.Time
	addr := grpcServer(t, func(ctx context.Context, in *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
		if n.Add(1) == all {
			last = time.Since(start)
			close(came)
		}
		select {
		case <-came:
			return same(ctx, in)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	requests := messages(t, 3, 10)
	start = time.Now()
	r := run(t, wire.Load{Addr: addr, Conns: 2, Rate: rate, For: length, Method: echo, Requests: requests, Judge: echoed(requests)})
	if r.Passed != r.Sent || r.Sent < all || r.Failed != 0 {
		t.Fatalf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
	<-came
	const lastDue = length - time.Second/rate
	if last < lastDue {
		t.Errorf("the last came after %v, and was due after %v", last, lastDue)
	}
	if longest := time.Duration(r.Latency.Max()); longest < lastDue*9/10 {
		t.Errorf("the longest answer took %v, and the first was due %v before the last", longest, lastDue)
	}
	if r.Late.TotalCount() == 0 {
		t.Error("nothing is told of how late the generator was")
	}
}

// TestHTTP1 guarantees that answers with a length and in chunks are read to
// their end, in closed and in open loops.
func TestHTTP1(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1)%2 == 0 {
			w.(http.Flusher).Flush() // the rest comes in chunks
		}
		_, _ = w.Write([]byte(strings.Repeat("x", 3000) + r.URL.Path))
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	requests := [][]byte{[]byte("GET /0 HTTP/1.1\r\nHost: " + host + "\r\n\r\n"), []byte("GET /1 HTTP/1.1\r\nHost: " + host + "\r\n\r\n")}
	judge := func(i, status int, body []byte) wire.Answer {
		if status != 200 || len(body) != 3002 || !strings.HasSuffix(string(body), []string{"/0", "/1"}[i]) {
			return wire.Wrong
		}
		return wire.Passed
	}
	for name, l := range map[string]wire.Load{"closed": {InFlight: 4}, "open": {Rate: 300}} {
		before := served.Load()
		l.Addr, l.Conns, l.For, l.Requests, l.Judge = host, 4, 200*time.Millisecond, requests, judge
		r := run(t, l)
		if r.Sent == 0 || r.Passed != r.Sent || r.Sent != served.Load()-before {
			t.Errorf("%s: %+v, failed %d: %s; the server answered %d", name, r.Answers, r.Failed, r.Why, served.Load()-before)
		}
	}
}

// TestHTTP1Pieces guarantees that an answer is read whose bytes come one by one.
func TestHTTP1Pieces(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	defer func() { _ = ln.Close() }()
	var served sync.WaitGroup
	served.Go(func() {
		conn, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		in := bufio.NewReader(conn)
		for n := 0; ; n++ {
			if _, err := http.ReadRequest(in); err != nil {
				return // the client has left
			}
			for _, b := range []byte([]string{
				"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
			}[n%2]) {
				if _, err := conn.Write([]byte{b}); err != nil {
					return
				}
			}
		}
	})
	r := run(t, wire.Load{
		Addr: ln.Addr().String(), Conns: 1, InFlight: 1, For: 100 * time.Millisecond, Requests: [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		Judge: func(_, status int, body []byte) wire.Answer {
			if status == 200 && string(body) == "hello" {
				return wire.Passed
			}
			return wire.Wrong
		},
	})
	served.Wait()
	if r.Passed != r.Sent || r.Sent < 2 {
		t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
}

// TestHTTP1Broken guarantees that a connection that ends within an answer, and
// what is no HTTP, are failures, and end no other connection.
func TestHTTP1Broken(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"cut short": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", "no length": "HTTP/1.1 200 OK\r\n\r\n",
		"a bad length": "HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", "a bad chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
		"no HTTP": "hello there\r\n\r\n", "nothing": "",
	} {
		var first sync.Once
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			broken := false
			first.Do(func() {
				broken = true
				c, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = c.Write([]byte(answer))
				_ = c.Close()
			})
			if !broken {
				_, _ = w.Write([]byte("fine"))
			}
		}))
		host := strings.TrimPrefix(srv.URL, "http://")
		r := run(t, wire.Load{
			Addr: host, Conns: 2, InFlight: 2, For: 100 * time.Millisecond, Requests: [][]byte{[]byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")},
			Judge: func(int, int, []byte) wire.Answer { return wire.Passed },
		})
		srv.Close()
		if r.Failed != 1 || r.Passed != r.Sent-1 || r.Passed == 0 || r.Why == "" {
			t.Errorf("%s: %+v, failed %d: %s", name, r.Answers, r.Failed, r.Why)
		}
	}
}

// TestLoad guarantees that what cannot be sent is refused, and that nobody
// listening is an error.
func TestLoad(t *testing.T) {
	t.Parallel()
	good := wire.Load{Addr: "127.0.0.1:1", Conns: 1, InFlight: 1, For: time.Second, Method: echo, Requests: messages(t, 1, 1)}
	for name, change := range map[string]func(*wire.Load){
		"no requests": func(l *wire.Load) { l.Requests = nil }, "no connection": func(l *wire.Load) { l.Conns = 0 },
		"no time": func(l *wire.Load) { l.For = 0 }, "both loops": func(l *wire.Load) { l.Rate = 1 },
		"neither loop": func(l *wire.Load) { l.InFlight = 0 }, "idle connections": func(l *wire.Load) { l.Conns = 2 },
		"too large": func(l *wire.Load) { l.Requests = messages(t, 1, 1<<14) }, "nobody listens": func(*wire.Load) {},
	} {
		l := good
		change(&l)
		if r, err := wire.Run(t.Context(), l); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestEndsWithItsContext guarantees that an interrupted load ends.
func TestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	addr := grpcServer(t, same)
	ctx, cancel := context.WithCancel(t.Context())
	requests := messages(t, 1, 1)
	_, err := wire.Run(ctx, wire.Load{Addr: addr, Conns: 1, InFlight: 1, For: time.Hour, Method: echo, Requests: requests, Judge: echoed(requests), Begin: cancel})
	if err == nil {
		t.Error("the end of the context is no error")
	}
}
