package proof

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A redis is one connection to a Redis, for what a proof does there itself. It is
// for one goroutine.
type redis struct {
	conn net.Conn
	r    *bufio.Reader
}

// dialRedis connects to redis://[user:password@]host:port/database, or rediss.
func dialRedis(ctx context.Context, raw string) (*redis, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	d := &net.Dialer{Timeout: 5 * time.Second}
	var conn net.Conn
	if u.Scheme == "rediss" {
		conn, err = (&tls.Dialer{NetDialer: d, Config: &tls.Config{ServerName: u.Hostname()}}).DialContext(ctx, "tcp", u.Host)
	} else {
		conn, err = d.DialContext(ctx, "tcp", u.Host)
	}
	if err != nil {
		return nil, err
	}
	c := &redis{conn, bufio.NewReader(conn)}
	if password, has := u.User.Password(); has {
		login := []string{"AUTH", u.User.Username(), password}
		if login[1] == "" {
			login = []string{"AUTH", password}
		}
		_, err = c.do(login...)
	}
	if database := strings.Trim(u.Path, "/"); err == nil && database != "" {
		_, err = c.do("SELECT", database)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (c *redis) close() { _ = c.conn.Close() }

// do sends a command and returns the words of its answer; nil where there is none.
func (c *redis) do(args ...string) ([]string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if err := c.conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		return nil, err
	}
	return c.read()
}

func (c *redis) read() ([]string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("redis: an empty answer")
	}
	switch kind, rest := line[0], line[1:]; kind {
	case '+', ':':
		return []string{rest}, nil
	case '$', '*':
		n, err := strconv.Atoi(rest)
		if err != nil || n > 1<<20 {
			return nil, fmt.Errorf("redis: answer %q", line)
		}
		if n < 0 {
			return nil, nil
		}
		if kind == '$' {
			text := make([]byte, n+2)
			if _, err := io.ReadFull(c.r, text); err != nil {
				return nil, err
			}
			return []string{string(text[:n])}, nil
		}
		var all []string
		for range n {
			one, err := c.read()
			if err != nil {
				return nil, err
			}
			all = append(all, one...)
		}
		return all, nil
	default:
		return nil, fmt.Errorf("redis: %s", rest)
	}
}

// A clock is another machine's, as seen from this one: its time is this one's
// plus ahead, give or take slack.
type clock struct{ ahead, slack time.Duration }

// now is the other machine's time, in UTC.
func (c clock) now() time.Time { return time.Now().Add(c.ahead).UTC() }

// clockOf asks Redis for its time some times and keeps the quickest answer: windows and
// periods follow that clock.
func clockOf(ctx context.Context, raw string) (clock, error) {
	c, err := dialRedis(ctx, raw)
	if err != nil {
		return clock{}, err
	}
	defer c.close()
	best := clock{slack: time.Hour}
	for range 8 {
		sent := time.Now()
		words, err := c.do("TIME")
		took := time.Since(sent)
		if err != nil {
			return clock{}, err
		}
		if len(words) != 2 {
			return clock{}, fmt.Errorf("redis: TIME answered %q", words)
		}
		seconds, err1 := strconv.ParseInt(words[0], 10, 64)
		micros, err2 := strconv.ParseInt(words[1], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return clock{}, err
		}
		if took/2 < best.slack {
			there := time.Unix(seconds, micros*1000)
			best = clock{ahead: there.Sub(sent.Add(took / 2)), slack: took/2 + time.Millisecond}
		}
	}
	return best, nil
}

// until waits for a time of that clock.
func (c clock) until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(at.Sub(c.now()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
