package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const (
	probeEvery  = 10 * time.Millisecond
	probeWithin = 2 * time.Second // one question
	tailLines   = 20              // of the log, shown in an error
	tailBytes   = 16 << 10
)

// ErrNever marks the error of a readiness probe that no waiting will cure.
var ErrNever = errors.New("it will not become ready")

// Never wraps the answer of a readiness probe so that it is not asked again.
func Never(err error) error { return fmt.Errorf("%w: %w", ErrNever, err) }

// awaitReady asks until the server answers, ends, or its time is up.
func (p *Process) awaitReady(ctx context.Context) error {
	if p.spec.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.spec.Within)
	defer cancel()
	begun, cur := time.Now(), p.current()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var last error
	for {
		err := p.probe(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrNever) {
			return fmt.Errorf("%s: %w%s", p.Name, err, p.tail())
		}
		if last == nil || ctx.Err() == nil {
			last = err // one that came of the deadline says nothing
		}
		select {
		case <-cur.exited:
			how := "with status 0"
			if cur.err != nil {
				how = "with " + cur.err.Error()
			}
			return fmt.Errorf("%s: %w %s before it was ready%s", p.Name, ErrExited, how, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s: not ready after %v: %w%s",
				p.Name, time.Since(begun).Round(100*time.Millisecond), last, p.tail())
		case <-tick.C:
		}
	}
}

// awaitGone waits until nothing of an earlier run is left.
func (p *Process) awaitGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.spec.StopWithin)
	defer cancel()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for p.spec.Gone != nil && !p.spec.Gone() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: an earlier run in %s has not ended: %w", p.Name, p.Dir, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

func (p *Process) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	return p.spec.Ready(ctx)
}

// tail formats the end of the log for an error message.
func (p *Process) tail() string { return "; the end of " + p.Tail() }

// Tail shows the last lines of the log below its path, indented, for a message
// to a person.
func (p *Process) Tail() string {
	lines, err := Tail(p.LogPath, tailLines)
	if err != nil || len(lines) == 0 {
		return p.LogPath + " is empty"
	}
	return p.LogPath + ":\n    " + strings.Join(lines, "\n    ")
}

// Tail returns at most the last n lines of a file.
func Tail(path string, n int) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, tailBytes))
	if _, err := f.ReadAt(b, size-int64(len(b))); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	b = bytes.TrimRight(b, "\n")
	if len(b) == 0 {
		return nil, nil
	}
	lines := strings.Split(string(b), "\n")
	return lines[max(0, len(lines)-n):], nil
}

// dial opens a TCP connection that ends with ctx.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	return conn, err
}

// Answers200 returns a readiness probe: GET url answers 200.
func Answers200(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answered %s: %s", url, resp.Status, bytes.TrimSpace(body))
		}
		return err
	}
}
