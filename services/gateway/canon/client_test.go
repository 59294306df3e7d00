package canon_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"penstock.dev/services/gateway/canon"
)

var trusted = canon.Proxies{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:ffff::/48")}

// TestClient guarantees FC-01: the client is the right-most address that is
// not a trusted proxy's, only a trusted peer is believed, and what an upstream
// is told holds no claim of an untrusted client.
func TestClient(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		peer   string
		fields []string
		client string
		trail  string
	}{
		{"an untrusted peer is the client, whatever it claims", "203.0.113.9", []string{"192.0.2.77"}, "203.0.113.9", "203.0.113.9"},
		{"a trusted peer is believed about its peer", "198.51.100.2", []string{"192.0.2.77, 203.0.113.9"}, "203.0.113.9", "203.0.113.9 198.51.100.2"},
		{"garbage beyond the client is no error", "198.51.100.2", []string{"abc, , 203.0.113.9"}, "203.0.113.9", "203.0.113.9 198.51.100.2"},
		{"garbage before it ends the search at who wrote it", "198.51.100.2", []string{"203.0.113.9, abc, 198.51.100.3"}, "198.51.100.3", "198.51.100.3 198.51.100.2"},
		{"several trusted proxies are passed", "198.51.100.2", []string{"203.0.113.9, 198.51.100.4", "198.51.100.3"}, "203.0.113.9", "203.0.113.9 198.51.100.4 198.51.100.3 198.51.100.2"},
		{"an inside client is the farthest", "198.51.100.2", []string{"198.51.100.7"}, "198.51.100.7", "198.51.100.7 198.51.100.2"},
		{"a trusted peer without the header is the client", "198.51.100.2", nil, "198.51.100.2", "198.51.100.2"},
		{"ports and brackets are read", "198.51.100.2", []string{"203.0.113.9:4711, [2001:db8:ffff::1]:443"}, "203.0.113.9", "203.0.113.9 2001:db8:ffff::1 198.51.100.2"},
		{"brackets without a port too", "198.51.100.2", []string{"[2001:db8::1]"}, "2001:db8::1", "2001:db8::1 198.51.100.2"},
		{"a mapped address is the IPv4 one", "::ffff:198.51.100.2", []string{"::ffff:203.0.113.9"}, "203.0.113.9", "203.0.113.9 198.51.100.2"},
		{"a zone says nothing", "198.51.100.2", []string{"fe80::1%eth0"}, "fe80::1", "fe80::1 198.51.100.2"},
		{"an open quote is garbage", "198.51.100.2", []string{`", 203.0.113.9`}, "203.0.113.9", "203.0.113.9 198.51.100.2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client, trail := trusted.Client(netip.MustParseAddr(tt.peer), canon.ForwardedFor(tt.fields))
			if got := strings.Trim(fmt.Sprint(trail), "[]"); client.String() != tt.client || got != tt.trail {
				t.Errorf("Client = %v, trail %s, want %s, %s", client, got, tt.client, tt.trail)
			}
		})
	}
}

// TestForwarded guarantees that RFC 7239's header is read as its list is, from
// the trusted end, whatever a client wrote in front.
func TestForwarded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		fields []string
		client string
	}{
		{"one hop", []string{"for=203.0.113.9;proto=https;by=198.51.100.2"}, "203.0.113.9"},
		{"IPv6 is quoted", []string{`proto=https; For="[2001:db8::17]:4711"`}, "2001:db8::17"},
		{"the right-most untrusted counts", []string{"for=192.0.2.77, for=203.0.113.9", "for=198.51.100.9"}, "203.0.113.9"},
		{"an open quote of the client does not reach the proxy's part", []string{`for="x, for=203.0.113.9`}, "203.0.113.9"},
		{"quoted commas separate nothing", []string{`for=192.0.2.1;host="a,for=192.0.2.9"`}, "192.0.2.1"},
		{"an obfuscated hop ends the search", []string{"for=203.0.113.9, for=_hidden, for=198.51.100.9"}, "198.51.100.9"},
		{"so does one without for", []string{"for=203.0.113.9, proto=http"}, "198.51.100.2"},
		{"and one with two", []string{"for=203.0.113.9;for=192.0.2.1"}, "198.51.100.2"},
		{"empty elements are none", []string{"for=203.0.113.9, , "}, "203.0.113.9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client, _ := trusted.Client(netip.MustParseAddr("198.51.100.2"), canon.Forwarded(tt.fields))
			if client.String() != tt.client {
				t.Errorf("client of %q = %v, want %s", tt.fields, client, tt.client)
			}
		})
	}
}

