package topics

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/kafka"
)

// A slow broker has one partition of so many events, and a pause before each. After them
// it is silent where the partition is said to have more.
type slow struct {
	events, end int
	pause       time.Duration
}

func (b *slow) Consume(context.Context, kafka.Group, kafka.GroupHandler) error { return nil }

func (b *slow) ReadRangeFrom(ctx context.Context, _ string, from, _ map[int32]int64, begin func(map[int32]kafka.Range) error, handle func([]kafka.Record) error) error {
	if err := begin(map[int32]kafka.Range{0: {From: from[0], To: int64(b.end)}}); err != nil {
		return err
	}
	for n := int(from[0]); n < b.end; n++ {
		if n == b.events {
			<-ctx.Done()
		} else if err := pause(ctx, b.pause); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		id := usagev1.UUID{6: 0x70, 8: 0x80, 15: byte(n)}
		e := usagev1.Event{
			EventID: id, DecisionID: id, StreamID: id, Sequence: 1, Tenant: "acme", Decision: usagev1.DecisionAllow, Status: 200, Cost: 1,
			Counters: []usagev1.Counter{{
				Key: "k", Observed: true, Units: 1, Consumed: int64(n + 1), Limit: 10, Kind: usagev1.CounterKindWallet,
				Mode: usagev1.ModeEnforce, Meter: "m", RuleID: "r", RuleVersion: 1,
			}},
		}
		if err := handle([]kafka.Record{{Key: []byte("acme"), Value: wire.Frame(nil, 1, usagev1.AppendEvent(nil, &e)), Offset: int64(n)}}); err != nil {
			return err
		}
	}
	return nil
}

type registry struct{}

func (registry) Register(context.Context, string, string) (uint32, error) { return 1, nil }
func (registry) Schema(context.Context, uint32) (string, []string, error) {
	return schemas.UsageV1, []string{usagev1.Subject}, nil
}

// TestTailIsReadWhileItComes guarantees that a long tail is read to its end however long
// that takes, and that one which falls silent is given up with what had come.
func TestTailIsReadWhileItComes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		broker   slow
		consumed int64
		silent   bool
	}{
		"long":   {slow{events: 100, end: 100, pause: 9 * time.Second}, 100, false},
		"silent": {slow{events: 3, end: 100, pause: 9 * time.Second}, 3, true},
		"none":   {slow{events: 0, end: 100}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				x, err := New(&tt.broker, registry{}, nil, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
				if err != nil {
					t.Fatal(err)
				}
				parts, whole, err := x.Tail(t.Context(), nil, 10*time.Second)
				if whole == tt.silent || errors.Is(err, errSilent) != tt.silent {
					t.Errorf("whole %v, %v", whole, err)
				}
				got := checkpoint.Merge(parts, func(*checkpoint.Part) bool { return true })
				if tt.consumed == 0 && len(got) == 0 {
					return
				}
				if len(got) != 1 || got[0].Consumed != tt.consumed || got[0].Told != tt.consumed {
					t.Errorf("%+v, want %d", got, tt.consumed)
				}
			})
		})
	}
}

// TestTakingOverGoesOn guarantees that a partition of which more lies beyond the books
// than a checkpoint has time to read is taken over by as many as it takes, when nothing
// new comes too.
func TestTakingOverGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		books := checkpoint.NewPart(0, 0, nil)
		stored := func(context.Context, []int32) ([]*checkpoint.Part, error) {
			return []*checkpoint.Part{checkpoint.NewPart(0, books.Stored, nil)}, nil
		}
		x, err := New(&slow{events: 100, end: 100, pause: catchUp / 7}, registry{}, stored, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		x.Assigned(map[string][]int32{usagev1.Topic: {0}})
		told := int64(0)
		save := func(_ context.Context, parts []*checkpoint.Part) ([]*checkpoint.Part, error) {
			for _, c := range checkpoint.Merge(parts, func(*checkpoint.Part) bool { return true }) {
				told += c.Told
			}
			books.Stored = parts[0].Next
			return nil, nil
		}
		for n := 1; x.Checkpoint(t.Context(), save) != nil; n++ {
			if n == 100 {
				t.Fatalf("after %d checkpoints the books contain %d", n, books.Stored)
			}
		}
		if told != 100 || books.Stored != 100 {
			t.Errorf("%d told up to %d, want 100 up to 100", told, books.Stored)
		}
	})
}
