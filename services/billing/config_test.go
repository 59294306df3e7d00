package main

import (
	"encoding/base64"
	"errors"
	"maps"
	"strings"
	"testing"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf/conftest"
)

// TestREADME guarantees that README lists the knobs that the service has.
func TestREADME(t *testing.T) {
	t.Parallel()
	var c config
	conftest.README(t, "README.md", knobs(&c, func(string) string { return "" }).Knobs())
}

func parse(env map[string]string, args ...string) (config, error) {
	return parseConfig(args, func(name string) string { return env[name] })
}

var seed = base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))

func good() map[string]string {
	return map[string]string{
		"PENSTOCK_DATABASE_URL": "postgres://h/d",
		"PENSTOCK_TOKENS":       "operator-0123456789",
		"PENSTOCK_PORTAL_KEYS":  "k1:" + seed,
	}
}

// TestConfig guarantees that the defaults are good, and what https means.
func TestConfig(t *testing.T) {
	t.Parallel()
	c, err := parse(good(), "-check")
	if err != nil || !c.check || c.secure || len(c.signing) != 1 {
		t.Errorf("parseConfig = %+v %v", c, err)
	}
	if c, err := parse(good(), "-portal-url", "https://portal.example"); err != nil || !c.secure {
		t.Errorf("https: %v %v", c.secure, err)
	}
}

// TestConfigNamesEveryFault guarantees that an operator sees all that is wrong at once, and
// never a secret.
func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := parse(map[string]string{"PENSTOCK_TOKENS": "short-secret", "PENSTOCK_PORTAL_KEYS": "k1:" + seed + "x"},
		"-listen", "", "-admin-listen", "", "-database-connections", "3", "-kafka-brokers", "", "-batch", "0", "-topic-replicas", "10", "-lag-alarm", "1s",
		"-issuer", "", "-invoice-prefix", "A-B", "-grace", "-1s", "-finalize-every", "1ms", "-request-timeout", "1ms", "-portal-url", "ftp://h")
	if !errors.Is(err, boot.ErrConfig) {
		t.Fatalf("parseConfig = %v, want a refused configuration", err)
	}
	for _, want := range []string{
		"-listen", "-admin-listen", "-database-url", "-database-connections", "-kafka-brokers", "-batch", "-topic-replicas", "-lag-alarm", "-issuer",
		"-invoice-prefix", "-grace", "-finalize-every", "-request-timeout", "-tokens", "-portal-keys", "-portal-url",
	} {
		if !strings.Contains(err.Error(), want+" (PENSTOCK_") {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "short-secret") || strings.Contains(err.Error(), seed) {
		t.Errorf("%q repeats a secret", err)
	}
}

// TestConfigReconcile guarantees that proving the books needs a database and brokers.
func TestConfigReconcile(t *testing.T) {
	t.Parallel()
	env := maps.Clone(good())
	get := func(name string) string { return env[name] }
	if c, err := parseReconcile([]string{"-json", "-check"}, get); err != nil || !c.json || !c.check {
		t.Errorf("parseReconcile = %+v %v", c, err)
	}
	delete(env, "PENSTOCK_DATABASE_URL")
	if _, err := parseReconcile([]string{"-kafka-brokers", ""}, get); !errors.Is(err, boot.ErrConfig) || !strings.Contains(err.Error(), "-database-url") || !strings.Contains(err.Error(), "-kafka-brokers") {
		t.Errorf("parseReconcile = %v", err)
	}
}
