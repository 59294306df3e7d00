package proxyapi

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"penstock.dev/services/gateway/decide"
)

// ServeOn runs the data port on a listener.
func (g *Gate) ServeOn(ctx context.Context, ln net.Listener) error { return g.serve(ctx, ln) }

// SetLimits writes a decision's limits to headers.
func SetLimits(h http.Header, d *decide.Decision) { setLimits(h, d) }

// Strip removes what no client may tell an upstream.
func Strip(h http.Header) { strip(h) }

// Codes are the codes of all refusals.
func Codes() []string { return slices.Collect(maps.Keys(titles)) }

// Forget forgets the upstreams that nobody has asked for since a time.
func (g *Gate) Forget(before time.Time) { g.pool.forget(before) }

// DrainRefunds is what closing does with charges that are being given back.
func (g *Gate) DrainRefunds(within time.Duration) (left int) { return g.back.drain(within) }

// Upstreams is how many upstreams are kept.
func (g *Gate) Upstreams() (n int) {
	g.pool.known.Range(func(any, any) bool { n++; return true })
	return n
}
