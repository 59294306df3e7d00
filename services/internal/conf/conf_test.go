package conf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf"
)

type knobs struct {
	brokers []string
	budget  time.Duration
	token   conf.Secret
	size    int
}

func parse(env map[string]string, args ...string) (knobs, error) {
	var k knobs
	s := conf.New("x", func(name string) string { return env[name] })
	s.Strings(&k.brokers, "kafka-brokers", "127.0.0.1:9092", "host:port list")
	s.Duration(&k.budget, "redis-budget", 50*time.Millisecond, "time a decision waits")
	s.Secret(&k.token, "token", "bearer token")
	s.Int(&k.size, "size", 4, "connections, 1-100")
	return k, s.Parse(args)
}

// TestParse guarantees that a flag wins over the environment and the
// environment over the default.
func TestParse(t *testing.T) {
	t.Parallel()
	k, err := parse(map[string]string{"PENSTOCK_KAFKA_BROKERS": "a:1, b:2", "PENSTOCK_SIZE": "7"}, "-size", "9")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(k.brokers, k.budget, k.size), "[a:1 b:2] 50ms 9"; got != want {
		t.Errorf("parsed %s, want %s", got, want)
	}
}

// TestParseNamesEveryFault guarantees that an operator sees all refused knobs
// at once, by the name that was used.
func TestParseNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := parse(map[string]string{"PENSTOCK_SIZE": "many", "PENSTOCK_REDIS_BUDGET": "50"}, "-unknown")
	if !errors.Is(err, boot.ErrConfig) {
		t.Fatalf("Parse = %v, want a configuration error", err)
	}
	for _, want := range []string{"PENSTOCK_SIZE", "PENSTOCK_REDIS_BUDGET", "-unknown"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

// TestSecretIsNeverPrinted guarantees that a secret reaches no log line.
func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	k, err := parse(map[string]string{"PENSTOCK_TOKEN": "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	js, err := json.Marshal(map[string]any{"token": k.token})
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{fmt.Sprintf("%v %+v %#v %s", k, k, k, k.token), string(js)} {
		if strings.Contains(out, "hunter2") {
			t.Errorf("secret printed in %q", out)
		}
	}
	if k.token.Reveal() != "hunter2" {
		t.Error("Reveal lost the secret")
	}
}
