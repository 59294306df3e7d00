package main

import (
	"errors"
	"strings"
	"testing"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf/conftest"
)

func none(string) string { return "" }

// TestReadmeListsTheKnobs guarantees that the README's table is what the binary takes.
func TestReadmeListsTheKnobs(t *testing.T) {
	t.Parallel()
	conftest.README(t, "README.md", knobs(&config{}, none).Knobs())
}

// TestConfigNamesEveryFault guarantees that an operator sees all faults of a
// configuration at once, each by its knob.
func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	args := []string{
		"-admin-listen", "", "-kafka-brokers", "", "-instance", "a b", "-keep", "1m", "-batch", "0", "-session-timeout", "1s",
		"-transaction-timeout", "0s", "-dlq-topic", "a b", "-topic-replicas", "10",
	}
	_, err := parseConfig(args, none)
	if !errors.Is(err, boot.ErrConfig) {
		t.Fatalf("parseConfig = %v, want a configuration error", err)
	}
	for i := 0; i < len(args); i += 2 {
		if !strings.Contains(err.Error(), args[i]+" ") {
			t.Errorf("error does not name %s:\n%v", args[i], err)
		}
	}
}

// TestInstances guarantees that instances without a name have different ones.
func TestInstances(t *testing.T) {
	t.Parallel()
	a, err1 := parseConfig(nil, none)
	b, err2 := parseConfig(nil, none)
	if err1 != nil || err2 != nil || a.watching().Instance == b.watching().Instance {
		t.Errorf("instances %q and %q (%v, %v)", a.instance, b.instance, err1, err2)
	}
}

// TestCheckStartsNothing guarantees that -check judges the configuration and touches
// no server.
func TestCheckStartsNothing(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), boot.Process{Args: []string{"-check", "-kafka-brokers", "nowhere.invalid:9092"}, Getenv: none}); err != nil {
		t.Errorf("run = %v, want nil", err)
	}
}
