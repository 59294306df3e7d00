package counters_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
)

// A contradiction is two nodes of a cluster, each of which says that the other
// serves every slot.
type contradiction struct {
	evals   atomic.Int64 // calls of scripts
	asked   atomic.Int64 // times that the topology was
	settled atomic.Bool  // the first one serves them after all
	serving sync.WaitGroup
}

const first, second = "192.0.2.1:6379", "192.0.2.2:6379"

func (c *contradiction) dial(_ context.Context, _, addr string) (net.Conn, error) {
	client, server := net.Pipe()
	c.serving.Go(func() {
		defer func() { _ = server.Close() }()
		r := bufio.NewReader(server)
		for {
			command, err := words(r)
			if err != nil {
				return
			}
			if _, err := io.WriteString(server, c.reply(addr, command)); err != nil {
				return
			}
		}
	})
	return client, nil
}

func (c *contradiction) reply(addr string, command []string) string {
	other := first
	if addr == first && !c.settled.Load() {
		other = second
	}
	switch strings.ToLower(command[0]) {
	case "hello":
		return "-ERR unknown command\r\n"
	case "info":
		return bulk("run_id:" + strings.Repeat("a", 40) + "\r\n")
	case "cluster":
		c.asked.Add(1)
		host, _, _ := net.SplitHostPort(other)
		return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n" + bulk(host) + ":6379\r\n"
	case "evalsha":
		c.evals.Add(1)
		if addr == first && c.settled.Load() {
			return "*1\r\n" + bulk("a"+strings.Repeat("\x00", 8)+"\x01"+strings.Repeat("\x00", 40))
		}
		return "-MOVED 1 " + other + "\r\n"
	default:
		return "+OK\r\n"
	}
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// words reads a command.
func words(r *bufio.Reader) ([]string, error) {
	count := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := count()
	if err != nil {
		return nil, err
	}
	all := make([]string, n)
	for i := range all {
		size, err := count()
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		all[i] = string(b[:size])
	}
	return all, nil
}

// TestNodesThatContradictEachOther guarantees that a decision which nodes send
// back and forth does not run in circles: it pauses, longer and longer, gives up
// with the budget, and is decided if they agree before.
func TestNodesThatContradictEachOther(t *testing.T) {
	t.Parallel()
	for name, agree := range map[string]bool{"for good": false, "for a while": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var c contradiction
				s, err := counters.OpenWith(counters.Config{URL: "redis://" + first + "?addr=" + second, Cluster: true, Budget: time.Second}, "", c.dial)
				if err != nil {
					t.Fatal(err)
				}
				if agree {
					time.AfterFunc(400*time.Millisecond, func() { c.settled.Store(true) })
				}
				began := time.Now()
				a, err := s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{gcra("acme", 10, time.Second, 10, 1)}})
				took := time.Since(began)
				switch {
				case agree && (err != nil || !a.Allowed || took < 400*time.Millisecond || took > 700*time.Millisecond):
					t.Errorf("%+v, %v after %v; want it allowed soon after 400ms", a, err, took)
				case !agree && (!errors.Is(err, counters.ErrUnavailable) || took != time.Second):
					t.Errorf("%v after %v, want ErrUnavailable after 1s", err, took)
				}
				if n := c.evals.Load(); n < 10 || n > 80 {
					t.Errorf("asked %d times, want 10 to 80", n)
				}
				if n := c.asked.Load(); n < 2 || n > 20 {
					t.Errorf("asked for the topology %d times, want 2 to 20", n)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				c.serving.Wait()
			})
		})
	}
}
