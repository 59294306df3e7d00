package canon

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Group returns the address that owns a counter: an IPv4 address itself, an
// IPv6 address its /64, of which one customer has all.
func Group(a netip.Addr) netip.Addr {
	if a = a.Unmap().WithZone(""); a.Is4() {
		return a
	}
	p, err := a.Prefix(64)
	if err != nil { // the zero address
		return netip.Addr{}
	}
	return p.Addr()
}

// Proxies are the networks whose word about the client is taken. The zero
// Proxies trusts nobody.
type Proxies []netip.Prefix

// Trust reports whether the address is a trusted proxy's.
func (p Proxies) Trust(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, n := range p {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

// Client returns whose request it is. hops is what the peer says about where
// the request came from, nearest first (ForwardedFor, Forwarded); it counts
// only if the peer is trusted. Then the client is the nearest address that is
// not itself a trusted proxy's. A hop that is no address ends the search: who
// wrote it is the last that is known.
//
// The trail is what an upstream may be told: the client, the trusted hops
// behind it and the peer, farthest first. Nothing that an untrusted client
// claimed is in it.
func (p Proxies) Client(peer netip.Addr, hops iter.Seq[string]) (client netip.Addr, trail []netip.Addr) {
	client = peer.Unmap().WithZone("")
	trail = []netip.Addr{client}
	if !p.Trust(client) {
		return client, trail
	}
	for hop := range hops {
		a, ok := address(hop)
		if !ok {
			break
		}
		client, trail = a, append(trail, a)
		if !p.Trust(a) {
			break
		}
	}
	slices.Reverse(trail)
	return client, trail
}

// ForwardedFor returns the hops in the fields of X-Forwarded-For, nearest
// first. Empty elements are no hops.
func ForwardedFor(fields []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, field := range slices.Backward(fields) {
			for hop := range backward(field, ',') {
				if hop != "" && !yield(hop) {
					return
				}
			}
		}
	}
}

// Forwarded returns the hops in the fields of Forwarded (RFC 7239), nearest
// first: the "for" of each element, without its quotes. An element that has
// none, or two, is a hop that is no address.
func Forwarded(fields []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, field := range slices.Backward(fields) {
			for element := range backward(field, ',') {
				if element != "" && !yield(origin(element)) {
					return
				}
			}
		}
	}
}

// origin returns the "for" of one element of Forwarded.
func origin(element string) (hop string) {
	for pair := range backward(element, ';') {
		key, value, _ := strings.Cut(pair, "=")
		if !strings.EqualFold(key, "for") {
			continue
		}
		if hop != "" {
			return "unknown"
		}
		if hop = value; len(hop) > 1 && hop[0] == '"' && hop[len(hop)-1] == '"' {
			hop = hop[1 : len(hop)-1]
		}
	}
	return hop
}

// backward cuts s at each sep that is not within double quotes and yields the
// parts, trimmed, last to first. Quotes are paired from the end, where the
// trusted proxy wrote: a quote that a client left open cannot reach them.
func backward(s string, sep byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		end, quoted := len(s), false
		for i := len(s) - 1; i >= 0; i-- {
			switch c := s[i]; {
			case c == '"':
				quoted = !quoted
			case c == sep && !quoted:
				if !yield(strings.Trim(s[i+1:end], " \t")) {
					return
				}
				end = i
			}
		}
		yield(strings.Trim(s[:end], " \t"))
	}
}

// address reads one hop: an address with or without brackets and a port.
func address(hop string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(hop); err == nil {
		return a.Unmap().WithZone(""), true
	}
	if ap, err := netip.ParseAddrPort(hop); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	if len(hop) > 2 && hop[0] == '[' && hop[len(hop)-1] == ']' {
		if a, err := netip.ParseAddr(hop[1 : len(hop)-1]); err == nil {
			return a.Unmap().WithZone(""), true
		}
	}
	return netip.Addr{}, false
}
