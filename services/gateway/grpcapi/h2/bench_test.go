package h2_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// benchServer names the engine that a copy of the test binary is to serve
// with, so that the kernel's account of its process is the server's alone.
const benchServer = "H2_BENCH_SERVER"

// TestMain serves instead of testing when it is told to.
func TestMain(m *testing.M) {
	if engine := os.Getenv(benchServer); engine != "" {
		if err := serveBench(engine); err != nil {
			slog.New(slog.NewTextHandler(os.Stderr, nil)).Error("the server of a benchmark", "err", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// batches answers as a store does that takes all that waits in one go.
type batches struct{ in chan *h2.Call }

// Handle is what the server calls.
func (b batches) Handle(calls []*h2.Call) {
	for _, c := range calls {
		b.in <- c
	}
}

func (b batches) answer() {
	var calls []*h2.Call
	for c := range b.in {
		calls = append(calls[:0], c)
		for len(calls) < 64 && len(b.in) > 0 {
			calls = append(calls, <-b.in)
		}
		for _, c := range calls {
			c.Response = append(c.Response, c.Request...)
		}
		h2.FinishAll(calls)
	}
}

// serveBench serves, prints its address, and at the end of stdin what the
// process has used: nanoseconds of CPU and allocations. A line on stdin has it
// printed too.
func serveBench(engine string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var handler h2.Handler = newDesk()
	switch engine {
	case "grpc-go":
		go func() { _ = oracle().Serve(l) }()
	case "grpc-go-workers":
		go func() { _ = oracle(grpc.NumStreamWorkers(64)).Serve(l) }()
	default:
		if engine == "h2-later" {
			b := batches{make(chan *h2.Call, 4096)}
			go b.answer()
			handler = b
		}
		s, err := h2.New(h2.Config{Methods: []string{echo}, Log: slog.New(slog.DiscardHandler)}, handler)
		if err != nil {
			return err
		}
		go func() { _ = s.Serve(context.Background(), l) }()
	}
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			return err
		}
		fmt.Println(u.Utime.Nano()+u.Stime.Nano(), m.Mallocs)
	}
	return nil
}

// A process is a server of a benchmark.
type process struct {
	b    *testing.B
	in   io.WriteCloser
	out  *bufio.Scanner
	addr string
}

func startBench(b *testing.B, engine string) *process {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), benchServer+"="+engine)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := &process{b: b, in: in, out: bufio.NewScanner(out)}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	p.addr = p.line("")
	return p
}

func (p *process) line(ask string) string {
	if ask != "" {
		if _, err := io.WriteString(p.in, ask); err != nil {
			p.b.Fatal(err)
		}
	}
	if !p.out.Scan() {
		p.b.Fatal("the server is gone")
	}
	return p.out.Text()
}

func (p *process) used() (cpu time.Duration, allocs int64) {
	if _, err := fmt.Sscan(p.line("\n"), &cpu, &allocs); err != nil {
		p.b.Fatal(err)
	}
	return cpu, allocs
}

// BenchmarkServer compares engines that answer what they were asked: 64 calls
// in flight over 8 connections, by a client that costs as little as can be.
// The server is a process of its own, whose CPU and allocations are counted.
func BenchmarkServer(b *testing.B) {
	cost := map[string]float64{}
	for _, engine := range []string{"h2", "h2-later", "grpc-go-workers", "grpc-go"} {
		b.Run(engine, func(b *testing.B) {
			p := startBench(b, engine)
			load(b, p.addr, 20000) // warm
			cpu, allocs := p.used()
			b.ResetTimer()
			load(b, p.addr, b.N)
			b.StopTimer()
			cpuAfter, allocsAfter := p.used()
			cost[engine] = float64(cpuAfter-cpu) / float64(b.N)
			b.ReportMetric(cost[engine]/1000, "server-µs/op")
			b.ReportMetric(float64(allocsAfter-allocs)/float64(b.N), "server-allocs/op")
			b.ReportMetric(cost[engine]/cost["h2"], "×h2-cpu")
		})
	}
}

// load makes n calls.
func load(b *testing.B, addr string, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := drive(addr, 8, &left); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

// drive makes calls on a connection of its own while there are some left, so
// many at a time.
func drive(addr string, width int, left *atomic.Int64) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = nc.Close() }()
	p := &peer{nc: nc, fr: http2.NewFramer(nc, nil)}
	p.enc = hpack.NewEncoder(&p.buf)
	p.hello()
	_ = p.fr.WriteWindowUpdate(0, 1<<30)
	first, rest := p.block(echo), p.block(echo)
	body := message(strings.Repeat("m", 60))
	var out []byte
	id := uint32(1)
	ask := func(k int) int {
		out = out[:0]
		made := 0
		for ; made < k && left.Add(-1) >= 0; made++ {
			block := rest
			if id == 1 {
				block = first
			}
			out = append(out, 0, 0, byte(len(block)), 1, 4)
			out = append(binary.BigEndian.AppendUint32(out, id), block...)
			out = append(out, 0, 0, byte(len(body)), 0, 1)
			out = append(binary.BigEndian.AppendUint32(out, id), body...)
			id += 2
		}
		return made
	}
	in, have, got := make([]byte, 64<<10), 0, 0
	for flying := ask(width); flying > 0; {
		if _, err := nc.Write(out); err != nil {
			return err
		}
		out = out[:0]
		done := 0
		for done == 0 {
			n, err := nc.Read(in[have:])
			if err != nil {
				return err
			}
			have += n
			at := 0
			for have-at >= 9 {
				size := 9 + (int(in[at])<<16 | int(in[at+1])<<8 | int(in[at+2]))
				if have-at < size {
					break
				}
				switch in[at+3] {
				case 0:
					got += size - 9
				case 1:
					done += int(in[at+4] & 1)
				case 3, 7:
					return fmt.Errorf("frame %x", in[at:at+size])
				case 6:
					if in[at+4]&1 == 0 {
						_ = p.fr.WritePing(true, [8]byte(in[at+9:at+17]))
					}
				}
				at += size
			}
			have = copy(in, in[at:have])
		}
		if got > 1<<24 {
			_ = p.fr.WriteWindowUpdate(0, uint32(got))
			got = 0
		}
		flying += ask(done) - done
	}
	return nil
}
