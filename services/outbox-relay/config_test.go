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
	_, err := parseConfig([]string{"-slot", "Bad Slot", "-max-in-flight", "0", "-kafka-brokers", "", "-kafka-user", "relay", "-topic-replicas", "10"}, none)
	if !errors.Is(err, boot.ErrConfig) {
		t.Fatalf("parseConfig = %v, want a configuration error", err)
	}
	for _, knob := range []string{"-database-url", "-slot", "-max-in-flight", "-kafka-brokers", "-kafka-user", "-topic-replicas"} {
		if !strings.Contains(err.Error(), knob) {
			t.Errorf("error does not name %s:\n%v", knob, err)
		}
	}
}

// TestCheckStartsNothing guarantees that -check judges the configuration and
// touches no server.
func TestCheckStartsNothing(t *testing.T) {
	t.Parallel()
	p := boot.Process{Args: []string{"-check", "-database-url", "postgres://nowhere.invalid/x"}, Getenv: none}
	if err := run(t.Context(), p); err != nil {
		t.Errorf("run -check = %v, want nil", err)
	}
}
