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
// configuration at once, each by its knob, and no password.
func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	args := []string{
		"-admin-listen", "", "-kafka-brokers", "", "-database-url", "", "-redis-url", "http://secret@nowhere", "-unsafe-store", "perhaps",
		"-watch-every", "1ms", "-checkpoint-every", "1ms", "-sweep-every", "1ms", "-tail-patience", "-1s",
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
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("error shows a password:\n%v", err)
	}
}

// TestCheckStartsNothing guarantees that -check judges the configuration, also of
// reconcile, and touches no server.
func TestCheckStartsNothing(t *testing.T) {
	t.Parallel()
	where := []string{"-check", "-database-url", "postgres://nowhere.invalid/x", "-redis-url", "redis://nowhere.invalid:6379"}
	for _, args := range [][]string{where, append([]string{"reconcile", "-json"}, where...)} {
		if err := run(t.Context(), boot.Process{Args: args, Getenv: none}); err != nil {
			t.Errorf("run %v = %v, want nil", args, err)
		}
	}
}
