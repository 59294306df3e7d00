package proxyapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"penstock.dev/services/internal/boot"
)

// errClosing ends the exchanges that are still running when the gate's time to
// drain is over.
var errClosing = errors.New("the gateway is shutting down")

// refundTime is what charges that are being given back get to be given in: a
// few of the counter store's budgets.
const refundTime = 2 * time.Second

// cutTime is what the exchanges that were cut get to end in, and flushTime what
// the server gets to send their answers: it does so when they have ended.
const (
	cutTime   = 2 * time.Second
	flushTime = 500 * time.Millisecond
)

// maxStreams bounds the requests that one HTTP/2 connection may have running.
const maxStreams = 1000

// Serve is the data port.
//
// When it is told to stop, it takes no further connection and no further
// request, lets what is running end within cfg.Drain, and cuts the rest:
// streams and tunnels have no end of their own. It returns when every request
// has been accounted for and every charge been given back that should be, so
// whoever keeps the accounts may stop then.
func Serve(cfg Config, deps Deps) boot.Part {
	return boot.Part{Name: "http", Run: func(ctx context.Context) error {
		g := New(cfg, deps)
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", g.cfg.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		return g.serve(ctx, ln)
	}}
}

// serve runs the data port on ln.
func (g *Gate) serve(ctx context.Context, ln net.Listener) error {
	running, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	srv := g.server(running)
	served := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			served <- srv.ServeTLS(ln, "", "")
			return
		}
		served <- srv.Serve(ln)
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	return g.drain(srv, cut, served)
}

// server is the HTTP server of the data port. Requests live in base.
func (g *Gate) server(base context.Context) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           g,
		TLSConfig:         g.cfg.TLS,
		Protocols:         protocols,
		ReadHeaderTimeout: g.cfg.HeaderTimeout,
		WriteTimeout:      g.cfg.ClientTimeout, // of the gateway's own answers; a watch takes over where one is forwarded
		IdleTimeout:       g.cfg.KeepAliveTimeout,
		MaxHeaderBytes:    g.cfg.MaxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     g.cfg.ClientTimeout,
		},
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(g.deps.Log.Handler(), slog.LevelWarn),
	}
}

// drain closes the gate: see Serve.
func (g *Gate) drain(srv *http.Server, cut context.CancelCauseFunc, served <-chan error) error {
	empty := make(chan struct{})
	go func() { // from here on every new request is refused
		g.busy.Lock()
		close(empty)
	}()
	patience, stop := context.WithTimeout(context.WithoutCancel(srv.BaseContext(nil)), g.cfg.Drain)
	defer stop()
	waited := srv.Shutdown(patience)
	ended := <-served
	if errors.Is(ended, http.ErrServerClosed) {
		ended = nil
	}
	if waited == nil { // tunnels have left the server and are known only here
		select {
		case <-empty:
		case <-patience.Done():
		}
	}
	cut(errClosing)
	select {
	case <-empty:
		flush, stop := context.WithTimeout(context.WithoutCancel(srv.BaseContext(nil)), flushTime)
		defer stop()
		_ = srv.Shutdown(flush) // returns at once where the first one waited for all
	case <-time.After(cutTime):
		ended = fmt.Errorf("requests were still running %v after they were cut", cutTime)
	}
	_ = srv.Close()
	g.pool.close()
	if left := g.back.drain(refundTime); left > 0 {
		ended = errors.Join(ended, fmt.Errorf("%d charges were still being given back after %v", left, refundTime))
	}
	return ended
}
