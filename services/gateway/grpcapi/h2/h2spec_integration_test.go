//go:build integration

package h2_test

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// TestH2specIntegration guarantees that h2spec, with its strict cases, finds
// nothing, on plain TCP and on TLS.
func TestH2specIntegration(t *testing.T) {
	t.Parallel()

	certificates, _ := certificate(t)
	for name, secure := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			l := tcp(t)
			start(t, l, newDesk(), settings(t, func(c *h2.Config) {
				if secure {
					c.TLS = certificates
				}
			}))
			passed := 0
			for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
				group.Test(&config.Config{
					Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Path: "/", Timeout: 10 * time.Second,
					MaxHeaderLen: 4000, Strict: true, TLS: secure, Insecure: true,
				})
				passed += group.PassedCount
				failures(t, group)
			}
			if passed < 140 {
				t.Errorf("only %d cases were run", passed)
			}
		})
	}
}

// failures tells of each case that failed or was left out.
func failures(t *testing.T, g *spec.TestGroup) {
	for _, sub := range g.Groups {
		failures(t, sub)
	}
	for i, tc := range g.Tests {
		if r := tc.Result; r != nil && (r.Failed || r.Skipped) {
			t.Errorf("%s/%s %s: %v", g.ID(), strconv.Itoa(i+1), tc.Desc, r.Error)
		}
	}
	for _, tc := range g.StrictTests {
		if r := tc.Result; r != nil && (r.Failed || r.Skipped) {
			t.Errorf("%s strict %s: %v", g.ID(), tc.Desc, r.Error)
		}
	}
}
