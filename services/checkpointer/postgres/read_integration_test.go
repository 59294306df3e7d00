//go:build integration

package postgres_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/checkpointer/postgres"
	"penstock.dev/services/internal/pgtest"
)

// TestIntegrationCorrectionsByPages guarantees that pages of corrections, of
// whatever size, are all of them once, by tenant, decision and refund, byte by
// byte, and none that is too old.
func TestIntegrationCorrectionsByPages(t *testing.T) {
	t.Parallel()
	books, err := postgres.Open(t.Context(), pgtest.Database(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := books.Prepare(ctx); err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	p := checkpoint.NewPart(0, 0, nil)
	var want []checkpoint.Correction
	for _, tenant := range []string{"", "a\x00", "acme", "Ünal"} {
		for n := range byte(3) {
			for _, refund := range []string{"", "r\x00", "r1"} {
				want = append(want, checkpoint.Correction{Tenant: tenant, Decision: [16]byte{n + 1, 0xff}, Refund: refund, Units: 1 + int64(n), At: now})
			}
		}
	}
	p.Made = append(slices.Clone(want), checkpoint.Correction{Tenant: "acme", Decision: [16]byte{9}, Units: 1, At: now.Add(-time.Hour)})
	if _, _, err := books.Save(ctx, []*checkpoint.Part{p}, nil); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 7, 36, 100} {
		var got []checkpoint.Correction
		for after := (checkpoint.Correction{}); ; after = got[len(got)-1] {
			page, err := books.Corrections(ctx, now.Add(-time.Minute), after, n)
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, page...); len(page) < n {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: %d corrections, want %d:\n%v\n%v", n, len(got), len(want), got, want)
		}
	}
}
