package kafka_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/services/internal/kafka"
)

// TestLogIsHeldBack guarantees that a broker which is away for a day does not
// fill the log: one line for each message in ten seconds, with how many were
// held back, and none at error level, for the library retries what it calls an
// error.
func TestLogIsHeldBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := kafka.NewClientLog(slog.New(slog.NewTextHandler(&out, nil)))
		for range 1000 {
			log.Log(kgo.LogLevelError, "unable to open connection to broker", "addr", "127.0.0.1:9092")
			log.Log(kgo.LogLevelInfo, "not worth a line")
			time.Sleep(20 * time.Millisecond)
		}
		log.Log(kgo.LogLevelWarn, "another message")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 {
			t.Fatalf("%d lines in 20 s, want 3:\n%s", len(lines), out.String())
		}
		for i, want := range []string{"level=WARN msg=\"kafka client\" event=\"unable to open connection to broker\" repeats=0 detail.addr=127.0.0.1:9092", "repeats=499", "level=INFO"} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("line %d is %s, want %s", i, lines[i], want)
			}
		}
	})
}
