package h2_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// bytesCodec passes messages as they are.
type bytesCodec struct{}

var _ encoding.CodecV2 = bytesCodec{}

// Marshal takes a *[]byte.
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal fills a *[]byte.
func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Name is in the content type.
func (bytesCodec) Name() string { return "bytes" }

func client(t testing.TB, addr net.Addr, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+addr.String(), grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func invoke(ctx context.Context, cc *grpc.ClientConn, method string, in []byte, opts ...grpc.CallOption) ([]byte, error) {
	var out []byte
	err := cc.Invoke(ctx, method, &in, &out, opts...)
	return out, err
}

// TestGRPCCalls guarantees that grpc-go's client is answered: in parallel, with
// messages of all sizes, larger than every window, and with errors as they
// were meant.
func TestGRPCCalls(t *testing.T) {
	t.Parallel()

	l := tcp(t)
	start(t, l, newDesk(), settings(t, func(c *h2.Config) { c.MaxBuffered, c.MaxUnsent = 128<<20, 128<<20 }))
	cc := client(t, l.Addr(), insecure.NewCredentials())
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 30 {
				in := bytes.Repeat([]byte{byte(i), byte(j)}, []int{0, 1, 50, 8000, 9000, 40000, 400000}[(i+j)%7])
				out, err := invoke(t.Context(), cc, echo, in)
				if err != nil || !bytes.Equal(in, out) {
					t.Errorf("%d bytes: got %d, %v", len(in), len(out), err)
				}
			}
		})
	}
	wg.Wait()

	text := "100 % of ünïcode\r\n" + strings.Repeat("x", 100)
	var trailer metadata.MD
	_, err := invoke(t.Context(), cc, fail, []byte(text), grpc.Trailer(&trailer))
	if s := status.Convert(err); s.Code() != codes.NotFound || s.Message() != text || len(trailer["reason"]) != 1 {
		t.Errorf("got %v with %v", err, trailer)
	}
	if _, err := invoke(t.Context(), cc, "/t.Test/None", nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method: %v", err)
	}
	if _, err := invoke(t.Context(), cc, echo, make([]byte, 2<<20)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large message: %v", err)
	}
	if out, err := invoke(t.Context(), cc, wide, binary.BigEndian.AppendUint32(nil, 20<<20)); err != nil || len(out) != 20<<20 {
		t.Errorf("a large answer: %d bytes, %v", len(out), err)
	}
}

// TestGRPCTLS guarantees the same over TLS, and that a client that does not
// speak h2 gets no further than the handshake.
func TestGRPCTLS(t *testing.T) {
	t.Parallel()

	server, roots := certificate(t)
	l := tcp(t)
	start(t, l, newDesk(), settings(t, func(c *h2.Config) { c.TLS = server }))
	cc := client(t, l.Addr(), credentials.NewTLS(roots))
	for _, n := range []int{0, 100, 300000} {
		if out, err := invoke(t.Context(), cc, echo, make([]byte, n)); err != nil || len(out) != n {
			t.Errorf("%d bytes: got %d, %v", n, len(out), err)
		}
	}
	if err := handshake(t, l.Addr(), roots, "http/1.1"); err == nil {
		t.Error("a client of HTTP/1.1 was welcome")
	}
	if err := handshake(t, l.Addr(), roots, "h2"); err != nil {
		t.Errorf("a client of h2: %v", err)
	}
	if err := handshake(t, l.Addr(), roots); err == nil {
		t.Error("a client without ALPN was welcome")
	}
}

