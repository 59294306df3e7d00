// Package client is the HTTP client of the load.
package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// answerWithin bounds one request.
const answerWithin = 10 * time.Second

// A Client sends prepared HTTP/1.1 requests over connections that it keeps, one
// request on each at a time. It costs a third of net/http's: the generator
// shares its machine with what it measures. It is safe for concurrent use.
type Client struct {
	addr string // host:port

	mu   sync.Mutex
	idle []*conn
}

type conn struct {
	net.Conn
	read *bufio.Reader
	body []byte
}

// New returns a client of http://host:port.
func New(base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" || u.Port() == "" {
		return nil, fmt.Errorf("%s: want http://host:port", base)
	}
	return &Client{addr: u.Host}, nil
}

// Prepare returns a request as it goes over the wire. Header lines have no end.
func (c *Client) Prepare(method, path string, body []byte, header ...string) []byte {
	b := []byte(method + " " + path + " HTTP/1.1\r\nHost: " + c.addr + "\r\n")
	for _, line := range header {
		b = append(b, line+"\r\n"...)
	}
	if body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n"...)
	}
	return append(append(b, "\r\n"...), body...)
}

// Do sends a prepared request and calls use with the answer, whose body is good
// until use returns. Nothing is sent twice.
func (c *Client) Do(ctx context.Context, request []byte, use func(status int, body []byte) error) error {
	k, err := c.take(ctx)
	if err != nil {
		return err
	}
	keep, err := k.exchange(request, use)
	if !keep {
		_ = k.Close()
		return err
	}
	c.mu.Lock()
	c.idle = append(c.idle, k)
	c.mu.Unlock()
	return err
}

// exchange reports whether the connection may be used again.
func (k *conn) exchange(request []byte, use func(status int, body []byte) error) (keep bool, err error) {
	if err := k.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return false, err
	}
	if _, err := k.Write(request); err != nil {
		return false, err
	}
	resp, err := http.ReadResponse(k.read, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	k.body = k.body[:0]
	for more := true; more; {
		if len(k.body) == cap(k.body) {
			k.body = append(k.body, make([]byte, 4<<10)...)[:len(k.body)]
		}
		n, err := resp.Body.Read(k.body[len(k.body):cap(k.body)])
		k.body = k.body[:len(k.body)+n]
		if err != nil && err != io.EOF {
			return false, err
		}
		more = err == nil
	}
	return !resp.Close, use(resp.StatusCode, k.body)
}

func (c *Client) take(ctx context.Context) (*conn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		k := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return k, nil
	}
	c.mu.Unlock()
	raw, err := (&net.Dialer{Timeout: answerWithin}).DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: raw, read: bufio.NewReader(raw)}, nil
}

// CloseIdle closes the connections that are kept: a server may have closed them
// already.
func (c *Client) CloseIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.idle {
		_ = k.Close()
	}
	c.idle = nil
}
