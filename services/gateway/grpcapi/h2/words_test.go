package h2_test

import (
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// TestParseTimeout guarantees what grpc-timeout means.
func TestParseTimeout(t *testing.T) {
	t.Parallel()

	for in, want := range map[string]time.Duration{
		"1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second, "4m": 4 * time.Millisecond, "5u": 5 * time.Microsecond,
		"6n": 6, "0n": 0, "00000020m": 20 * time.Millisecond, "99999999H": 100 * 365 * 24 * time.Hour,
		"": -1, "1": -1, "H": -1, "1h": -1, "-1S": -1, "+1S": -1, "1.5S": -1, " 1S": -1, "123456789S": -1, "١S": -1,
	} {
		got, err := h2.ParseTimeout(in)
		if want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q is %s, %v; want %s", in, got, err, want)
		}
	}
}

// TestPercent guarantees that grpc-message is printable ASCII, means what was
// meant, and is not longer than a kilobyte.
func TestPercent(t *testing.T) {
	t.Parallel()

	for _, in := range []string{"", "plain", "100%", "a\r\nb", "ünïcode", "\x00\xff", "~ ", strings.Repeat("ä", 5000)} {
		got := string(h2.AppendPercent(nil, in))
		back, err := url.PathUnescape(got)
		if err != nil || len(got) > 1024 || !strings.HasPrefix(in, back) || len(in) < 300 && back != in {
			t.Errorf("%.40q became %.60q, %d bytes, %v", in, got, len(got), err)
		}
		for _, c := range []byte(got) {
			if c < ' ' || c > '~' {
				t.Errorf("%.40q became %.60q", in, got)
			}
		}
	}
}

// TestContentType guarantees which content types are gRPC.
func TestContentType(t *testing.T) {
	t.Parallel()

	for in, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;x=y": true,
		"application/grpc-web": false, "application/grp": false, "application/json": false, "": false,
	} {
		if got := h2.IsGRPC(in); got != want {
			t.Errorf("%q: %t", in, got)
		}
	}
}

// TestConfig guarantees that a configuration that cannot work is refused.
func TestConfig(t *testing.T) {
	t.Parallel()

	good := h2.Config{Methods: []string{echo}, Log: slog.New(slog.DiscardHandler)}
	if _, err := h2.New(good, newDesk()); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*h2.Config){
		"no methods":           func(c *h2.Config) { c.Methods = nil },
		"an empty method":      func(c *h2.Config) { c.Methods = []string{""} },
		"no log":               func(c *h2.Config) { c.Log = nil },
		"a negative bound":     func(c *h2.Config) { c.MaxStreams = -1 },
		"a negative time":      func(c *h2.Config) { c.Idle = -1 },
		"a bound too large":    func(c *h2.Config) { c.MaxRequest = 1 << 31 },
		"a negative budget":    func(c *h2.Config) { c.Resets.Burst = -5 },
		"a negative refill":    func(c *h2.Config) { c.Control.PerSecond = -5 },
		"a negative handshake": func(c *h2.Config) { c.Handshake = -time.Second },
	} {
		cfg := good
		change(&cfg)
		if _, err := h2.New(cfg, newDesk()); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for code, want := range map[h2.ErrCode]string{h2.NoError: "NO_ERROR", h2.HTTP11Required: "HTTP_1_1_REQUIRED", 0xff: "0xff"} {
		if got := code.String(); got != want {
			t.Errorf("%d is %q", code, got)
		}
	}
}