// TestGRPCMetadata guarantees that the handler sees metadata and the deadline.
func TestGRPCMetadata(t *testing.T) {
	t.Parallel()

	l, d := tcp(t), newDesk()
	start(t, l, d, settings(t))
	cc := client(t, l.Addr(), insecure.NewCredentials())
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer x", "key-bin", "\x00\xff"), time.Hour)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := invoke(ctx, cc, hold, []byte("m"))
		done <- err
	}()
	call := <-d.held
	if v, _ := call.Metadata("authorization"); v != "Bearer x" {
		t.Errorf("authorization is %q in %v", v, call.AllMetadata())
	}
	if v, _ := call.Metadata("key-bin"); v != "AP8" {
		t.Errorf("key-bin is %q", v)
	}
	if _, ok := call.Metadata("grpc-timeout"); ok {
		t.Error("grpc-timeout is metadata")
	}
	if left := time.Until(call.Deadline); left < 50*time.Minute || left > time.Hour {
		t.Errorf("%s are left", left)
	}
	if d, ok := call.Context().Deadline(); !ok || !d.Equal(call.Deadline) {
		t.Errorf("the context's deadline is %v, %v", d, ok)
	}
	served := call.Context()
	call.Finish()
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-served.Done()
}

// TestGRPCCancel guarantees that a call's context ends when its client gives
// up, is late, or is gone, and that the handler may still finish it.
func TestGRPCCancel(t *testing.T) {
	t.Parallel()

	l, d := tcp(t), newDesk()
	start(t, l, d, settings(t))
	cc := client(t, l.Addr(), insecure.NewCredentials())
	for name, give := range map[string]func(context.CancelFunc){
		"canceled": func(c context.CancelFunc) { c() },
		"late":     func(context.CancelFunc) {},
	} {
		timeout := time.Hour
		if name == "late" {
			timeout = 30 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		done := make(chan error, 1)
		go func() {
			_, err := invoke(ctx, cc, hold, nil)
			done <- err
		}()
		call := <-d.held
		served := call.Context()
		give(cancel)
		<-served.Done()
		if err := <-done; err == nil {
			t.Errorf("%s: no error", name)
		}
		call.Finish()
		cancel()
	}
	if _, err := invoke(t.Context(), cc, echo, nil); err != nil {
		t.Errorf("the connection is spoilt: %v", err)
	}
	go func() { _, _ = invoke(t.Context(), cc, hold, nil) }()
	call := <-d.held
	served := call.Context()
	_ = cc.Close()
	<-served.Done()
	for !call.Gone() {
		<-served.Done()
	}
	call.Finish()
}

// TestGRPCDrain guarantees that a server that stops answers every call that
// reached it, and that the client goes on elsewhere without an error.
func TestGRPCDrain(t *testing.T) {
	t.Parallel()

	first, second := tcp(t), tcp(t)
	_, stop := start(t, first, newDesk(), settings(t))
	start(t, second, newDesk(), settings(t))
	var mu sync.Mutex
	addr := first.Addr().String()
	cc, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	if _, err := invoke(t.Context(), cc, echo, nil); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{}, 1)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 300 {
				if _, err := invoke(t.Context(), cc, echo, fmt.Append(nil, i, j)); err != nil {
					t.Errorf("a call of a draining server: %v", err)
					return
				}
				if j == 20 {
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	<-begun
	mu.Lock()
	addr = second.Addr().String()
	mu.Unlock()
	stop()
	wg.Wait()
}

// TestBatches guarantees that what one read brought is handed over at once,
// and that what is finished at once is written at once.
func TestBatches(t *testing.T) {
	t.Parallel()

	l, d := tcp(t), newDesk()
	start(t, l, d, settings(t))
	p := dial(t, l.Addr())
	p.hello()
	p.ping()
	p.events(0)
	var script bytes.Buffer
	for i := range 20 {
		body := message(fmt.Sprint(i))
		block := p.block(hold)
		script.Write(append([]byte{0, 0, byte(len(block)), 1, 4, 0, 0, 0, byte(2*i + 1)}, block...))
		script.Write(append([]byte{0, 0, byte(len(body)), 0, 1, 0, 0, 0, byte(2*i + 1)}, body...))
	}
	p.raw(script.Bytes())
	var calls []*h2.Call
	for range 20 {
		c := <-d.held
		c.Response = append(c.Response, c.Request...)
		calls = append(calls, c)
	}
	if n := <-d.sizes; n != 20 {
		t.Errorf("the first batch has %d calls", n)
	}
	h2.FinishAll(calls)
	for i := range 20 {
		p.wait(fmt.Sprintf("%d: 200 status=0 %q", 2*i+1, fmt.Sprint(i)))
	}
}
