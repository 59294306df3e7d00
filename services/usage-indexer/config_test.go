package main

import (
	"errors"
	"strings"
	"testing"
	"time"

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
		"-admin-listen", "", "-kafka-brokers", "", "-elasticsearch-url", "ftp://a:b@c", "-elasticsearch-user", "u", "-elasticsearch-api-key", "k",
		"-elasticsearch-flavor", "solr", "-elasticsearch-timeout", "1ms", "-index-prefix", "Bad*", "-retention", "-1", "-replicas", "11",
		"-refresh", "1us", "-batch", "0", "-batch-bytes", "1", "-writers", "0", "-dlq-topic", "a b", "-topic-replicas", "10",
	}
	_, err := parseConfig(args, none)
	if !errors.Is(err, boot.ErrConfig) {
		t.Fatalf("parseConfig = %v, want a configuration error", err)
	}
	for i := 0; i < len(args); i += 2 {
		if args[i] == "-elasticsearch-user" {
			continue // its password is missing
		}
		if !strings.Contains(err.Error(), args[i]+" ") {
			t.Errorf("error does not name %s:\n%v", args[i], err)
		}
	}
	if !strings.Contains(err.Error(), "-elasticsearch-password") || strings.Contains(err.Error(), "a:b") {
		t.Errorf("error names no missing password, or shows one:\n%v", err)
	}
}

// TestCheckStartsNothing guarantees that -check judges the configuration, also of a
// replay, and touches no server.
func TestCheckStartsNothing(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-check", "-elasticsearch-url", "http://nowhere.invalid:9200"},
		{"replay", "-check", "-days", "3", "-kafka-brokers", "nowhere.invalid:9092"},
	} {
		if err := run(t.Context(), boot.Process{Args: args, Getenv: none}); err != nil {
			t.Errorf("run %v = %v, want nil", args, err)
		}
	}
}

// TestReplaySpan guarantees how a replay is told what to replay.
func TestReplaySpan(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	tests := []struct {
		args     string
		from, to string // empty: not set
		fault    string // empty: none
	}{
		{"-days 2", "2026-11-28T09:00:00Z", "", ""},
		{"-from 2026-11-29T00:00:00+03:00 -to 2026-11-30T00:00:00Z", "2026-11-28T21:00:00Z", "2026-11-30T00:00:00Z", ""},
		{"-days 3 -to 2026-11-28T00:00:00Z", "2026-11-27T09:00:00Z", "2026-11-28T00:00:00Z", ""},
		{"", "", "", "-days"},
		{"-days 0", "", "", "-days"},
		{"-days 2 -from 2026-11-29T00:00:00Z", "", "", "-days"},
		{"-from yesterday", "", "", "-from"},
		{"-days 1 -to 2026-11-28T00:00:00Z", "", "", "-to"},
		{"-days 1 -rate -5", "", "", "-rate"},
		{"-days 1 -replicas 99", "", "", "-replicas"},
		{"-days 1 more", "", "", "more"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			c, err := parseReplay(strings.Fields(tt.args), none, now)
			if tt.fault != "" {
				if !errors.Is(err, boot.ErrConfig) || !strings.Contains(err.Error(), tt.fault) {
					t.Errorf("error %v, want one of configuration that names %s", err, tt.fault)
				}
				return
			}
			show := func(at time.Time) string {
				if at.IsZero() {
					return ""
				}
				return at.UTC().Format(time.RFC3339)
			}
			if err != nil || show(c.span.From) != tt.from || show(c.span.To) != tt.to {
				t.Errorf("from %s to %s (%v), want %s to %s", show(c.span.From), show(c.span.To), err, tt.from, tt.to)
			}
		})
	}
}
