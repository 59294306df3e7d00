package boot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/services/internal/boot"
)

func quiet() boot.Process { return boot.Process{Log: slog.New(slog.DiscardHandler)} }

// TestRunStopsInReverse guarantees that a part's dependencies outlive it: the
// part started last has fully stopped before the one before it is told to.
func TestRunStopsInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var order []string
		part := func(name string) boot.Part {
			return boot.Part{Name: name, Run: func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second) // drain, in virtual time
				order = append(order, name)
				return ctx.Err()
			}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := quiet().Run(ctx, part("store"), part("events"), part("http")); err != nil {
			t.Fatalf("Run = %v, want nil", err)
		}
		if want := []string{"http", "events", "store"}; !slices.Equal(order, want) {
			t.Errorf("stopped in order %v, want %v", order, want)
		}
	})
}

// TestRunEndsWithItsParts guarantees that one failed part ends the process with
// its error, and that a part which does not stop is named after the grace.
func TestRunEndsWithItsParts(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	wait := boot.Part{Name: "wait", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	t.Run("a failing part ends the others", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			err := quiet().Run(t.Context(), wait, boot.Part{Name: "bad", Run: func(context.Context) error { return boom }})
			if !errors.Is(err, boom) || !strings.Contains(err.Error(), "part bad") {
				t.Errorf("Run = %v, want boom of part bad", err)
			}
		})
	})
	t.Run("a stuck part is named after the grace", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			start := time.Now()
			err := quiet().Run(ctx, boot.Part{Name: "stuck", Run: func(context.Context) error { <-release; return nil }})
			if err == nil || !strings.Contains(err.Error(), "part stuck") || time.Since(start) != boot.Grace {
				t.Errorf("Run = %v after %v, want part stuck after %v", err, time.Since(start), boot.Grace)
			}
			close(release)
		})
	})
}

// TestExec guarantees the exit codes an orchestrator sees.
func TestExec(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"a clean end is 0", nil, 0},
		{"a failure is 1", errors.New("x"), 1},
		{"a refused configuration is 2", fmt.Errorf("%w: -listen: empty", boot.ErrConfig), 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			got := boot.Exec(t.Context(), "x", nil, func(string) string { return "" }, &out,
				func(context.Context, boot.Process) error { return tt.err })
			if got != tt.want {
				t.Errorf("Exec = %d, want %d (%s)", got, tt.want, out.String())
			}
		})
	}
}