// TestGroup guarantees FC-02: one /64 is one client, an IPv4 address is itself.
func TestGroup(t *testing.T) {
	t.Parallel()
	tests := []struct{ address, want string }{
		{"203.0.113.9", "203.0.113.9"},
		{"::ffff:203.0.113.9", "203.0.113.9"},
		{"2001:db8:1:2::7", "2001:db8:1:2::"},
		{"2001:DB8:1:2:0:0:0:1", "2001:db8:1:2::"},
		{"2001:db8:1:3::1", "2001:db8:1:3::"},
		{"fe80::1%eth0", "fe80::"},
	}
	for _, tt := range tests {
		if got := canon.Group(netip.MustParseAddr(tt.address)); got.String() != tt.want {
			t.Errorf("Group(%s) = %v, want %s", tt.address, got, tt.want)
		}
	}
	if got := canon.Group(netip.Addr{}); got.IsValid() {
		t.Errorf("Group of no address = %v", got)
	}
}

// FuzzClient guarantees that no header makes an untrusted peer anybody else,
// and that a trusted peer's appended hop is the client whatever stands before
// it, in either header.
func FuzzClient(f *testing.F) {
	f.Add("192.0.2.77")
	f.Add(`abc, ,"`)
	f.Add(`for="x;, \`)
	f.Fuzz(func(t *testing.T, claim string) {
		outside := netip.MustParseAddr("203.0.113.9")
		client, trail := trusted.Client(outside, canon.ForwardedFor([]string{claim}))
		if client != outside || !slices.Equal(trail, []netip.Addr{outside}) {
			t.Fatalf("untrusted %q made the client %v, trail %v", claim, client, trail)
		}
		peer := netip.MustParseAddr("198.51.100.2")
		want := []netip.Addr{outside, peer}
		if client, trail = trusted.Client(peer, canon.ForwardedFor([]string{claim + ", 203.0.113.9"})); client != outside || !slices.Equal(trail, want) {
			t.Fatalf("X-Forwarded-For claim %q made the client %v, trail %v", claim, client, trail)
		}
		if client, trail = trusted.Client(peer, canon.Forwarded([]string{claim + ", for=203.0.113.9"})); client != outside || !slices.Equal(trail, want) {
			t.Fatalf("Forwarded claim %q made the client %v, trail %v", claim, client, trail)
		}
	})
}

// TestSpellings guarantees one spelling of methods, hosts and header names.
func TestSpellings(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"GET": "GET", "post": "POST", "PropFind": "PROPFIND"} {
		if got := canon.Method(in); got != want {
			t.Errorf("Method(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"API.Example.com": "api.example.com", "api.example.com:8443": "api.example.com", "api.example.com.": "api.example.com",
		"api.example.com.:80": "api.example.com", "[2001:DB8::1]:443": "[2001:db8::1]", "[2001:db8:0:0::1]": "[2001:db8::1]",
		"127.0.0.1:8080": "127.0.0.1", "": "", "[x": "", "[x]": "",
	} {
		if got := canon.Host(in); got != want {
			t.Errorf("Host(%q) = %q, want %q", in, got, want)
		}
	}
	for _, in := range []string{"X-Tenant-Id", "x_tenant_id", "X.Tenant_ID", "X~TENANT!ID"} {
		if got := string(canon.AppendHeader(nil, in)); got != "x-tenant-id" {
			t.Errorf("AppendHeader(%q) = %q, want x-tenant-id", in, got)
		}
	}
}
