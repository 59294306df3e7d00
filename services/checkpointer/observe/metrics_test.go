package observe_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/checkpointer/observe"
)

// TestAFailureIsSaidOnceAMinute guarantees that the log says when something begins to fail
// and when it goes well again, and in between once a minute, however often it is tried.
func TestAFailureIsSaidOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m, err := observe.New(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)), func() bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		said := func() []string {
			defer log.Reset()
			return strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
		}
		m.Done(t.Context(), "look")
		for range 1300 { // two minutes and ten seconds of a look each 100 ms
			m.Missed(t.Context(), "look", errors.New("refused"))
			time.Sleep(100 * time.Millisecond)
		}
		m.Missed(t.Context(), "sweep", errors.New("refused"))
		got := said()
		if len(got) != 4 || !strings.HasSuffix(got[0], "doing=look error=refused times=1") || !strings.HasSuffix(got[1], "doing=look error=refused times=600") ||
			!strings.HasSuffix(got[2], "doing=look error=refused times=600") || !strings.HasSuffix(got[3], "doing=sweep error=refused times=1") {
			t.Errorf("the log says\n%s", strings.Join(got, "\n"))
		}
		m.Done(t.Context(), "look")
		m.Done(t.Context(), "look")
		m.Missed(t.Context(), "look", errors.New("refused"))
		if got := said(); len(got) != 2 || !strings.HasSuffix(got[0], "doing=look after=2m10s") || !strings.HasSuffix(got[1], "times=1") {
			t.Errorf("then the log says\n%s", strings.Join(got, "\n"))
		}
	})
}
